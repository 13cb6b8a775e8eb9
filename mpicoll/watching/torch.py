"""The calls of torch.distributed on its own backends for CPUs, such as gloo, noted as a Communicator's calls are.

Each call of a process group goes through an operator of torch's dispatcher: those of torch.distributed, of DDP's
reducer in C++, and of functional collectives. A function of ours stands before these operators. It notes the call and
hands it on. The ranks meet through the group's store.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from functools import wraps
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch.distributed import distributed_c10d as c10d

from mpicoll.calls.settings import Settings
from mpicoll.errors import StateError
from mpicoll.supervise import watch, watched
from mpicoll.supervise.record import OPEN, Begun, Ends, Pending, Record, Recorder
from mpicoll.supervise.trace import TracedRecorder

_REDUCTIONS = "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"
"""As torch numbers them."""
_LOOK_AFTER = 64
"""Calls under way, after which those that are complete are forgotten: a program may never wait for them."""
_MOST_KEPT = 4096
"""Different calls of a group that are kept."""


class Collective(NamedTuple):
    """An operator: its name in torch.distributed, and the collective of mpicoll's that has the same waits. Of the
    tensors at ``sized`` all ranks give equally many elements; None if they may differ."""

    name: str
    operation: str
    sized: int | None = 0


COLLECTIVES = {
    "allreduce_": Collective("all_reduce", "allreduce"),
    "allreduce_coalesced_": Collective("all_reduce_coalesced", "allreduce"),
    "broadcast_": Collective("broadcast", "bcast"),
    "reduce_": Collective("reduce", "reduce"),
    "allgather_": Collective("all_gather", "allgather", 1),
    "_allgather_base_": Collective("all_gather_into_tensor", "allgather", 1),
    "allgather_coalesced_": Collective("all_gather_coalesced", "allgather", 1),
    "allgather_into_tensor_coalesced_": Collective("all_gather_into_tensor_coalesced", "allgather", 1),
    "reduce_scatter_": Collective("reduce_scatter", "reduce_scatter", 1),
    "_reduce_scatter_base_": Collective("reduce_scatter_tensor", "reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": Collective("reduce_scatter_tensor_coalesced", "reduce_scatter", 1),
    "gather_": Collective("gather", "gather", 1),
    "scatter_": Collective("scatter", "scatter"),
    "alltoall_": Collective("all_to_all", "alltoall", None),
    "alltoall_base_": Collective("all_to_all_single", "alltoall", None),
    "barrier": Collective("barrier", "barrier", None),
    "monitored_barrier_": Collective("monitored_barrier", "barrier", None),
}
"""By the operator's name."""


class Calls:
    """The calls of one process group."""

    def __init__(self, ranks: list[int], rank: int, store: Any, name: str, settings: Settings) -> None:
        self.rank, self.ranks = rank, ranks
        self.recorder = TracedRecorder() if settings.trace else Recorder()
        self.waits: list[Begun] = []
        self.records: dict[object, Record] = {}
        meeting = _Meeting(store, name, rank, len(ranks))
        one_node = len({*meeting.allgather(socket.gethostname())}) == 1
        group = watch.Group(ranks, rank, one_node, meeting.bcast, meeting.allgather)
        timeout, dump, trace = settings.timeout, settings.dump, settings.trace
        self.watched = watch.watch(group, self.recorder, self.waits, timeout, False, dump=dump, trace=trace)

    def record(self, row: Collective, reduction: str | None, memory: Any, root: int | None) -> Record:
        """That of a collective."""
        size = None if memory is None else (sum(each.numel() for each in memory), str(memory[0].dtype)[6:])
        key = row, reduction, size, root
        found = self.records.get(key)
        if found is None:
            of = "" if size is None else f"of {size[0]} {size[1]}"
            details = [reduction, of, None if root is None else f"root {root}"]
            if len(self.records) >= _MOST_KEPT:
                self.records.clear()
            nbytes = 0 if memory is None else sum(each.nbytes for each in memory)
            elements, dtype = size or (0, "")
            found = Record(row.name, " ".join(filter(None, details)), nbytes, elements, dtype, root)
            found.operation = row.operation
            self.records[key] = found
        return found


