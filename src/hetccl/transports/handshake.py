"""Mutual proof of a shared secret, before anything else is read from a connection.

1. dialler: magic and a nonce    2. listener: a nonce and HMAC-SHA256(secret, "listener", both nonces)
3. dialler: HMAC-SHA256(secret, "dialler", both nonces) and the connection's key

All but the key have fixed lengths; the key is read only from a peer that proved the secret. Each side is a generator
that does no input or output: it yields `Step`s and is sent the bytes it asked for, so that one thread can serve any
number of connections and a test can play both sides.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Generator
from dataclasses import dataclass

_MAGIC = b"hetccl/1"
_NONCE = _PROOF = 32
LONGEST_KEY = 512


class Refused(Exception):
    """The other side did not prove the secret, or speaks another protocol."""


@dataclass(frozen=True, slots=True)
class Step:
    """Write `data`, then read exactly `count` bytes."""

    data: bytes
    count: int


Side = Generator[Step, bytes, str]
"""One side of a handshake; returns the connection's key."""


def dial(secret: bytes, key: str) -> Side:
    """The dialler's side. Raises Refused; at once ValueError for a key longer than `LONGEST_KEY` bytes."""
    encoded = key.encode()
    if len(encoded) > LONGEST_KEY:
        raise ValueError(f"a connection's key has at most {LONGEST_KEY} bytes: {key[:40]}…")
    return _dial(secret, encoded)


def _dial(secret: bytes, key: bytes) -> Side:
    mine = secrets.token_bytes(_NONCE)
    answer = yield Step(_MAGIC + mine, _NONCE + _PROOF)
    theirs, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _proof(secret, b"listener", mine, theirs)):
        raise Refused("the listener does not know this job's secret")
    yield Step(_proof(secret, b"dialler", mine, theirs) + struct.pack("!H", len(key)) + key, 0)
    return key.decode()


def answer(secret: bytes) -> Side:
    """The listener's side. Raises Refused."""
    opening = yield Step(b"", len(_MAGIC) + _NONCE)
    if opening[: len(_MAGIC)] != _MAGIC:
        raise Refused("not hetccl")
    theirs, mine = opening[len(_MAGIC) :], secrets.token_bytes(_NONCE)
    proof = yield Step(mine + _proof(secret, b"listener", theirs, mine), _PROOF)
    if not hmac.compare_digest(proof, _proof(secret, b"dialler", theirs, mine)):
        raise Refused("the dialler does not know this job's secret")
    (length,) = struct.unpack("!H", (yield Step(b"", 2)))
    if length > LONGEST_KEY:
        raise Refused("the key is too long")
    try:
        return (yield Step(b"", length)).decode()
    except UnicodeDecodeError:
        raise Refused("the key is not text") from None


def _proof(secret: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, role + first + second, "sha256")
