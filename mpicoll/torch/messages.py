"""Messages of one tensor from rank to rank.

``src``, ``dst`` and ``peer`` are global ranks; ``group_src``, ``group_dst`` and ``group_peer`` are ranks of the group,
and ``group`` None is the default group. A rank that is not in the group gets a warning, and sends and receives nothing.
Sender and receiver pass tensors of the same dtype and number of elements, in any layout: a message of another length
raises MessageError where it is received. A message with one tag is not received with another. Wrong arguments raise
ArgumentError before the message starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mpicoll.calls.arguments import as_rank
from mpicoll.communicator.repeated import repeated_function
from mpicoll.errors import ArgumentError
from mpicoll.torch.caller import Caller, caller_of, joined_caller, renamed
from mpicoll.torch.group import GivenGroup
from mpicoll.torch.work import MessageWork, Work

_NAMES = {"x": "tensor", "dest": "group_dst", "source": "group_src"}
"""The Communicator's names of arguments, and the names of them here."""


def send(
    tensor: torch.Tensor, dst: int | None = None, group: GivenGroup = None, tag: int = 0, group_dst: int | None = None
) -> None:
    """Send ``tensor``. Returns when the program may write to it again."""
    caller = caller_of("send", group)
    if caller is not None:
        dest = caller.root("dst", dst, group_dst)
        _refuse_this_rank(caller, "dst", dest)
        made(caller, tensor, dest, tag, False)


def recv(
    tensor: torch.Tensor, src: int | None = None, group: GivenGroup = None, tag: int = 0, group_src: int | None = None
) -> int:
    """Receive into ``tensor``, from any rank if ``src`` and ``group_src`` are None.

    Returns the sender's global rank, or -1 if this rank is not in the group."""
    caller = caller_of("recv", group)
    if caller is None:
        return -1
    sender = caller.source(src, group_src)
    if sender is None:
        work = made(caller, tensor, None, tag, True, MessageWork)
        work.wait()
        sender = work.source
        assert sender is not None
    else:
        _refuse_this_rank(caller, "src", sender)
        made(caller, tensor, sender, tag, True)
    return caller.group.global_rank(sender)


@repeated_function("isend", MessageWork, tensor="x", dst="dest", group_dst="in_group", tag="sendtag")
def isend(
    tensor: torch.Tensor, dst: int | None = None, group: GivenGroup = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """Start to send ``tensor``. The program must not write to it before the Work is complete."""
    caller = caller_of("isend", group)
    if caller is None:
        return None
    return _begun(caller, tensor, caller.root("dst", dst, group_dst), tag, False)


@repeated_function("irecv", MessageWork, tensor="x", src="source", group_src="in_group", tag="recvtag")
def irecv(
    tensor: torch.Tensor, src: int | None = None, group: GivenGroup = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """Start to receive into ``tensor``, from any rank if ``src`` and ``group_src`` are None."""
    caller = caller_of("irecv", group)
    if caller is None:
        return None
    return _begun(caller, tensor, caller.source(src, group_src), tag, True)


class P2POp:
    """One message of a batch. ``op`` is ``isend`` or ``irecv``.

    A message without ``peer`` and ``group_peer`` is refused. So is one in a group that this rank is not in."""

    def __init__(
        self,
        op: Callable[..., Work | None],
        tensor: torch.Tensor,
        peer: int | None = None,
        group: GivenGroup = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op is not isend and op is not irecv:
            raise ArgumentError("P2POp", "op", "mpicoll.torch.isend or mpicoll.torch.irecv", repr(op))
        caller = joined_caller("P2POp", group)
        self.op, self.tensor, self.group, self.tag = op, caller.tensor("tensor", tensor), group, tag
        self.group_peer = caller.root("peer", peer, group_peer)
        self.peer = caller.group.global_rank(self.group_peer)


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Start all messages of the list. Returns a Work for each, in the order of the list.

    All messages are checked before one starts. (torch checks and starts one after another.) The order of the list
    matters only among messages between the same two ranks."""
    if not isinstance(p2p_op_list, list) or not all(isinstance(op, P2POp) for op in p2p_op_list) or not p2p_op_list:
        raise ArgumentError("batch_isend_irecv", "p2p_op_list", "a list of P2POp, at least one", repr(p2p_op_list))
    groups, messages = [], []
    for op in p2p_op_list:
        caller, receives = joined_caller(op.op.__name__, op.group), op.op is irecv
        _check(caller, op.tensor, op.group_peer, op.tag, receives)
        groups.append(caller.group)
        try:
            message = caller.group.engine.message(caller.operation, op.tensor, op.group_peer, op.tag, receives)
        except ArgumentError as e:
            raise renamed(e, caller.operation, _NAMES) from None
        messages.append(message)
    works: dict[int, Work] = {}
    # Receives start first: MPI need not copy a message for which a receive is waiting.
    for first in (irecv, isend):
        for i, op in enumerate(p2p_op_list):
            if op.op is first:
                work = groups[i].engine.start(messages[i], op.tensor, MessageWork)
                assert isinstance(work, MessageWork)
                works[i], work.ranks = work, groups[i].ranks
    return [works[i] for i in range(len(works))]


def made(
    caller: Caller, tensor: Any, peer: int | None, tag: int, receives: bool, kind: type[MessageWork] | None = None
) -> Any:
    """Send a message to the group's rank ``peer``, or receive one from it. With a ``kind`` this only begins it, and
    returns a Work of that kind."""
    engine = caller.group.engine
    if engine.calls is not None and isinstance(tensor, torch.Tensor):
        # What the kernel knows was checked before.
        numbers = (None, None, peer, tag) if receives else (peer, tag, None, None)
        known = engine.calls.message(caller.operation, tensor, *numbers, kind)
        if known is not None:
            return known
    _check(caller, tensor, peer, tag, receives)
    call = caller.operation, tensor, peer, tag, receives
    try:
        return engine.carry(*call) if kind is None else engine.begin(*call, kind)
    except ArgumentError as e:
        raise renamed(e, caller.operation, _NAMES) from None


def _begun(caller: Caller, tensor: Any, peer: int | None, tag: int, receives: bool) -> Work:
    """A message under way, which knows the global ranks of the group."""
    work: MessageWork = made(caller, tensor, peer, tag, receives, MessageWork)
    work.ranks = caller.group.ranks
    return work


def _check(caller: Caller, tensor: Any, peer: int | None, tag: int, receives: bool) -> None:
    """Raise ArgumentError for what a Communicator takes and torch does not: other arrays, and MPI's names of ranks and
    tags, such as MPI.ANY_SOURCE, which are numbers below 0."""
    if peer is not None and as_rank(peer) < 0:
        expected = f"a rank, 0 to {caller.group.size() - 1}"
        raise caller.error("group_src" if receives else "group_dst", expected, repr(peer))
    if type(tag) is not int or tag < 0:
        caller.group.engine.checked_tag(caller.operation, tag)
    if not isinstance(tensor, torch.Tensor):
        caller.tensor("tensor", tensor)  # raises


def _refuse_this_rank(caller: Caller, argument: str, rank: int) -> None:
    """Raise ArgumentError if ``rank`` is this one: a blocking message to oneself would wait for ever."""
    if rank == caller.group.rank():
        raise caller.error(argument, "another rank than this one", f"{caller.group.global_rank(rank)}")
