"""The process group that torch.distributed makes for ``backend="mpicoll"``.

torch calls its methods from Python, and from C++ through the binding (functional collectives, DDP's reducer).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mpicoll.communicator.communicator import Communicator
from mpicoll.communicator.messages import Request
from mpicoll.errors import ArgumentError, LaunchError, StateError, TimeoutError
from mpicoll.launch import lifetime
from mpicoll.torch import barriers, collectives, reducer
from mpicoll.torch.arguments import checked_timeout
from mpicoll.torch.device_backend import DeviceBackend, serve_within, stays_torchs
from mpicoll.torch.group import ProcessGroup, world
from mpicoll.torch.handles import Handle, finished, handle_of
from mpicoll.torch.messages import incoming, outgoing
from mpicoll.torch.work import CollectiveWork, MessageWork, Work

__all__ = ["RegisteredGroup", "make"]

_TorchsGroup: Any = dist.ProcessGroup  # the stubs know neither its overloads nor what C++ calls

Tensors = Sequence[torch.Tensor]

_FINISHED = finished()
"""The Work of every synchronous call."""


def make(options: Any, backend_options: Any = None) -> RegisteredGroup | DeviceBackend:
    """The group that torch asks for, or what serves some devices of torch's own. Collective among its ranks."""
    shared = stays_torchs()
    everybody = lifetime.checked_world()
    members = list(options.global_ranks_in_group)  # none: the default group, of all ranks
    size = everybody.size if members else options.group_size
    rank = members[options.group_rank] if members else options.group_rank
    for argument, given, actual in (("world_size", size, everybody.size), ("rank", rank, everybody.rank)):
        if given != actual:
            raise LaunchError(
                f"init_process_group: {argument}={given} was given, but MPI says {actual}: start the ranks with "
                "`mpicoll run -n N script.py`, mpirun or srun, and use init_method='mpi://'"
            )
    from mpicoll.fabrics.mpi import MPIFabric

    comm = Communicator(MPIFabric.of_world(members) if members else None)
    g = RegisteredGroup(comm, members or range(size), options.group_id, options.timeout, options.store)
    if not members:
        g.local_rank = comm.node.rank
    return DeviceBackend(g) if shared else g


