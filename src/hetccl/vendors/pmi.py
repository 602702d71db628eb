"""A PMI-1 server: what mpirun is to MPICH and Intel MPI, for ranks that torchrun started.

MPI needs a key-value space with put, get and a barrier to find its peers. Member 0 serves it; every member hands the
library one authenticated socket to it (PMI_FD). Lines of `key=value` words, as MPI libraries write them.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import threading

from ..errors import PeerError
from .base import Setup
from .meeting import meet

_LONGEST = 1 << 16


class Server:
    """Serves one MPI world of `size` ranks; ends when all of them have finalised or gone."""

    def __init__(self, address: str, token: str, size: int, name: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind((address, 0))
        self._listener.listen(size)
        self.port: int = self._listener.getsockname()[1]
        self._token, self._size, self._name = token, size, name
        self._keys: dict[str, str] = {}
        self._members = 0
        self._lock = threading.Lock()
        self._waiting: list[socket.socket] = []
        threading.Thread(target=self._accept, name="hetccl-pmi", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed: all members are here
            threading.Thread(target=self._admit, args=(connection,), name="hetccl-pmi", daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        """Serve whoever knows the token. On a thread of its own: a stranger that says nothing keeps nobody out."""
        connection.settimeout(10)
        try:
            proof = connection.recv(len(self._token), socket.MSG_WAITALL)
        except OSError:
            proof = b""
        if not hmac.compare_digest(proof, self._token.encode()):
            connection.close()
            return
        connection.settimeout(None)
        with self._lock:
            self._members += 1
            if self._members == self._size:
                # A closed socket does not wake a thread in accept, a shut one does.
                self._listener.shutdown(socket.SHUT_RDWR)
                self._listener.close()
        self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("r") as lines:
            while line := lines.readline(_LONGEST):
                words = dict(word.partition("=")[::2] for word in line.split())
                answer = self._answer(connection, words, line)
                if answer:
                    connection.sendall(answer.encode() + b"\n")
                if words.get("cmd") == "finalize":
                    return

    def _answer(self, connection: socket.socket, words: dict[str, str], line: str) -> str | None:
        with self._lock:
            match words.get("cmd"):
                case "init":
                    return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
                case "get_maxes":
                    return "cmd=maxes kvsname_max=256 keylen_max=256 vallen_max=4096"
                case "get_appnum":
                    return "cmd=appnum appnum=0"
                case "get_my_kvsname":
                    return f"cmd=my_kvsname kvsname={self._name}"
                case "get_universe_size":
                    return f"cmd=universe_size size={self._size}"
                case "put":
                    # The value is the rest of the line: it may hold spaces and equals signs.
                    self._keys[words["key"]] = line.rstrip("\n").partition(" value=")[2]
                    return "cmd=put_result rc=0 msg=success"
                case "get":
                    value = self._keys.get(words.get("key", ""))
                    if value is None:
                        return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
                    return f"cmd=get_result rc=0 msg=success value={value}"
                case "barrier_in":
                    self._waiting.append(connection)
                    if len(self._waiting) == self._size:
                        for waiting in self._waiting:
                            waiting.sendall(b"cmd=barrier_out\n")
                        self._waiting.clear()
                    return None
                case "finalize":
                    return "cmd=finalize_ack"
                case "abort":
                    return None
                case other:
                    return f"cmd={other}_result rc=-1 msg=not_supported"


def join(setup: Setup) -> None:
    """Serve or find the server, and tell the MPI library about it through the environment, as PMI-1 prescribes."""
    served = "nothing"
    if setup.index == 0:
        # Libraries name shared memory after it: two runs or clusters on one host must not share the name.
        name = "kvs_" + os.urandom(8).hex()
        token = os.urandom(32).hex()
        server = Server(setup.address, token, len(setup.ranks), name)
        served = f"{setup.address} {server.port} {token}"
    address, port, token = meet(setup, "the MPI start-up server", served)[0].split()
    try:
        connection = socket.create_connection((address, int(port)), setup.timeout.total_seconds())
    except OSError as error:
        raise PeerError(f"cannot reach the MPI start-up server at {address}:{port}: {error}") from error
    connection.sendall(token.encode())
    connection.settimeout(None)
    os.environ |= {
        "PMI_FD": str(connection.detach()),
        "PMI_RANK": str(setup.index),
        "PMI_SIZE": str(len(setup.ranks)),
    }


def leave() -> None:
    """Answer the library's last word ourselves: it says it in a C exit handler, when no thread serves any more."""
    descriptor = int(os.environ["PMI_FD"])
    ours, answers = socket.socketpair()
    answers.sendall(b"cmd=finalize_ack\n" * 4)
    os.dup2(ours.fileno(), descriptor)
    ours.close()
    answers.detach()  # stays open until the process ends
