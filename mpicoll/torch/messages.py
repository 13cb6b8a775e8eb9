"""Point-to-point messages of tensors, with torch.distributed's names and signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mpicoll.communicator.messages import Request
from mpicoll.errors import ArgumentError
from mpicoll.torch.arguments import group_rank, tensor_of
from mpicoll.torch.group import ProcessGroup, member, renamed
from mpicoll.torch.work import MessageWork, Work

__all__ = ["P2POp", "batch_isend_irecv", "incoming", "irecv", "isend", "outgoing", "recv", "send"]


def send(
    tensor: torch.Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> None:
    """Send the tensor; returns when it may be overwritten."""
    g = member(group, "send")
    if g is not None:
        to = group_rank(g, "send", "dst", dst, group_dst)
        _not_oneself(g, "send", "dst", to)
        outgoing(g, "send", tensor, to, tag)().wait()


def recv(
    tensor: torch.Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> int:
    """Receive into the tensor, from any rank if ``src`` is None; returns the sender's rank, -1 outside the group."""
    g = member(group, "recv")
    if g is None:
        return -1
    of = _source(g, "recv", src, group_src)
    if of is not None:
        _not_oneself(g, "recv", "src", of)
    request = incoming(g, "recv", tensor, of, tag)()
    request.wait()
    assert request.source is not None
    return g.global_rank(request.source)


def isend(
    tensor: torch.Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """Start to send the tensor, which must not be written to before the Work is complete."""
    g = member(group, "isend")
    if g is None:
        return None
    to = group_rank(g, "isend", "dst", dst, group_dst)
    return MessageWork(outgoing(g, "isend", tensor, to, tag)(), g.global_rank)


def irecv(
    tensor: torch.Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """Start to receive into the tensor, from any rank if ``src`` is None."""
    g = member(group, "irecv")
    if g is None:
        return None
    of = _source(g, "irecv", src, group_src)
    return MessageWork(incoming(g, "irecv", tensor, of, tag)(), g.global_rank)


class P2POp:
    """One message of a batch. ``op`` is ``isend`` or ``irecv``, ``peer`` a global rank, ``group_peer`` the group's."""

    def __init__(
        self,
        op: Callable[..., Work | None],
        tensor: torch.Tensor,
        peer: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ArgumentError("P2POp", "op", "mpicoll.torch.isend or mpicoll.torch.irecv", repr(op))
        self.op, self.tensor, self.group, self.tag = op, tensor_of(tensor, "P2POp", "tensor"), group, tag
        g = member(group, "P2POp")
        if g is None:
            raise ArgumentError("P2POp", "group", "a group that this rank is in", repr(group))
        self.group_peer = group_rank(g, "P2POp", "peer", peer, group_peer)
        self.peer = g.global_rank(self.group_peer)

    def __repr__(self) -> str:
        return f"P2POp({self.op.__name__}, peer={self.peer}, {tuple(self.tensor.shape)}, {self.tensor.dtype})"


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Start all the messages at once; the order of the list does not matter between different pairs of ranks."""
    if not isinstance(p2p_op_list, list) or not all(isinstance(op, P2POp) for op in p2p_op_list) or not p2p_op_list:
        raise ArgumentError("batch_isend_irecv", "p2p_op_list", "a list of P2POp, at least one", repr(p2p_op_list))
    # Everything is checked before anything starts. Receives start first: a message that finds its receive waiting
    # needs no copy.
    starts = [_checked(op) for op in p2p_op_list]
    order = sorted(range(len(starts)), key=lambda i: p2p_op_list[i].op is isend)
    works = {i: starts[i]() for i in order}
    return [works[i] for i in range(len(starts))]


def _checked(op: P2POp) -> Callable[[], Work]:
    g = member(op.group, op.op.__name__)
    assert g is not None
    start = (outgoing if op.op is isend else incoming)(g, op.op.__name__, op.tensor, op.group_peer, op.tag)
    return lambda: MessageWork(start(), g.global_rank)


def outgoing(g: ProcessGroup, operation: str, tensor: Any, to: int, tag: int) -> Callable[[], Request]:
    """What starts a message whose arguments are found right."""
    try:
        return g.comm.outgoing(operation, tensor_of(tensor, operation, "tensor"), to, tag)
    except ArgumentError as e:
        raise renamed(e, operation, {"x": "tensor", "dest": "group_dst"}) from None


def incoming(g: ProcessGroup, operation: str, tensor: Any, of: int | None, tag: int) -> Callable[[], Request]:
    """What starts to receive a message, with arguments that are found right."""
    try:
        return g.comm.incoming(operation, tensor_of(tensor, operation, "tensor"), of, tag)
    except ArgumentError as e:
        raise renamed(e, operation, {"x": "tensor", "source": "group_src"}) from None


def _source(g: ProcessGroup, operation: str, src: int | None, group_src: int | None) -> int | None:
    if src is None and group_src is None:
        return None
    return group_rank(g, operation, "src", src, group_src)


def _not_oneself(g: ProcessGroup, operation: str, argument: str, rank: int) -> None:
    """A blocking message to oneself would wait for ever."""
    if rank == g.rank():
        raise ArgumentError(operation, argument, "another rank than this one", f"{g.global_rank(rank)}")
