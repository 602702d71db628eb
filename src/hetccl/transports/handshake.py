"""Mutual proof of a shared secret, before anything else is read from a connection.

1. dialler: magic and a nonce    2. listener: a nonce and HMAC-SHA256(secret, "listener", both nonces)
3. dialler: HMAC-SHA256(secret, "dialler", both nonces) and the connection's key

All but the key have fixed lengths; the key is read only from a peer that proved the secret.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct

_MAGIC = b"hetccl/1"
_NONCE = 32
LONGEST_KEY = 512


class Refused(Exception):
    """The other side did not prove the secret, or speaks another protocol."""


def dial(connection: socket.socket, secret: bytes, key: str) -> None:
    """The dialler's side. Raises Refused or OSError."""
    mine = secrets.token_bytes(_NONCE)
    connection.sendall(_MAGIC + mine)
    answer = _exactly(connection, _NONCE + 32)
    theirs, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _proof(secret, b"listener", mine, theirs)):
        raise Refused("the listener does not know this job's secret")
    encoded = key.encode()
    connection.sendall(_proof(secret, b"dialler", mine, theirs) + struct.pack("!H", len(encoded)) + encoded)


def answer(connection: socket.socket, secret: bytes) -> str:
    """The listener's side; returns the key. Raises Refused or OSError."""
    opening = _exactly(connection, len(_MAGIC) + _NONCE)
    if opening[: len(_MAGIC)] != _MAGIC:
        raise Refused("not hetccl")
    theirs, mine = opening[len(_MAGIC) :], secrets.token_bytes(_NONCE)
    connection.sendall(mine + _proof(secret, b"listener", theirs, mine))
    if not hmac.compare_digest(_exactly(connection, 32), _proof(secret, b"dialler", theirs, mine)):
        raise Refused("the dialler does not know this job's secret")
    (length,) = struct.unpack("!H", _exactly(connection, 2))
    if length > LONGEST_KEY:
        raise Refused("the key is too long")
    return _exactly(connection, length).decode()


def _proof(secret: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, role + first + second, "sha256")


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise Refused("the connection ended in the handshake")
        data += more
    return data
