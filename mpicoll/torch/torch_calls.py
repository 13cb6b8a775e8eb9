"""A group's collectives and messages, by the names and with the arguments with which torch calls them.

Python calls them (torch.distributed's functions), and so does C++ (functional collectives, DDP's reducer). torch itself
passes lists and an object of options: ``group.broadcast([tensor], options)``. The simple forms that torch's own groups
have for programs, such as ``group.broadcast(tensor, 0)``, are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from time import monotonic
from typing import Any

import torch
from torch.distributed import ReduceOp

from mpicoll.errors import ArgumentError, TimeoutError
from mpicoll.torch import barriers, collectives, ddp
from mpicoll.torch.caller import GivenOp, caller_of
from mpicoll.torch.group import ProcessGroup
from mpicoll.torch.messages import made
from mpicoll.torch.private import CallbackWork, uncompiled, work_of_future
from mpicoll.torch.work import CollectiveWork, Complete, MessageWork, Work, seconds_of

Tensors = Sequence[torch.Tensor]
Method = Callable[..., Any]


@dataclass(frozen=True)
class Options:
    """What the group's methods read of torch's options, whose names these are."""

    reduceOp: GivenOp = ReduceOp.SUM
    rootRank: Any = 0
    asyncOp: bool = True
    timeout: timedelta = timedelta(0)


DEFAULTS = Options()
_NO_OPTIONS = int, ReduceOp, ReduceOp.RedOpType, timedelta  # what ends torch's simple forms in the place of options


def operation(method: Method) -> Method:
    """Makes a method one that torch calls. It returns a Work, several of them, or None if it is complete, and torch
    gets what the group's ``handle`` makes of that."""

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if given and isinstance(given[-1], _NO_OPTIONS):
            expected = "torch's options, such as dist.BroadcastOptions()"
            raise ArgumentError(method.__name__, "opts", expected, repr(given[-1]))
        work = method(self, *given, **named)
        if work is None:
            self.calls += 1
            return FINISHED
        return self.handle(work)

    call.is_operation = True  # type: ignore[attr-defined]
    return call


# -- mpicoll's Works as torch's ----------------------------------------------------------------------------------------

# C++ (functional collectives, DDP's reducer, Join) may keep a Work for longer than Python does. A class of Python's
# that is derived from torch's Work would lose its Python half then. torch's PythonCallbackWork would not: it waits by
# calling a function, raises what that raises, and has a future of its own. So C++ gets one of those for each Work.


_nothing: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
_nothing.set_result([])
FINISHED = work_of_future(_nothing)
"""What every synchronous call returns. It is all C++, so to wait for it costs the least."""


def in_future(work: CollectiveWork) -> Any:
    """A Work for C++ that asks for its future, and goes on when its streams have come to that. A Handle's future knows
    no streams."""
    return work_of_future(work.get_future())


class Handle(CallbackWork):  # type: ignore[misc]
    """A Work of mpicoll's as one of torch's. Python's questions go to mpicoll's Work.

    Python's future of a collective and C++'s complete even if nobody waits."""

    def __init__(self, ours: Work) -> None:
        self._ours = ours
        if isinstance(ours, CollectiveWork):
            self._complete_with(ours)
        elif isinstance(ours, Complete):
            CallbackWork.__init__(self, lambda _: True)
            CallbackWork.get_future(self).set_result(ours.tensors)
        else:
            CallbackWork.__init__(self, lambda _: ours.wait())

    def _complete_with(self, ours: CollectiveWork) -> None:
        def wait(_: timedelta) -> bool:
            ours.wait()
            future.wait()  # otherwise C++ might complete its future before it has a result
            return True

        def complete() -> None:
            if ours.error is None:
                future.set_result(ours.join())
            with suppress(Exception):  # the wait raises the failure, and stores it in C++'s future on the way
                CallbackWork.wait(self)

        CallbackWork.__init__(self, wait)
        future = CallbackWork.get_future(self)
        ours.when_complete(complete)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return self._ours.wait(timeout)


def _asked(name: str) -> Callable[[Handle], Any]:
    return lambda self: getattr(self._ours, name)()


