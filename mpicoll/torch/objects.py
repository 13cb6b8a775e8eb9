"""Collectives and messages of Python objects, which travel pickled.

``group``, ``src``, ``dst``, ``group_src`` and ``group_dst`` mean what they mean in the collectives of tensors, and the
errors are the same. ``weights_only=True`` raises ArgumentError: with it torch would unpickle tensors and simple types
alone. A collective of objects waits for the asynchronous collectives that were called before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mpicoll.errors import MessageError
from mpicoll.torch.caller import Caller, caller_of
from mpicoll.torch.group import GivenGroup


def all_gather_object(object_list: list[Any], obj: Any, group: GivenGroup = None, weights_only: bool = False) -> None:
    """``object_list[r]``, of a list with an element for each rank, becomes rank r's ``obj``."""
    caller = _begin("all_gather_object", group, weights_only)
    if caller is not None:
        _check_list(caller, "object_list", object_list, caller.group.size())
        object_list[:] = _in_turn(caller, lambda: caller.group.comm.allgather_object(obj))


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: GivenGroup = None,
    group_dst: int | None = None,
    weights_only: bool = False,
) -> None:
    """The destination's ``object_gather_list[r]`` becomes rank r's ``obj``.

    The list has an element for each rank. The other ranks pass None or an empty list. ``dst`` is rank 0 if neither
    ``dst`` nor ``group_dst`` is given."""
    caller = _begin("gather_object", group, weights_only)
    if caller is None:
        return
    g, root = caller.group, caller.root("dst", dst, group_dst, default=0)
    if g.rank() == root:
        _check_list(caller, "object_gather_list", object_gather_list, g.size())
    else:
        caller.no_list("object_gather_list", object_gather_list, "destination", root)
    found = _in_turn(caller, lambda: g.comm.gather_object(obj, root))
    if object_gather_list is not None and found is not None:
        object_gather_list[:] = found


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: GivenGroup = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """The elements of every rank's ``object_list`` become those of the source's.

    Raises MessageError where the list has another length than the source's. ``src`` is rank 0 if neither ``src`` nor
    ``group_src`` is given. ``device`` changes nothing here."""
    caller = _begin("broadcast_object_list", group, weights_only)
    if caller is None:
        return
    _check_list(caller, "object_list", object_list, None)
    g, root = caller.group, caller.root("src", src, group_src, default=0)
    sent = _in_turn(caller, lambda: g.comm.bcast_object(object_list, root))
    _replace(caller, object_list, sent, g.global_rank(root))


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: GivenGroup = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """``scatter_object_output_list[0]`` of rank r becomes the source's ``scatter_object_input_list[r]``.

    The source's list has an element for each rank; what the others pass does not count. The output list has at least
    one element. ``src`` is rank 0 if neither ``src`` nor ``group_src`` is given."""
    caller = _begin("scatter_object_list", group, weights_only)
    if caller is None:
        return
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        expected = "a list of at least one, whose first element is replaced"
        raise caller.error("scatter_object_output_list", expected, repr(scatter_object_output_list))
    g, root = caller.group, caller.root("src", src, group_src, default=0)
    if g.rank() == root:
        _check_list(caller, "scatter_object_input_list", scatter_object_input_list, g.size())
    scatter_object_output_list[0] = _in_turn(caller, lambda: g.comm.scatter_object(scatter_object_input_list, root))


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: GivenGroup = None,
    device: torch.device | None = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> None:
    """Send the objects of the list. ``device`` and ``use_batch`` change nothing here."""
    caller = _begin("send_object_list", group, weights_only)
    if caller is not None:
        _check_list(caller, "object_list", object_list, None)
        g, dest = caller.group, caller.root("dst", dst, group_dst)
        # The message says who sends it: a receiver from any rank must learn that.
        g.comm.send_object((g.rank(), object_list), dest)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: GivenGroup = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> int:
    """Receive the elements of ``object_list``, from any rank if ``src`` and ``group_src`` are None.

    Returns the sender's global rank, or -1 if this rank is not in the group. Raises MessageError if another number of
    objects arrives. ``device`` and ``use_batch`` change nothing here."""
    caller = _begin("recv_object_list", group, weights_only)
    if caller is None:
        return -1
    _check_list(caller, "object_list", object_list, None)
    g = caller.group
    sender, sent = g.comm.recv_object(caller.source(src, group_src))
    _replace(caller, object_list, sent, g.global_rank(sender))
    return g.global_rank(sender)


def _begin(operation: str, group: GivenGroup, weights_only: bool) -> Caller | None:
    caller = caller_of(operation, group)
    if caller is not None and weights_only:
        raise caller.error("weights_only", "False: objects travel pickled here", repr(weights_only))
    return caller


def _check_list(caller: Caller, argument: str, given: Any, size: int | None) -> None:
    """Raise ArgumentError if ``given`` is no list, or has not ``size`` elements. None allows any number."""
    if not isinstance(given, list) or (size is not None and len(given) != size):
        expected = "a list" if size is None else f"a list of {size}, one for each rank of the group"
        raise caller.error(argument, expected, f"{len(given)}" if isinstance(given, list) else repr(given))


def _replace(caller: Caller, object_list: list[Any], sent: list[Any], source: int) -> None:
    """Replace the elements of ``object_list``, if there are as many as the rank ``source`` sent."""
    if len(sent) != len(object_list):
        raise MessageError(
            f"{caller.operation}: object_list: expected {len(sent)} objects, as rank {source} sends; "
            f"given {len(object_list)}"
        )
    object_list[:] = sent


def _in_turn(caller: Caller, run: Callable[[], Any]) -> Any:
    """What ``run`` returns, after all that is pending in the group."""
    found: list[Any] = []
    caller.group.in_turn(caller.operation, lambda: found.append(run()), [], False)
    return found[0]
