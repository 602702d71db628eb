"""Two processes that the contract tests of the paths drive; each has an endpoint."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from hetccl import transports
from hetccl.request import Request
from hetccl.transports.base import Link, ReceiveChannel, Transport
from hetccl.transports.endpoint import Endpoint
from hetccl.transports.tcp import Tcp

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


def named(path: str) -> Transport:
    """An installed path by its name; "tcp*3" is tcp over three streams."""
    name, _, streams = path.partition("*")
    return Tcp(int(streams)) if streams else transports.available([name])[0]


def outcome(request: Request) -> bool | Exception:
    """What a test of the request says, or raises. (pytest.raises would end this process where nothing is raised.)"""
    try:
        return request.test()
    except Exception as error:
        return error


class Side:
    """One process: its endpoint, and where the other's is."""

    kept: ReceiveChannel

    def __init__(self, secret: bytes = SECRET) -> None:
        self._bare = len(os.listdir("/proc/self/fd"))
        # A socket or thread that nobody closed, told by its destructor, counts as a trace.
        self._unraisable: list[str] = []
        warnings.simplefilter("error", ResourceWarning)
        sys.unraisablehook = lambda found: self._unraisable.append(repr(found.exc_value))
        self.endpoint = Endpoint("127.0.0.1", secret)
        self.other = ""

    def locate(self) -> str:
        return self.endpoint.location

    def meet(self, location: str) -> None:
        self.other = location

    def link(self, key: str, timeout: float = 10) -> Link:
        return Link(self.endpoint, self.other, key, "rank 9", timeout)

    def move(self, path: str, outward: tuple[str, Messages] | None, inward: tuple[str, Messages] | None) -> bool:
        """Send and receive messages, all queued at once; whether what came is right."""
        transport = named(path)
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

    def move_on_two(self, path: str, channels: Sequence[tuple[str, Messages]], sends: bool) -> bool:
        """The same over several channels at once, one way; whether what came is right."""
        opened: list[Any] = []
        requests: list[Request] = []
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for key, messages in channels:
            make = named(path).sender if sends else named(path).receiver
            channel: Any = make(self.link(key))
            opened.append(channel)
            for tag, lengths in enumerate(messages):
                data = pieces(lengths, tag)
                room = [torch.full_like(piece, 255) for piece in data]
                requests.append(channel.send(data, tag) if sends else channel.receive(room, tag))
                pairs += zip(data, room, strict=True)
        complete(requests)
        for key, _ in channels:
            (self.acknowledged if sends else self.acknowledge)(key)
        for channel in opened:
            channel.close()
        return sends or all(torch.equal(*both) for both in pairs)

    def acknowledge(self, key: str) -> None:
        sender = named("tcp").sender(self.link(key + "/ack"))
        complete([sender.send([], 1)])
        sender.close()

    def acknowledged(self, key: str) -> None:
        receiver = named("tcp").receiver(self.link(key + "/ack"))
        complete([receiver.receive([], 1)])
        receiver.close()

    def send(self, path: str, key: str, length: int, tag: int) -> None:
        """Send one message and leave the channel open (until the next call of this kind)."""
        self.sender = named(path).sender(self.link(key))
        complete([self.sender.send(pieces([length], 0), tag)])

    def receive(self, path: str, key: str, length: int, tag: int) -> None:
        """Receive one message; the channel is closed then."""
        self.begin(path, key)
        self.finish(length, tag)

    def begin(self, path: str, key: str, poll: bool = False) -> None:
        """Open a channel and, where asked, await that a message begins to arrive, without receiving it."""
        self.kept = named(path).receiver(self.link(key))
        end = time.monotonic() + 5
        while poll and not self.kept.poll():
            assert time.monotonic() < end, "no message begins"

    def finish(self, length: int, tag: int) -> None:
        """Receive one message on the opened channel, and close it; a failure must last."""
        request = self.kept.receive([torch.empty(length, dtype=torch.uint8)], tag)
        try:
            complete([request])
        except Exception as error:
            for _ in range(3):
                if not isinstance(outcome(request), type(error)):
                    raise AssertionError("a failed request looks as if it had not failed") from error
            raise
        finally:
            self.kept.close()

    def receive_then_wait(self, path: str, key: str, length: int) -> None:
        """Receive one message, then wait for one that never comes."""
        receiver = named(path).receiver(self.link(key))
        complete([receiver.receive([torch.empty(length, dtype=torch.uint8)], 0)])
        complete([receiver.receive([torch.empty(length, dtype=torch.uint8)], 1)], 10)

    def polls(self, path: str, key: str) -> list[bool]:
        """Whether `poll` tells a message that nobody awaits yet, and no other; then it is received."""
        receiver = named(path).receiver(self.link(key))
        end = time.monotonic() + 5
        while not (came := receiver.poll()) and time.monotonic() < end:
            pass
        request = receiver.receive([torch.empty(10, dtype=torch.uint8)], 7)
        taken = receiver.poll()
        complete([request])
        after = receiver.poll()
        receiver.close()
        return [came, taken, after]

    def leave(self, path: str, key: str) -> list[str]:
        """Close a channel with a message in flight and one connecting; what their requests raise then."""
        sender, receiver = named(path).sender(self.link(key)), named(path).receiver(self.link(key + "/never"))
        large, small = (torch.empty(size, dtype=torch.uint8) for size in (64 << 20, 9))
        requests: list[Request] = [sender.send([large], 1), receiver.receive([small], 1)]
        for request in requests:
            request.test()
        raised = []
        for channel, request in zip((sender, receiver), requests, strict=True):
            channel.close()
            channel.close()
            raised.append(type(outcome(request)).__name__)
        return raised

    def traces(self) -> dict[str, Any]:
        """What a channel that does not clean up leaves behind."""
        gc.collect()
        return {
            "threads": sorted(
                t.name for t in threading.enumerate() if t.name.startswith("hetccl-") and "copy" not in t.name
            ),
            "descriptors": len(os.listdir("/proc/self/fd")) - self._bare,
            "unraisable": self._unraisable,
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
        # A server that has imported torch once forks every side.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "hetccl.transports.fabric", "hetccl.transports.shm"])
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