for _name in ("is_completed", "is_success", "exception", "synchronize", "get_future", "result", "source_rank"):
    setattr(Handle, _name, _asked(_name))
Handle._source_rank = Handle.source_rank


class Several(Work):
    """Several operations as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        seconds = seconds_of(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        for work in self._works:
            work.wait(None if deadline is None else timedelta(seconds=max(0.0, deadline - monotonic())))
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next(filter(None, (work.exception() for work in self._works)), None)


# -- the group --------------------------------------------------------------------------------------------------------


@uncompiled
class TorchCalls(ProcessGroup):
    """A group with torch's methods for collectives and messages."""

    reducer_waits: bool  # whether the backward pass waits a moment for each of DDP's all-reduces
    buckets: ddp.Buckets  # DDP's, which move to shared memory
    calls = 0
    _coalescing: list[Work] | None = None  # the operations since ``start_coalescing``; None while nothing is coalesced

    # -- what a call returns ------------------------------------------------------------------------------------------

    def handle(self, given: Any) -> Any:
        """A Work that torch may keep for that of a collective, None after a synchronous one, or those of several."""
        self.calls += 1
        if type(given) is list:
            given = self._together([work for work in given if work is not None])
        if given is None:
            return FINISHED
        if self._coalescing is not None:
            self._coalescing.append(given)
        return Handle(given) if isinstance(given, Work) else given

    def _together(self, works: list[CollectiveWork | Complete]) -> Work | None:
        """One more collective in the queue, which raises what one of these raised."""

        def run() -> None:
            for work in works:
                work.wait()

        tensors = [tensor for work in works for tensor in work.tensors]
        return self.in_turn("coalesced", run, tensors, True) if works else None

    def start_coalescing(self, device: torch.device | None = None) -> None:
        self._coalescing = []

    def end_coalescing(self, device: torch.device | None = None) -> Any:
        works, self._coalescing = self._coalescing or [], None
        return Handle(works[0] if len(works) == 1 else Several(works))

    # torch calls a backend by those names, and a group by these.
    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    def _set_sequence_number_for_group(self) -> None:
        self.calls = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.calls

    # -- collectives --------------------------------------------------------------------------------------------------

    @operation
    def allreduce(self, tensors: Tensors, opts: Any = DEFAULTS) -> Any:
        tensor = _only(tensors, "all_reduce")
        if not opts.asyncOp:
            return collectives.all_reduce(tensor, opts.reduceOp, self)
        is_bucket = ddp.called_by_reducer()
        if is_bucket:
            self.buckets.take(tensor, self)
        work = collectives.all_reduce(tensor, opts.reduceOp, self, True)
        if is_bucket and isinstance(work, CollectiveWork) and work.thread is not None:
            self.progress.hurry()
            if self.reducer_waits:
                work.complete(ddp.MOMENT)
            if work.guard and not work.is_completed():
                return in_future(work)
        return work

    @operation
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = DEFAULTS) -> Any:
        return [collectives.all_reduce(tensor, opts.reduceOp, self, opts.asyncOp) for tensor in tensors]

    @operation
    def reduce(self, tensors: Tensors, opts: Any = DEFAULTS) -> Any:
        tensor = _only(tensors, "reduce")
        return collectives.reduce(tensor, None, opts.reduceOp, self, opts.asyncOp, group_dst=opts.rootRank)

    @operation
    def broadcast(self, tensors: Tensors, opts: Any = DEFAULTS) -> Any:
        tensor = _only(tensors, "broadcast")
        return collectives.broadcast(tensor, None, self, opts.asyncOp, group_src=opts.rootRank)

    @operation
    def allgather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = DEFAULTS) -> Any:
        outs, tensor = _only(output_tensors, "all_gather"), _only(input_tensors, "all_gather")
        return collectives.all_gather(outs, tensor, self, opts.asyncOp)

    @operation
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = DEFAULTS) -> Any:
        return collectives.all_gather_into_tensor(output, input, self, opts.asyncOp)

    @operation
    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = DEFAULTS) -> Any:
        pairs = zip(zip(*outputs, strict=True), inputs, strict=True)
        return [collectives.all_gather(outs, tensor, self, opts.asyncOp) for outs, tensor in pairs]

    @operation
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = DEFAULTS) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        return [collectives.all_gather_into_tensor(out, x, self, opts.asyncOp) for out, x in pairs]

    @operation
    def gather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = DEFAULTS) -> Any:
        outs = output_tensors[0] if output_tensors else None
        tensor = _only(input_tensors, "gather")
        return collectives.gather(tensor, outs, None, self, opts.asyncOp, group_dst=opts.rootRank)

    @operation
    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = DEFAULTS) -> Any:
        outs = None
        if self.rank() == opts.rootRank:
            elements = self.size() * input.numel()
            if output.numel() != elements or not output.is_contiguous():
                expected = f"a contiguous tensor of {elements} elements"
                raise ArgumentError("gather_single", "gather_tensor", expected, f"{tuple(output.shape)}")
            outs = [*output.view(self.size(), *input.shape)]
        return collectives.gather(input, outs, None, self, opts.asyncOp, group_dst=opts.rootRank)

    @operation
    def scatter(self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = DEFAULTS) -> Any:
        ins = input_tensors[0] if input_tensors else None
        tensor = _only(output_tensors, "scatter")
        return collectives.scatter(tensor, ins, None, self, opts.asyncOp, group_src=opts.rootRank)

    @operation
    def reduce_scatter(self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = DEFAULTS) -> Any:
        output, ins = _only(output_tensors, "reduce_scatter"), _only(input_tensors, "reduce_scatter")
        return collectives.reduce_scatter(output, ins, opts.reduceOp, self, opts.asyncOp)

    @operation
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = DEFAULTS) -> Any:
        return collectives.reduce_scatter_tensor(output, input, opts.reduceOp, self, opts.asyncOp)

    @operation
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = DEFAULTS) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        return [collectives.reduce_scatter_tensor(out, x, opts.reduceOp, self, opts.asyncOp) for out, x in pairs]

    @operation
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = DEFAULTS) -> Any:
        return collectives.all_to_all(output_tensors, input_tensors, self, opts.asyncOp)

    @operation
    def all_to_all_single(
        self, output: Any, input: Any, output_split_sizes: Any, input_split_sizes: Any, opts: Any = DEFAULTS
    ) -> Any:
        sizes = output_split_sizes, input_split_sizes
        return collectives.all_to_all_single(output, input, *sizes, self, opts.asyncOp)

    @operation
    def barrier(self, opts: Any = DEFAULTS) -> Any:
        if opts.asyncOp or opts.timeout <= timedelta(0):  # torch passes a negative one if none is given
            return collectives.barrier(self, opts.asyncOp)
        work = collectives.barrier(self, async_op=True)
        assert work is not None
        try:
            work.wait(opts.timeout)
        except TimeoutError:
            raise TimeoutError(f"barrier: not all ranks came within {opts.timeout}") from None
        return None

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        barriers.monitored_barrier(self, timeout, wait_all_ranks)

    gather_into_tensor = gather_single
    # torch's names before 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- messages -----------------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dstRank: int, tag: int) -> Any:
        return self._message("send", tensors, dstRank, tag, False)

    def recv(self, tensors: Tensors, srcRank: int | None, tag: int) -> Any:
        return self._message("recv", tensors, srcRank, tag, True)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        return self.recv(tensors, None, tag)

    def _message(self, operation: str, tensors: Tensors, peer: int | None, tag: int, receives: bool) -> Handle:
        caller: Any = self.callers.get(operation) or caller_of(operation, self)
        # torch itself makes the global rank of the group's.
        work: MessageWork = made(caller, _only(tensors, operation), peer, tag, receives, MessageWork)
        if self._coalescing is not None:
            self._coalescing.append(work)
        return Handle(work)


def _only(given: Sequence[Any], operation: str) -> Any:
    """The one element of a list. torch passes lists for the sake of NCCL's several GPUs of one process, and a tensor
    where DistributedDataParallel looks for unused parameters."""
    if isinstance(given, torch.Tensor):
        return given
    if isinstance(given, (list, tuple)) and len(given) == 1:
        return given[0]
    shown = f"{len(given)}" if isinstance(given, (list, tuple)) else repr(given)[:100]
    raise ArgumentError(operation, "tensors", "one tensor", shown)
