"""The calls of torch.distributed on its own backends, such as gloo and NCCL, noted as a Communicator's calls are.

Each call of a process group goes through an operator of torch's dispatcher: those of torch.distributed, of DDP's
reducer in C++, and of functional collectives. A function of ours stands before each operator's kernels. It notes the
call and hands it on. The ranks meet through the group's store."""

from __future__ import annotations

import pickle
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch.distributed import distributed_c10d as c10d

from mpicoll.calls.settings import Settings
from mpicoll.errors import ArgumentError
from mpicoll.supervise import report, watch, watched
from mpicoll.supervise.messages import Ends
from mpicoll.supervise.record import Pending, Record
from mpicoll.units import named as named_ranks
from mpicoll.watching.calls import Calls, UnderWay, around, not_complete, waited_for

Call = Callable[..., Any]

_PATIENCE = timedelta(seconds=60)  # how long a rank may take to come to where a group is made
_REDUCTIONS = "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"  # as torch numbers them


class Operator(NamedTuple):
    """A collective: its name in torch.distributed, and the collective of mpicoll's that has the same waits. Of the
    tensors at ``sized``, if there are such, all ranks give equally many elements."""

    name: str
    operation: str
    sized: int | None = 0


COLLECTIVES = {
    "allreduce_": Operator("all_reduce", "allreduce"),
    "allreduce_coalesced_": Operator("all_reduce_coalesced", "allreduce"),
    "broadcast_": Operator("broadcast", "bcast"),
    "reduce_": Operator("reduce", "reduce"),
    "allgather_": Operator("all_gather", "allgather", 1),
    "_allgather_base_": Operator("all_gather_into_tensor", "allgather", 1),
    "allgather_coalesced_": Operator("all_gather_coalesced", "allgather", 1),
    "allgather_into_tensor_coalesced_": Operator("all_gather_into_tensor_coalesced", "allgather", 1),
    "reduce_scatter_": Operator("reduce_scatter", "reduce_scatter", 1),
    "_reduce_scatter_base_": Operator("reduce_scatter_tensor", "reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": Operator("reduce_scatter_tensor_coalesced", "reduce_scatter", 1),
    "gather_": Operator("gather", "gather", 1),
    "scatter_": Operator("scatter", "scatter"),
    "alltoall_": Operator("all_to_all", "alltoallv", None),
    "alltoall_base_": Operator("all_to_all_single", "alltoallv", None),
    "barrier": Operator("barrier", "barrier", None),
    "monitored_barrier_": Operator("monitored_barrier", "barrier", None),
}
"""By the operator's name."""


class GroupCalls(Calls):
    """The calls of one process group."""

    def __init__(self, group: watch.Group, settings: Settings) -> None:
        super().__init__()
        self.ranks = group.ranks
        self.watch(group, settings)

    def record(self, row: Operator, reduction: str | None, memory: Any, root: int | None) -> Record:
        elements, dtype = (sum(each.numel() for each in memory), str(memory[0].dtype)[6:]) if memory else (0, "")
        key = row, reduction, elements, dtype, root
        found: Record | None = self.known.get(key)
        if found is None:
            details = [reduction, f"of {elements} {dtype}" * bool(memory), f"root {root}" * (root is not None)]
            text, nbytes = " ".join(filter(None, details)), sum(each.nbytes for each in memory)
            found = self.keep(key, Record(row.operation, text, nbytes, elements, dtype, root, row.name))
        return found


def _meeting(store: Any, name: str, rank: int, size: int) -> Callable[[Any], list[Any]]:
    """How the ranks of a group tell each other something before there is a watcher: through its store. Each of them
    gets what all give. Raises RuntimeError if one does not come, as where it is not under watch."""
    _made[name] += 1  # a program may give a group up and make another one of this name, over the same store
    numbers, key = count(), f"mpicoll watch {name} {_made[name]}"

    def allgather(given: Any) -> list[Any]:
        number = next(numbers)
        keys = [f"{key} {number} {each}" for each in range(size)]
        store.set(keys[rank], pickle.dumps(given))
        store.wait(keys, _PATIENCE)
        return [pickle.loads(store.get(each)) for each in keys]

    return allgather


_made: Counter[str] = Counter()  # how many groups were made of each name
_groups: dict[str, GroupCalls] = {}  # by the groups' names
_under_way = UnderWay(lambda work: work.is_completed())
"""By the numbers of their Works, which are kept here and so stay the same objects."""
_results: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The Works by the addresses of their results: a functional collective waits for its tensor, not for a Work."""
_libraries: list[Any] = []  # what holds our functions before torch's kernels


def install() -> None:
    """Watch the process groups that the program makes from now on."""
    if _libraries:
        return
    library, functional = (torch.library.Library(name, "IMPL") for name in ("c10d", "_c10d_functional"))
    _libraries.extend((library, functional))  # they live as long as the process
    for name, row in COLLECTIVES.items():
        _stand_before(library, getattr(torch.ops.c10d, name).default, partial(_collective, row=row))
    for name in ("send", "recv_", "recv_any_source_"):
        _stand_before(library, getattr(torch.ops.c10d, name).default, partial(_message, name=name))
    _stand_before(functional, torch.ops._c10d_functional.wait_tensor.default, _wait_tensor)
    for owner, name, body in (
        (c10d.Work, "wait", lambda real, work, *args, **named: _waited(work, real, work, *args, **named)),
        (c10d.ProcessGroup, "split_group", _split),
        (c10d, "_new_process_group_helper", _make),
        (c10d, "_new_group_with_tag", _new_group),
        (c10d, "_unregister_process_group", _end),
        (c10d, "_unregister_all_process_groups", _end),
    ):
        setattr(owner, name, around(getattr(owner, name), body))
    watched.under_way.append(_has_messages)


def _stand_before(library: Any, op: Any, made: Callable[[Any, Call], Call]) -> None:
    """Let what is ``made`` of an operator and its kernel stand before the operator's kernels of all devices. Nobody
    leaves out this part of the dispatcher, as inference mode and functional collectives leave out autograd's."""

    def kernel(keys: Any, *args: Any) -> Any:
        return op.redispatch(keys.remove(torch.DispatchKey.BackendSelect), *args)

    watched_one = made(op, kernel)

    def chosen(keys: Any, *args: Any) -> Any:
        # A compiler traces with tensors that have no memory. Then nothing is called.
        return (kernel if keys.has(torch.DispatchKey.Meta) else watched_one)(keys, *args)

    library.impl(op, chosen, "BackendSelect", with_keyset=True)


def _make(
    real: Call, size: int, rank: int, ranks: Any, backend: Any, store: Any, name: Any, *args: Any, **named: Any
) -> Any:
    """What makes a process group, on those of its ranks that are in it."""
    found = real(size, rank, ranks, backend, store, name, *args, **named)
    if size > 1 and c10d.GroupMember.NON_GROUP_MEMBER not in found and "mpicoll" not in str(backend):
        _watch([*ranks] or [*range(size)], rank, store, str(name))
    return found


def _new_group(real: Call, ranks: Any = None, *args: Any, **named: Any) -> Any:
    """torch's ``new_group``. All ranks of the default group must call it alike, unless they say otherwise."""
    world = c10d.GroupMember.WORLD
    calls = None if world is None else _groups.get(str(world.group_name))
    if world is None or calls is None or named.get("use_local_synchronization"):
        return real(ranks, *args, **named)
    members = sorted(range(world.size()) if ranks is None else ranks)
    key = "new_group", *members
    record = calls.known.get(key) or calls.keep(key, Record("meeting", f"of {named_ranks(members)}", name="new_group"))
    return calls.noted(record, real, ranks, *args, **named)


def _split(real: Call, group: Any, ranks: Any, *args: Any, **named: Any) -> Any:
    """What makes a group of some ranks of this one, which names them by their numbers in it."""
    found, calls = real(group, ranks, *args, **named), _groups.get(str(group.group_name))
    if found is not None and calls is not None and found.size() > 1:
        _watch([calls.ranks[rank] for rank in ranks], found.rank(), found.get_group_store(), str(found.group_name))
    return found


def _end(real: Call, *names: str) -> None:
    """What gives up the group of a name, or all groups. This is the last thing that torch does when it destroys one."""
    for name in names or [*_groups]:
        if (calls := _groups.pop(name, None)) is not None:
            calls.free()
    real(*names)


def _watch(ranks: list[int], rank: int, store: Any, name: str) -> None:
    """Watch a new group of this name. Collective among its ranks."""
    _groups.pop(name, None)
    try:
        allgather = _meeting(store, name, rank, len(ranks))
        told = allgather((socket.gethostname(), Settings.of_environment()))
    except (RuntimeError, ArgumentError) as e:
        report.show(f"mpicoll: the calls of torch's group {name} are not watched: {e}")
        return
    settings = told[0][1]  # those of the first rank count for all
    if settings.check != "off":
        one_node = len({host for host, _ in told}) == 1
        _groups[name] = GroupCalls(watch.Group(ranks, rank, one_node, allgather), settings)


def _collective(op: Any, kernel: Call, row: Operator) -> Call:
    at = {each.name: number for number, each in enumerate(op._schema.arguments)}
    at_group, at_op, at_root = at["process_group"], at.get("reduce_op"), at.get("root_rank")

    def call(keys: Any, *args: Any) -> Any:
        calls = _groups.get(str(c10d.ProcessGroup.unbox(args[at_group]).group_name))
        if calls is None:
            return kernel(keys, *args)
        memory = [] if row.sized is None else _flat(args[row.sized])
        reduction = None if at_op is None else _REDUCTIONS[args[at_op].op()]
        record = calls.record(row, reduction, memory, None if at_root is None else args[at_root])
        found = calls.noted(record, kernel, keys, *args)
        work = found[-1] if isinstance(found, tuple) else found
        # While a graph is captured, nobody may ask whether a call is complete.
        if work is not None and not (keys.has(torch.DispatchKey.CUDA) and torch.cuda.is_current_stream_capturing()):
            begun = _begin(work, calls, not_complete(row.name, record), calls.recorder.begun - 1)
            for tensor in _flat(args[0]):
                _results[tensor.data_ptr()] = begun
        return found

    return call


def _flat(tensors: Any) -> list[Any]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [each for given in tensors for each in _flat(given)]


def _message(_: Any, kernel: Call, name: str) -> Call:
    def call(keys: Any, *args: Any) -> Any:
        group = c10d.ProcessGroup.unbox(args[1])
        calls = _groups.get(str(group.group_name))
        found = kernel(keys, *args)
        if calls is not None:
            _, _, *peer, tag = args
            memory, others = args[0][0], peer or range(len(calls.ranks))
            whom = f"rank {peer[0]}" if peer else "any rank"
            if name == "send":
                what, ends = f"was taken by {whom} (tag {tag})", Ends(targets=others, target_tag=tag)
            else:
                what, ends = f"came from {whom} (tag {tag})", Ends(others, tag)
            of = memory.numel(), str(memory.dtype)[6:], ends, memory.nbytes
            _begin(found, calls, Pending.message(name[:4], what, *of), None)  # send or recv
        return found

    return call


def _begin(boxed: Any, calls: GroupCalls, pending: Pending, number: int | None) -> Any:
    work = c10d.Work.unbox(boxed)
    if number is not None and calls.waits.tape is not None:
        with suppress(RuntimeError):  # a reduce_scatter of gloo's has no future: then its wait tells
            work.get_future().add_done_callback(calls.waits.tape.completion(calls.recorder))
    _under_way.begin(id(work), work, calls, pending, number)
    return work


def _waited(work: Any, wait: Call, *args: Any, **named: Any) -> Any:
    found = _under_way.get(id(work))
    if found is None:
        return wait(*args, **named)
    try:
        result = wait(*args, **named) if work.is_completed() else waited_for(found, wait, *args, **named)
    finally:
        _under_way.pop(id(work), None)
    _, calls, begun, _ = found
    if torch.cuda.is_initialized() and calls.watched is not None and not work.is_completed():
        # The GPU waits for it now. An event tells when: the Work would keep the call's tensors.
        event = torch.cuda.Event()
        event.record()
        calls.waits.follow(begun, event.query)
    return result


def _wait_tensor(_: Any, kernel: Call) -> Call:
    return lambda keys, tensor: _waited(_results.get(tensor.data_ptr()), kernel, keys, tensor)


def _has_messages(looks: bool, besides: object) -> int:
    _under_way.forget_complete(besides)
    return _under_way.has_messages(besides)
