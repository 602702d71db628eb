#!/usr/bin/env bash
# Every operation of torch.distributed in mixed jobs on one NVIDIA GPU; prints a line a job. Needs mpi4py and an MPI.
# Ranks under nccl share the card, each as a host of its own to NCCL: right results, no speed.
set -u
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 TEST_DEVICE=cuda
try() {
    local name=$1 ranks=$2 clusters=$3 log
    shift 3
    log=$(mktemp)
    local began=$SECONDS
    if env TEST_CLUSTERS="$clusters" "$@" timeout "${LIMIT:-120}" torchrun --standalone --nproc-per-node "$ranks" \
        tests/gpu/every_operation.py >"$log" 2>&1 && [ "$(grep -c PASSED "$log")" = "$ranks" ]; then
        echo "PASSED $name ($((SECONDS - began)) s)"
    else
        echo "FAILED $name ($((SECONDS - began)) s)"
        grep -v Warning "$log" | grep -E -A12 'rank[0-9]\]|Error|Timeout|File' | head -n "${LINES_SHOWN:-40}"
    fi
    rm -f "$log"
}
only=${1:-}
run() { [[ -z $only || $1 == *$only* ]] && try "$@"; }
run "nccl + gloo" 2 2 TEST_VENDOR=nccl,gloo
run "nccl | nccl, as two vendors" 2 2 TEST_VENDOR=nccl TEST_CLUSTER=a,b
run "nccl alone" 2 1 TEST_VENDOR=nccl
run "2 nccl + 2 gloo, interleaved" 4 2 TEST_VENDOR=nccl,gloo
run "2 nccl + 2 gloo, border" 4 2 TEST_VENDOR=nccl,gloo HETCCL_COMBINE=border
run "2 nccl + 2 gloo, fill" 4 2 TEST_VENDOR=nccl,gloo HETCCL_COMBINE=fill
run "nccl + mpi" 2 2 TEST_VENDOR=nccl,mpi
run "nccl + gloo + mpi" 3 3 TEST_VENDOR=nccl,gloo,mpi
run "nccl + gloo, chunks" 2 2 TEST_VENDOR=nccl,gloo HETCCL_CHUNKS=3
run "nccl + gloo, tcp" 2 2 TEST_VENDOR=nccl,gloo HETCCL_PATHS=tcp
