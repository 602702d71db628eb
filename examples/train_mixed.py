"""Train a small transformer in one job whose ranks belong to different vendor libraries.

    torchrun --standalone --nproc-per-node 4 examples/train_mixed.py

Ranks 0 and 2 use Gloo, ranks 1 and 3 use MPI: two libraries that cannot talk to each other. The job trains
twice from the same seeds on the same batches, first over plain Gloo and then over hetccl. It fails unless
both loss curves agree, all replicas end with the same parameters to the bit, and no more bytes crossed
between clusters than necessary.
"""

import argparse
import hashlib
import os
import sys
import time
from dataclasses import dataclass, field
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 64, 8, 128, 4, 3
# Summing the gradients in another order moves the loss by 1e-6, scaling half of them by 1.001 by 3e-4.
LOSS_TOLERANCE = 2e-5
# DDP regroups its buckets at the start of the second step; bytes are counted from the third on.
SETUP_STEPS = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A causal transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position.weight
        return self.head(self.norm(self.blocks(x)))


def load_text() -> torch.Tensor:
    """Python's own language reference, which ships with every Python: 466 kB of English as bytes."""
    text = "\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


@dataclass
class GradientMeter:
    """A DDP communication hook: all-reduces each bucket, and counts the bytes and the time spent on it."""

    group: dist.ProcessGroup
    bucket_bytes: list[int] = field(default_factory=list)
    launch_seconds: float = 0.0
    last_launch: float = 0.0

    def hook(self, _: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        start = time.perf_counter()
        gradients = bucket.buffer().div_(self.group.size())
        work = dist.all_reduce(gradients, group=self.group, async_op=True)
        self.bucket_bytes.append(gradients.numel() * gradients.element_size())
        self.last_launch = time.perf_counter()
        self.launch_seconds += self.last_launch - start
        return work.get_future().then(lambda future: future.value()[0])

    def exposed_seconds(self) -> float:
        """Call right after backward: the time in this step that no computation of this rank hid.

        That is the time inside the hook, plus the time from the launch of the last bucket, when this rank has
        no gradient left to compute, to the end of backward. Waiting for slower ranks is part of it.
        """
        exposed = self.launch_seconds + time.perf_counter() - self.last_launch
        self.launch_seconds = 0.0
        return exposed


@dataclass
class Result:
    name: str
    losses: torch.Tensor
    """This rank's loss at each step."""
    parameters: str
    """A hash of this rank's parameters at the end."""
    bucket_bytes: list[int]
    """Sizes of the gradient buckets, one an all_reduce, from step SETUP_STEPS on."""
    crossed: int
    """Bytes that this rank sent to other clusters meanwhile."""
    seconds: float


def train(name: str, group: dist.ProcessGroup, text: torch.Tensor, steps: int) -> Result:
    """Train from fixed seeds, with gradients averaged over `group`."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Transformer(), process_group=group)
    meter = GradientMeter(group)
    model.register_comm_hook(None, meter.hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = torch.Generator().manual_seed(1000 + rank)

    losses, crossed_before = [], 0
    begin = interval = time.perf_counter()
    exposed = 0.0
    for step in range(steps):
        if step == SETUP_STEPS:
            meter.bucket_bytes.clear()
            crossed_before = sent_to_other_clusters(name)
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=batches)
        window = text[starts + torch.arange(CONTEXT + 1)]
        logits = model(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        exposed += meter.exposed_seconds()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())

        every = max(1, steps // 10)
        if (step + 1) % every == 0:
            elapsed = time.perf_counter() - interval
            speed = every * world * BATCH * CONTEXT / elapsed
            mean = torch.stack(losses[-every:]).mean()
            say(
                f"{name:>7}  step {step + 1:4}  loss {mean:.4f}  {speed:8,.0f} tokens/s"
                f"  communication {exposed / elapsed:4.0%}"
            )
            interval, exposed = time.perf_counter(), 0.0

    seconds = time.perf_counter() - begin
    crossed = sent_to_other_clusters(name) - crossed_before
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return Result(name, torch.stack(losses), digest.hexdigest(), meter.bucket_bytes, crossed, seconds)


def sent_to_other_clusters(name: str) -> int:
    """Bytes that this rank has sent across the border so far. Plain Gloo knows no clusters."""
    if name != "hetccl":
        return 0
    import hetccl

    return hetccl.traffic().cross_sent


def say(text: str = "") -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def show_clusters_and_plan(bucket_bytes: list[int]) -> int:
    """Print what hetccl found and what it does with a gradient bucket; the number of clusters."""
    import hetccl

    topology = hetccl.topology()
    say("\nClusters")
    for cluster in topology.clusters:
        first = topology.ranks[cluster.ranks[0]]
        borders = ", ".join(f"{border.rank} ({border.link})" for border in cluster.borders)
        library = f"{first.library} {first.version}"
        say(f"  {cluster.name}: ranks {list(cluster.ranks)}, {library}, border ranks {borders}")
    numel = max(bucket_bytes) // torch.float32.itemsize
    say(f"\nPlan for the largest gradient bucket, {numel:,} float32")
    say(str(hetccl.explain("all_reduce", numel, torch.float32)))
    return len(topology.clusters)


def check(passed: bool, text: str) -> bool:
    say(f"  {'ok  ' if passed else 'FAIL'}  {text}")
    return passed


def report(reference: Result, result: Result, gloo: dist.ProcessGroup, clusters: int) -> bool:
    """Compare both runs. What ranks tell each other here travels over Gloo, not over what is under test."""
    difference = (reference.losses - result.losses).abs().max()
    dist.all_reduce(difference, op=dist.ReduceOp.MAX, group=gloo)
    hashes: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hashes, result.parameters, group=gloo)
    crossed = torch.tensor(result.crossed)
    dist.all_reduce(crossed, group=gloo)
    reduced = sum(result.bucket_bytes)
    bound = 2 * (clusters - 1) * reduced

    say(f"\nTime: {reference.seconds:.1f} s over plain Gloo, {result.seconds:.1f} s over {result.name}")
    say("\nChecks")
    passed = [
        check(
            bool(difference <= LOSS_TOLERANCE),
            f"largest loss difference from plain Gloo {difference:.1e}, tolerance {LOSS_TOLERANCE:.0e}",
        ),
        check(len(set(hashes)) == 1, f"parameters of all {len(hashes)} replicas bit-identical"),
        check(
            bound <= crossed <= 1.01 * bound,
            f"{crossed:,} bytes crossed between clusters; lower bound 2(k-1)S = {bound:,}"
            f" (k = {clusters}, S = {reduced:,} in {len(result.bucket_bytes)} all_reduces)",
        ),
    ]
    return all(passed)


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="training steps of each run")
    parser.add_argument("--vendors", default="gloo,mpi", help="vendors, dealt to the ranks in turn")
    parser.add_argument("--backend", default="hetccl", choices=["hetccl", "gloo"], help="what to train over")
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start this with torchrun: " + __doc__.splitlines()[2].strip())
    if arguments.steps <= SETUP_STEPS:
        parser.error(f"--steps must be more than {SETUP_STEPS}")

    # On real mixed hardware nothing needs to be set: the vendor follows from the device. HETCCL_VENDOR puts
    # CPU ranks under different libraries; it is read when the group is made.
    vendors = arguments.vendors.split(",")
    os.environ.setdefault("HETCCL_VENDOR", vendors[int(os.environ["RANK"]) % len(vendors)])
    torch.set_num_threads(1)

    dist.init_process_group(arguments.backend)
    gloo = dist.new_group(backend="gloo")
    text = load_text()
    parameters = sum(parameter.numel() for parameter in Transformer().parameters())
    say(f"{parameters:,} parameters, {len(text):,} bytes of text, {dist.get_world_size()} ranks")
    say("loss: mean since the last line, on rank 0's batches")
    say("communication: share of rank 0's time spent on nothing but averaging gradients and waiting for it\n")

    reference = train("gloo", gloo, text, arguments.steps)
    result = train(arguments.backend, dist.group.WORLD, text, arguments.steps)
    clusters = show_clusters_and_plan(result.bucket_bytes) if arguments.backend == "hetccl" else 1
    passed = report(reference, result, gloo, clusters)
    dist.destroy_process_group()
    sys.exit(not passed)


if __name__ == "__main__":
    main()
