"""Two processes that the contract tests of the paths drive; each has an endpoint."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from hetccl import transports
from hetccl.request import Request
from hetccl.transports.base import Link
from hetccl.transports.endpoint import Endpoint

SECRET = b"s" * 32
Messages = Sequence[Sequence[int]]
"""The lengths of each message's pieces."""


def pieces(lengths: Sequence[int], seed: int) -> list[torch.Tensor]:
    """The pieces of message number `seed`, told apart by their bytes."""
    total = torch.arange(sum(lengths), dtype=torch.int32).mul_(31).add_(seed).remainder_(251).to(torch.uint8)
    return list(total.split(list(lengths)))


def complete(requests: Sequence[Request], seconds: float = 20) -> None:
    """Wait for all requests, testing each in turn."""
    end, pending = time.monotonic() + seconds, list(requests)
    while pending:
        pending = [request for request in pending if not request.test()]
        if time.monotonic() > end:
            raise AssertionError("stuck: " + "; ".join(request.describe() for request in pending))


class Side:
    """One process: its endpoint, and where the other's is."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.endpoint = Endpoint("127.0.0.1", secret)
        self.other = ""

    def locate(self) -> str:
        return self.endpoint.location

    def meet(self, location: str) -> None:
        self.other = location

    def link(self, key: str, timeout: float = 10) -> Link:
        return Link(self.endpoint, self.other, key, "rank 9", timeout)

    def move(
        self, path: str, outward: tuple[str, Messages] | None, inward: tuple[str, Messages] | None
    ) -> bool:
        """Send and receive messages, all queued at once; whether what came is right."""
        (transport,) = transports.available([path])
        requests: list[Request] = []
        opened: list[Any] = []
        expected: list[torch.Tensor] = []
        got: list[torch.Tensor] = []
        if inward:
            receiver = transport.receiver(self.link(inward[0]))
            opened.append(receiver)
            for tag, lengths in enumerate(inward[1]):
                room = [torch.full((length,), 255, dtype=torch.uint8) for length in lengths]
                requests.append(receiver.receive(room, tag))
                got += room
                expected += pieces(lengths, tag)
        if outward:
            sender = transport.sender(self.link(outward[0]))
            opened.append(sender)
            requests += [sender.send(pieces(lengths, tag), tag) for tag, lengths in enumerate(outward[1])]
        complete(requests)
        # The receiver may still be reading what the sender has handed over: it says when it has it all.
        if inward:
            self.acknowledge(inward[0])
        if outward:
            self.acknowledged(outward[0])
        for channel in opened:
            channel.close()
        return not got or torch.equal(torch.cat(got), torch.cat(expected))

    def acknowledge(self, key: str) -> None:
        sender = transports.available(["tcp"])[0].sender(self.link(key + "/ack"))
        complete([sender.send([], 1)])
        sender.close()

    def acknowledged(self, key: str) -> None:
        receiver = transports.available(["tcp"])[0].receiver(self.link(key + "/ack"))
        complete([receiver.receive([], 1)])
        receiver.close()

    def send(self, path: str, key: str, length: int, tag: int) -> None:
        """Send one message and leave the channel open (until the next call of this kind)."""
        self.kept = transports.available([path])[0].sender(self.link(key))
        complete([self.kept.send(pieces([length], 0), tag)])

    def receive(self, path: str, key: str, length: int, tag: int) -> None:
        """Receive one message; the channel is closed then."""
        receiver = transports.available([path])[0].receiver(self.link(key))
        try:
            complete([receiver.receive([torch.empty(length, dtype=torch.uint8)], tag)])
        finally:
            receiver.close()

    def receive_then_wait(self, path: str, key: str, length: int) -> None:
        """Receive one message, then wait for one that never comes."""
        receiver = transports.available([path])[0].receiver(self.link(key))
        complete([receiver.receive([torch.empty(length, dtype=torch.uint8)], 0)])
        complete([receiver.receive([torch.empty(length, dtype=torch.uint8)], 1)], 10)

    def polls(self, path: str, key: str) -> list[bool]:
        """Whether `poll` tells a message that nobody awaits yet, and no other; then it is received."""
        receiver = transports.available([path])[0].receiver(self.link(key))
        end = time.monotonic() + 5
        while not (came := receiver.poll()) and time.monotonic() < end:
            pass
        request = receiver.receive([torch.empty(10, dtype=torch.uint8)], 7)
        taken = receiver.poll()
        complete([request])
        after = receiver.poll()
        receiver.close()
        return [came, taken, after]

    def traces(self) -> dict[str, Any]:
        """What would be left behind by a channel that does not clean up."""
        return {
            "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith("hetccl-")),
            "descriptors": len(os.listdir("/proc/self/fd")),
        }

    def close(self) -> None:
        self.endpoint.close()


def serve(pipe: Connection, make: Callable[[], Any]) -> None:
    """Do what the pipe says until it ends."""
    torch.set_num_threads(1)
    side = make()
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((None, getattr(side, name)(*arguments)))
        except Exception as error:
            pipe.send((type(error).__name__, str(error)))


class Failed(Exception):
    """A call in the other process raised; `kind` is the error's class name."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class Process:
    """One side, as the test sees it."""

    def __init__(self, make: Callable[[], Any] = Side) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, make), daemon=True)
        self.process.start()
        theirs.close()

    def start(self, name: str, *arguments: object) -> None:
        self._pipe.send((name, arguments))

    def result(self, seconds: float = 30) -> Any:
        assert self._pipe.poll(seconds), "the process does not answer"
        kind, value = self._pipe.recv()
        if kind is not None:
            raise Failed(kind, value)
        return value

    def call(self, name: str, *arguments: object) -> Any:
        self.start(name, *arguments)
        return self.result()

    def end(self) -> None:
        self._pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()


def pair() -> tuple[Process, Process]:
    """Two processes that know each other's address."""
    left, right = Process(), Process()
    left.start("locate")
    right.start("locate")
    here, there = left.result(60), right.result(60)
    left.call("meet", there)
    right.call("meet", here)
    return left, right