class RegisteredGroup(ProcessGroup, _TorchsGroup):  # type: ignore[misc]
    """A group of mpicoll's that is one of torch's too. Methods and their arguments are torch's."""

    supports_coalescing = True
    supports_splitting = True
    supports_time_estimate = False
    options = None
    """Of a backend, of which ours has none."""

    def __init__(self, comm: Communicator, ranks: Sequence[int], name: str, timeout: timedelta, store: Any) -> None:
        _TorchsGroup.__init__(self, comm.rank, comm.size)
        self._name, self._desc, self._store = name, "", store
        self._calls = self._splits = 0
        self._together: list[Work] | None = None
        ProcessGroup.__init__(self, comm, ranks, name, timeout)
        self.reducer_waits = reducer.waits()
        """Whether a backward pass waits a moment for each of DDP's all-reduces."""
        serve_within(self)
        world().registered.append(self)

    # -- what it is called --------------------------------------------------------------------------------------------

    @property
    def group_name(self) -> str:
        """torch's name of the group."""
        return self._name

    @group_name.setter
    def group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        """torch's description of the group."""
        return self._desc

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    # C++ asks by these names.
    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    def getGroupName(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._desc

    def getBackendName(self) -> str:
        return "mpicoll"

    def getRank(self) -> int:
        return self.comm.rank

    def getSize(self) -> int:
        return self.comm.size

    def get_group_store(self) -> Any:
        return self._store

    def _get_backend(self, device: torch.device) -> RegisteredGroup:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _has_hooks(self) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        self._calls = 0

    def _get_sequence_number_for_group(self) -> int:
        """The number of collectives that this rank has called."""
        return self._calls

    def set_timeout(self, timeout: timedelta) -> None:
        """The bound of ``monitored_barrier``."""
        checked_timeout("set_timeout", timeout)
        self.timeout = timeout

    _set_default_timeout = set_timeout

    # -- groups made of this one --------------------------------------------------------------------------------------

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> RegisteredGroup | None:
        """A group of these ranks of the group, in this order; None on the others. Collective among them alone."""
        checked_timeout("split_group", timeout)
        self._splits += 1
        comm = self.comm.subset(ranks)
        if comm is None:
            return None
        name = group_name or f"{self._name}:split:{self._splits}"
        part = RegisteredGroup(comm, [self.ranks[r] for r in ranks], name, timeout or self.timeout, self._store)
        part._desc = group_desc or ""
        return part

    splitGroup = split_group

    def comm_split_count(self) -> int:
        """Of a backend: the number of groups made of this one."""
        return self._splits

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Nothing: ranks are connected from the start."""

    def perform_nocolor_split(self, device: Any = None) -> None:
        """Nothing: ranks that are not in a group need not take part in making it."""

    # -- how a call becomes one of ours -------------------------------------------------------------------------------

    def _work(self, work: Work | None) -> Any:
        """Our Work as one that torch may keep."""
        self._calls += 1
        if work is None:
            return _FINISHED
        if self._together is not None:
            self._together.append(work)
        return handle_of([work])

    def _all(self, works: Sequence[Work | None], tensors: Tensors) -> Any:
        """One Work for several collectives: the last in the queue, which raises what one of them raised."""
        under_way = [work for work in works if work is not None]

        def look() -> None:
            for work in under_way:
                work.wait()

        return self._work(self._do(look, tensors, True) if under_way else None)

    def _start_coalescing(self, device: torch.device | None = None) -> None:
        self._together = []

    def _end_coalescing(self, device: torch.device | None = None) -> Any:
        works, self._together = self._together or [], None
        return handle_of(works)

    # -- collectives --------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        op, async_op = (dist.ReduceOp.SUM, True) if opts is None else (opts.reduceOp, opts.asyncOp)
        tensor = _only(tensors, "all_reduce")
        work = collectives.all_reduce(tensor, op, self, async_op)
        if self.reducer_waits and isinstance(work, CollectiveWork) and reducer.called_by_reducer():
            work.done.wait(reducer.MOMENT)
            if work.is_completed():
                self._calls += 1
                return finished(work.result())
        return self._work(work)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> Any:
        works = [collectives.all_reduce(t, opts.reduceOp, self, opts.asyncOp) for t in tensors]
        return self._all(works, tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        tensor = _only(tensors, "reduce")
        return self._work(collectives.reduce(tensor, None, opts.reduceOp, self, opts.asyncOp, group_dst=opts.rootRank))

    def broadcast(self, tensors: Tensors, opts: Any) -> Any:
        tensor = _only(tensors, "broadcast")
        return self._work(collectives.broadcast(tensor, None, self, opts.asyncOp, group_src=opts.rootRank))

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        outs, tensor = _only(outputs, "all_gather"), _only(inputs, "all_gather")
        return self._work(collectives.all_gather(outs, tensor, self, _is_async(opts)))

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        return self._work(collectives.all_gather_into_tensor(output, input, self, _is_async(opts)))

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        works = [
            collectives.all_gather([outs[k] for outs in outputs], tensor, self, _is_async(opts))
            for k, tensor in enumerate(inputs)
        ]
        return self._all(works, [t for outs in outputs for t in outs])

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        works = [collectives.all_gather_into_tensor(o, i, self, _is_async(opts)) for o, i in pairs]
        return self._all(works, outputs)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Any:
        outs = outputs[0] if outputs else None
        tensor = _only(inputs, "gather")
        return self._work(collectives.gather(tensor, outs, None, self, opts.asyncOp, group_dst=opts.rootRank))

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Any:
        ins = inputs[0] if inputs else None
        tensor = _only(outputs, "scatter")
        return self._work(collectives.scatter(tensor, ins, None, self, opts.asyncOp, group_src=opts.rootRank))

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Any:
        output, ins = _only(outputs, "reduce_scatter"), _only(inputs, "reduce_scatter")
        return self._work(collectives.reduce_scatter(output, ins, opts.reduceOp, self, opts.asyncOp))

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        return self._work(collectives.reduce_scatter_tensor(output, input, opts.reduceOp, self, opts.asyncOp))

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        works = [collectives.reduce_scatter_tensor(o, i, opts.reduceOp, self, opts.asyncOp) for o, i in pairs]
        return self._all(works, outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        return self._work(collectives.all_to_all(outputs, inputs, self, _is_async(opts)))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> Any:
        of, to = output_split_sizes or None, input_split_sizes or None  # torch's word for equal blocks is []
        return self._work(collectives.all_to_all_single(output, input, of, to, self, _is_async(opts)))

    def barrier(self, opts: Any = None) -> Any:
        if opts is None or opts.asyncOp or opts.timeout <= timedelta(0):  # torch's default is less than nothing
            return self._work(barriers.barrier(self, _is_async(opts)))
        handle = self._work(barriers.barrier(self, async_op=True))
        try:
            handle.wait(opts.timeout)
        except TimeoutError:
            raise TimeoutError(f"barrier: not all ranks came within {opts.timeout}") from None
        return _FINISHED

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        barriers.monitored_barrier(self, timeout, wait_all_ranks)

    # The names of torch before 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- messages -----------------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int) -> Any:
        return self._message(outgoing(self, "send", _only(tensors, "send"), dst, tag)())

    def recv(self, tensors: Tensors, src: int, tag: int) -> Any:
        return self._message(incoming(self, "recv", _only(tensors, "recv"), src, tag)())

    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        return self._message(incoming(self, "recv", _only(tensors, "recv"), None, tag)())

    def _message(self, request: Request) -> Handle:
        work = MessageWork(request, int)  # the source is the group's rank, of which torch makes the global one
        if self._together is not None:
            self._together.append(work)
        return handle_of([work])

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self in world().registered:
            world().registered.remove(self)
            super().close()

    def shutdown(self) -> None:
        """Complete what is pending and give the communicator back. Collective; nothing the second time."""
        self.close()

    def abort(self) -> None:
        """Give up what is pending: whoever waits for it gets a StateError. The communicator is not freed, because the
        other ranks may not come to it. What MPI is still in when the program ends, ends the job."""
        if self in world().registered:
            world().registered.remove(self)
            world().aborted.append(self)
            self.comm.abandon("it was aborted")
            self.worker.abandon(StateError(f"{self} was aborted"))


def _only(given: Sequence[Any], operation: str) -> Any:
    if len(given) != 1:
        raise ArgumentError(operation, "tensors", "one tensor", f"{len(given)}")
    return given[0]


def _is_async(opts: Any) -> bool:
    return True if opts is None else bool(opts.asyncOp)