class _Meeting:
    """How the ranks of a group tell each other something before there is a watcher: through its store."""

    def __init__(self, store: Any, name: str, rank: int, size: int) -> None:
        self._store, self._name, self._rank, self._size, self._said = store, name, rank, size, 0

    def allgather(self, given: Any) -> list[Any]:
        """What all ranks give."""
        self._said += 1
        keys = [f"mpicoll watch {self._name} {self._said} {rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], pickle.dumps(given))
        return [pickle.loads(self._store.get(key)) for key in keys]

    def bcast(self, given: Any) -> Any:
        """What the first rank gives."""
        return self.allgather(given)[0]


class InFlight(NamedTuple):
    """What was begun. A collective has the number by which its recorder knows it, a message has None."""

    work: Any
    calls: Calls
    begun: Begun
    number: int | None


_groups: dict[str, Calls] = {}
"""By the groups' names."""
_under_way: dict[int, InFlight] = {}
"""By the numbers of their Works, which are kept here and so stay the same objects."""
_library: list[Any] = []
"""What holds our functions before torch's operators."""


def install() -> None:
    """Watch the process groups that the program makes from now on."""
    if _library:
        return
    library = torch.library.Library("c10d", "IMPL")  # it lives as long as the process
    _library.append(library)
    for name, row in COLLECTIVES.items():
        library.impl(name, _collective(getattr(torch.ops.c10d, name).default, row), "AutogradCPU")
    for name in ("send", "recv_", "recv_any_source_"):
        library.impl(name, _message(getattr(torch.ops.c10d, name).default, name), "AutogradCPU")
    setattr(c10d.Work, "wait", _wait(c10d.Work.wait))  # noqa: B010  # to a type checker, a method is not assigned to
    c10d._new_process_group_helper = _maker(c10d._new_process_group_helper)
    watched.under_way.append(_has_messages)


def _maker(real: Any) -> Callable[..., Any]:
    """What makes a process group, on those of its ranks that are in it."""

    @wraps(real)
    def make(size: int, rank: int, ranks: Any, backend: Any, store: Any, name: Any, *args: Any, **named: Any) -> Any:
        found = real(size, rank, ranks, backend, store, name, *args, **named)
        members = [*ranks] or [*range(size)]
        if size > 1 and c10d.GroupMember.NON_GROUP_MEMBER not in found and "mpicoll" not in str(backend):
            settings = Settings.of_environment()
            if settings.check != "off":
                mine = members.index(_rank_in_world(rank, bool(ranks)))
                _groups[str(name)] = Calls(members, mine, store, str(name), settings)
        return found

    return make


def _rank_in_world(rank: int, in_part: bool) -> int:
    return int(c10d.get_rank()) if in_part else rank


def _handed_on(op: Any, args: Any) -> Any:
    """The operator of the group's backend."""
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


def _collective(op: Any, row: Collective) -> Callable[..., Any]:
    names = [each.name for each in op._schema.arguments]
    at_group = names.index("process_group")
    at_op = names.index("reduce_op") if "reduce_op" in names else None
    at_root = names.index("root_rank") if "root_rank" in names else None

    def call(*args: Any) -> Any:
        calls = _groups.get(str(c10d.ProcessGroup.unbox(args[at_group]).group_name))
        if calls is None or calls.recorder.state != OPEN:
            return _handed_on(op, args)
        memory = None if row.sized is None else _flat(args[row.sized])
        reduction = None if at_op is None else _REDUCTIONS[args[at_op].op()]
        record = calls.record(row, reduction, memory, None if at_root is None else args[at_root])
        try:
            calls.recorder.begin(record)
        except StateError:  # another thread waits for a collective of this group: nobody knows their order
            calls.recorder.close(goes_on=True)
            return _handed_on(op, args)
        number = calls.recorder.begun - 1
        try:
            found = _handed_on(op, args)
        except BaseException:  # torch has refused the arguments
            calls.recorder.retract()
            raise
        calls.recorder.under_way = False
        work = found[-1] if isinstance(found, tuple) else found
        if work is not None:
            missing = f"{record.description} is not complete"
            _begin(work, calls, Pending(row.name, record.description, record.elements, record.dtype, missing), number)
        return found

    return call


def _flat(tensors: Any) -> list[Any]:
    """The tensors of a list, or of a list of lists."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [each for given in tensors for each in _flat(given)]


def _message(op: Any, name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        group = c10d.ProcessGroup.unbox(args[1])
        calls = _groups.get(str(group.group_name))
        found = _handed_on(op, args)
        if calls is not None:
            _, _, *peer, tag = args
            memory, ranks = args[0][0], range(len(calls.ranks))
            others = peer or ranks
            if name == "send":
                what, ends = f"was taken by rank {peer[0]} (tag {tag})", Ends(targets=others, target_tag=tag)
            else:
                whom = f"rank {peer[0]}" if peer else "any rank"
                what, ends = f"came from {whom} (tag {tag})", Ends(others, tag)
            operation = "send" if name == "send" else "recv"
            _begin(found, calls, Pending.message(operation, what, memory.numel(), str(memory.dtype)[6:], ends), None)
        return found

    return call


def _begin(boxed: Any, calls: Calls, pending: Pending, number: int | None) -> None:
    work = c10d.Work.unbox(boxed)
    begun = pending, monotonic()
    if number is None:
        calls.recorder.begin_message(pending)
    if len(_under_way) >= _LOOK_AFTER:
        _forget_complete()
    _under_way[id(work)] = InFlight(work, calls, begun, number)


def _wait(real: Any) -> Callable[..., Any]:
    @wraps(real)
    def wait(self: Any, *args: Any, **named: Any) -> Any:
        found = _under_way.get(id(self))
        if found is None or self.is_completed():
            _under_way.pop(id(self), None)
            return real(self, *args, **named)
        recorder, waits = found.calls.recorder, found.calls.waits
        if found.number is not None and found.number == recorder.begun - 1 and recorder.state == OPEN:
            recorder.under_way = True  # it waits in the last collective
            try:
                return real(self, *args, **named)
            finally:
                recorder.under_way = False
                _under_way.pop(id(self), None)
        waits.append(found.begun)
        try:
            return real(self, *args, **named)
        finally:
            waits.remove(found.begun)
            _under_way.pop(id(self), None)

    return wait


def _has_messages(looks: bool, besides: object) -> bool:
    """Whether messages of this rank are under way, besides the one that is given."""
    _forget_complete()
    return any(each.number is None and each.begun is not besides for each in [*_under_way.values()])


def _forget_complete() -> None:
    for at, each in [*_under_way.items()]:
        if each.work.is_completed():
            _under_way.pop(at, None)
