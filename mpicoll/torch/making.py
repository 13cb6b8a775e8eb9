"""How a collective of torch's functions is made: by the kernel if it knows the call, or else checked, bound and carried
out in the group's turn.

A list of tensors travels as one tensor, into which and out of which its tensors are copied. Lists of less than 8 MiB
share one of the group, which serves again for other tensors of these shapes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.calls.plan import Plan
from mpicoll.communicator.engine.progress import nothing
from mpicoll.errors import ArgumentError
from mpicoll.node.loaded import kernel
from mpicoll.torch.caller import Caller, renamed
from mpicoll.torch.group import ProcessGroup
from mpicoll.torch.memory import new
from mpicoll.torch.private import profiler
from mpicoll.torch.work import Complete, Work

if TYPE_CHECKING:
    from mpicoll.node.kernel import BegunCall, PackedList

Given: TypeAlias = torch.Tensor | list[torch.Tensor]

_OF_LISTS = {
    "all_gather_list": "allgather", "gather_list": "gather", "scatter_list": "scatter",
    "reduce_scatter_list": "reduce_scatter", "all_to_all_list": "alltoall",
}  # fmt: skip
"""The collectives of lists. The kernel knows each by a name of its own, because no other function takes lists."""
_LONG = 8 << 20
"""Bytes of a list that travels in memory that the ranks share, and not in the group's. The system gives new memory of
such a length page by page, and that takes several times as long as to copy it."""
_LEAST = 256 << 10  # bytes of the shortest list whose tensors travel as they lie, if they lie one after another


def make(
    caller: Caller | None,
    names: dict[str, str],
    async_op: bool,
    collective: str,
    x: Any,
    out: Any,
    op: Any = None,
    root: int = 0,
    algorithm: str | None = None,
    sendcounts: Sequence[int] | None = None,
    recvcounts: Sequence[int] | None = None,
) -> Work | None:
    """Make a collective from ``x`` to ``out``, or in place, or begin it if ``async_op``. ``names`` are the caller's
    names of the arguments that the Communicator calls by other ones. A rank outside the group makes none."""
    if caller is None:
        return None
    g = caller.group
    calls = g.engine.calls
    if calls is not None and not profiler._is_profiler_enabled and g.progress.idle() and not g.turn.inside:
        # Arguments like those that the kernel knows were checked before.
        given = None if type(x) is list and not x else x
        taken = None if type(out) is list and not out else out
        g.turn.inside = get_ident()
        try:
            if not async_op:
                if calls.run(collective, given, taken, op, root, algorithm, sendcounts, recvcounts):
                    return None
            elif g.any_thread:
                begun = calls.begin(collective, given, taken, op, root, algorithm, sendcounts, recvcounts, None)
                if begun is not None:
                    if not begun.test(True):
                        run = partial(_finish, caller, begun)
                        return g.in_turn(caller.operation, run, _listed(out if "out" in names else x), True, (), True)
                    g.engine.recorder.under_way = False
                    begun.unpack()
                    return Complete(_listed(out if "out" in names else x))
        finally:
            g.turn.inside = 0
    if collective in _OF_LISTS:
        return _make_of_lists(caller, names, async_op, collective, x, out, op, root, algorithm)
    if "out" in names:
        caller.tensor(names["out"], out)
    if names:
        caller.tensor(names.get("x") or names["xs"], x)
    call = collective, x, out, op, root, algorithm, sendcounts, recvcounts
    return _make_new(caller, names, async_op, call, _listed(out if "out" in names else x))


def _finish(caller: Caller, begun: BegunCall) -> None:
    caller.group.engine.finish_call(begun, caller.operation)
    begun.unpack()


def _listed(end: Any) -> list[torch.Tensor]:
    """The tensors of this end of a call, which may be a list, or None."""
    return [] if end is None else [end] if isinstance(end, torch.Tensor) else [*end]


def _make_new(
    caller: Caller,
    names: dict[str, str],
    async_op: bool,
    call: Sequence[Any],
    outs: Sequence[torch.Tensor],
    ins: Sequence[torch.Tensor] = (),
    before: Plan = nothing,
    after: Plan = nothing,
) -> Work | None:
    """Make a call that the kernel does not know. The call is the arguments of the engine's ``plan``."""
    engine, operation = caller.group.engine, caller.operation
    try:
        plan = engine.plan(*call)
    except ArgumentError as e:
        raise renamed(e, operation, names) from None
    engine.keep(plan, call)

    def run(_keep: Any = call) -> None:  # a plan holds addresses: this keeps the memory
        before()
        engine.execute(plan, operation)
        after()

    return caller.group.in_turn(operation, run, outs, async_op, ins)


# -- lists ------------------------------------------------------------------------------------------------------------


class _Whole(NamedTuple):
    """The tensor that travels, and the part of it that belongs to each tensor of a list. It may serve the next call."""

    tensor: torch.Tensor | None
    parts: list[torch.Tensor]
    serves_again: bool

    @property
    def packed(self) -> PackedList | None:
        """Where the list travels, if it is copied."""
        there = self.tensor
        return (there.data_ptr(), there.nbytes, there) if there is not None and self.parts else None


