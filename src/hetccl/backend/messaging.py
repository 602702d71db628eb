"""Point to point: messages between two ranks, or from a rank to itself."""

from __future__ import annotations

from ..runtime.call import Call
from ..runtime.marshal import reading, writing
from ..runtime.work import Work
from .base import Base, Tensors


class Messaging(Base):
    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> Work:
        (tensor,) = tensors
        call = self._message("send", [tensor], f", to rank {peer}, tag {tag}", peer)
        return self._note(self._caller.send(call, reading([tensor]).data, peer, tag))

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> Work:
        call = self._message("recv", tensors, f", from rank {peer}, tag {tag}", peer)
        target = writing(list(tensors))
        return self._note(self._caller.receive(call, target.data, peer, tag, target.back))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        call = self._call("recv", tensors, None, f", from any rank, tag {tag}", numbered=False)
        target = writing(list(tensors))
        return self._note(self._caller.receive(call, target.data, None, tag, target.back))

    def _message(self, name: str, tensors: Tensors, detail: str, peer: int) -> Call:
        call = self._call(name, tensors, None, detail, numbered=False)
        if not 0 <= peer < self.size():
            raise call.refusal(f"rank {peer} is not in the group; pass one of 0 to {self.size() - 1}")
        return call
