"""Collectives and messages of Python objects, with torch.distributed's names and signatures. Objects are pickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mpicoll.errors import ArgumentError, MessageError
from mpicoll.torch.arguments import group_rank
from mpicoll.torch.group import ProcessGroup, member

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None, weights_only: bool = False) -> None:
    """``object_list[r]`` becomes rank r's ``obj``."""
    _pickled("all_gather_object", weights_only)
    g = member(group, "all_gather_object")
    if g is not None:
        _list_of(object_list, "all_gather_object", "object_list", g.size())
        object_list[:] = _now(g, "all_gather_object", lambda: g.comm.allgather_object(obj))


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
    weights_only: bool = False,
) -> None:
    """The destination's ``object_gather_list[r]`` becomes rank r's ``obj``; the other ranks pass no list."""
    _pickled("gather_object", weights_only)
    g = member(group, "gather_object")
    if g is None:
        return
    root = group_rank(g, "gather_object", "dst", dst, group_dst, default=0)
    if g.rank() == root:
        _list_of(object_gather_list, "gather_object", "object_gather_list", g.size())
    elif object_gather_list:
        expected = (
            f"None on rank {g.global_rank(g.rank())}: only the destination, rank {g.global_rank(root)}, has a list"
        )
        raise ArgumentError("gather_object", "object_gather_list", expected, f"a list of {len(object_gather_list)}")
    found = _now(g, "gather_object", lambda: g.comm.gather_object(obj, root))
    if object_gather_list is not None and found is not None:
        object_gather_list[:] = found


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """Every rank's ``object_list`` becomes the source's; their lengths must be equal. ``device`` is not needed."""
    _pickled("broadcast_object_list", weights_only)
    g = member(group, "broadcast_object_list")
    if g is None:
        return
    _list_of(object_list, "broadcast_object_list", "object_list", None)
    root = group_rank(g, "broadcast_object_list", "src", src, group_src, default=0)
    sent = _now(g, "broadcast_object_list", lambda: g.comm.bcast_object(object_list, root))
    _take("broadcast_object_list", object_list, sent, g.global_rank(root))


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """``scatter_object_output_list[0]`` becomes the source's ``scatter_object_input_list[rank]``."""
    _pickled("scatter_object_list", weights_only)
    g = member(group, "scatter_object_list")
    if g is None:
        return
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        expected = "a list of at least one, whose first element is replaced"
        given = repr(scatter_object_output_list)
        raise ArgumentError("scatter_object_list", "scatter_object_output_list", expected, given)
    root = group_rank(g, "scatter_object_list", "src", src, group_src, default=0)
    if g.rank() == root:
        _list_of(scatter_object_input_list, "scatter_object_list", "scatter_object_input_list", g.size())
    mine = _now(g, "scatter_object_list", lambda: g.comm.scatter_object(scatter_object_input_list, root))
    scatter_object_output_list[0] = mine


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Any = None,
    device: torch.device | None = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> None:
    """Send the objects; ``device`` and ``use_batch`` make no difference here."""
    _pickled("send_object_list", weights_only)
    g = member(group, "send_object_list")
    if g is not None:
        _list_of(object_list, "send_object_list", "object_list", None)
        # The sender says who it is: whoever receives from any rank must be told.
        g.comm.send_object((g.rank(), object_list), group_rank(g, "send_object_list", "dst", dst, group_dst))


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> int:
    """Receive as many objects as the list holds, from any rank if ``src`` is None; returns the sender's rank."""
    _pickled("recv_object_list", weights_only)
    g = member(group, "recv_object_list")
    if g is None:
        return -1
    _list_of(object_list, "recv_object_list", "object_list", None)
    of = None
    if src is not None or group_src is not None:
        of = group_rank(g, "recv_object_list", "src", src, group_src)
    sender, sent = g.comm.recv_object(of)
    _take("recv_object_list", object_list, sent, g.global_rank(sender))
    return g.global_rank(sender)


def _pickled(operation: str, weights_only: bool) -> None:
    if weights_only:
        raise ArgumentError(operation, "weights_only", "False: objects travel pickled here", repr(weights_only))


def _list_of(given: Any, operation: str, argument: str, size: int | None) -> None:
    if not isinstance(given, list) or (size is not None and len(given) != size):
        expected = "a list" if size is None else f"a list of {size}, one a rank of the group"
        raise ArgumentError(operation, argument, expected, f"{len(given)}" if isinstance(given, list) else repr(given))


def _take(operation: str, object_list: list[Any], sent: list[Any], source: int) -> None:
    if len(sent) != len(object_list):
        raise MessageError(
            f"{operation}: object_list: expected {len(sent)} objects, as rank {source} sends; given {len(object_list)}"
        )
    object_list[:] = sent


def _now(g: ProcessGroup, operation: str, call: Callable[[], Any]) -> Any:
    """The result of ``call``, behind what is pending in the group."""
    found: list[Any] = []
    g.do(operation, lambda: found.append(call()), [], async_op=False)
    return found[0]