def _make_of_lists(
    caller: Caller, names: dict[str, str], async_op: bool, name: str, x: Any, out: Any, *how: Any
) -> Work | None:
    """Make a collective of which an end is a list. An empty list stands for nothing. The kernel makes the call from now
    on, if each list travels in memory of the group's. ``how`` are operation, root and algorithm."""
    g, collective = caller.group, _OF_LISTS[name]
    x, out = _checked(caller, names, collective, x, out, how[1])
    ins, outs = _listed(x), _listed(out)
    counts: list[list[int]] = []
    if collective == "alltoall" or any(each.shape != ins[0].shape for each in ins):
        counts = [[each.numel() for each in ins], [each.numel() for each in outs]]
        if collective != "alltoall":
            del counts[1]
        collective += "v"
    sent = _one_of(ins, outs) or _whole(g, 0, x, bool(counts))
    came = _one_of(outs, ins) or _whole(g, 1, out, bool(counts))
    call = collective, sent.tensor, came.tensor, *how, *counts
    if async_op or sent.parts or came.parts or sent.tensor is None or came.tensor is None:
        copies = partial(_copy, sent, ins, False), partial(_copy, came, outs, True)
        work = _make_new(caller, names, async_op, call, outs, ins, *copies)
    else:
        work = make(caller, names, False, *call)
    if sent.serves_again and came.serves_again:
        plan = g.engine.plan(*call)
        g.engine.keep(plan, (name, _or_none(x), _or_none(out), *how), (sent.packed, came.packed))
    return work


def _checked(
    caller: Caller, names: dict[str, str], collective: str, x: Any, out: Any, root: int
) -> tuple[Given, Given]:
    """The input and the output, if they are right."""
    table, rank = COLLECTIVES[collective], caller.group.rank()
    given, taken = names.values()
    if not (table.gathers or table.scatters):
        outs = caller.tensors(taken, out, shapes=False, written=True)
        return caller.tensors(given, x, outs[0], shapes=False), outs
    if table.gathers:
        tensor = caller.memory(given, x)
        if not table.gets_at(rank, root):
            return tensor, caller.no_list(taken, out, "destination", root)
        return tensor, caller.tensors(taken, out, tensor, written=True)
    tensor = caller.memory(taken, out)
    if not table.gives_at(rank, root):
        return caller.no_list(given, x, "source", root), tensor
    ins = caller.tensors(given, x, tensor, shapes=not table.reduces)
    if ins[rank].shape != tensor.shape:
        raise caller.error(f"{given}[{rank}]", f"shape {tuple(tensor.shape)}", f"{tuple(ins[rank].shape)}")
    return ins, tensor


def _or_none(given: Any) -> Any:
    """What is given, but None for an empty list."""
    return None if type(given) is list and not given else given


def _one_of(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> _Whole | None:
    """The memory of a long list whose tensors lie one after another, as those of ``chunk`` do, and apart from the
    others."""
    if len(tensors) < 2 or not (first := tensors[0]).is_cpu or first.nbytes * len(tensors) < _LEAST:
        return None
    if kernel is None or not kernel.lie_together(tuple(tensors)):
        return None
    begin, end = first.data_ptr(), tensors[-1].data_ptr() + tensors[-1].nbytes
    for other in others:
        memory = other.untyped_storage()
        if memory.data_ptr() < end and begin < memory.data_ptr() + memory.nbytes():
            return None
    try:
        return _Whole(first.detach().as_strided((sum(x.numel() for x in tensors),), (1,)), [], False)
    except RuntimeError:  # each has a storage of its own
        return None


def _whole(g: ProcessGroup, which: int, given: Given, flat: bool) -> _Whole:
    """What travels in the place of a list of tensors: one with room for all, and its parts, of their shapes. A tensor
    travels itself, unless it must be ``flat`` and cannot be. Of a call's two lists, ``which`` says the one."""
    if isinstance(given, torch.Tensor):
        if not flat:
            return _Whole(given, [], True)
        if given.is_contiguous():
            return _Whole(given.detach().view(-1), [], True)
    tensors = _listed(given)
    if not tensors:
        return _Whole(None, [], True)
    first = tensors[0]
    at = (which, first.dtype, *[x.shape for x in tensors])
    is_free = first.is_cpu and not g.turn.inside  # else a signal's handler calls, while the memory is in use
    known: _Whole | None = g.wholes.get(at) if is_free else None
    if known is not None:
        return known
    counts = [x.numel() for x in tensors]
    nbytes = sum(counts) * first.itemsize
    keeps = is_free and 0 < nbytes < _LONG
    if keeps:
        (memory,) = g.scratch[which].arrays(np.dtype(np.uint8), nbytes)
        whole = torch.from_numpy(memory).view(first.dtype)
    elif first.is_cpu and nbytes >= _LONG:
        whole = new(g, (sum(counts),), first.dtype)
    else:
        whole = first.detach().new_empty(sum(counts))
    parts = [part.view(x.shape) for part, x in zip(torch.split(whole, counts), tensors, strict=True)]
    made = _Whole(whole, parts, keeps and isinstance(given, list))
    if keeps:
        g.wholes.keep(at, made)
    return made


def _copy(whole: _Whole, tensors: list[torch.Tensor], back: bool) -> None:
    """Copy the tensors of a list to their parts, or ``back``."""
    there, parts, _ = whole
    if there is None or not parts:
        return
    if kernel is not None and there.is_cpu and kernel.pack(tuple(tensors), there.data_ptr(), there.nbytes, back):
        return
    for part, tensor in zip(parts, tensors, strict=True):
        target, source = (tensor, part) if back else (part, tensor)
        # A tensor that was made in this mode can be written to only in it.
        with torch.inference_mode() if target.is_inference() else nullcontext():
            target.detach().copy_(source.detach())
