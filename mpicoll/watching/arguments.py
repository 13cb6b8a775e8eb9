"""What the ranks of one of mpi4py's collectives must give alike, read from its arguments.

Only what all ranks must have in common is read: bytes, because a datatype may be described in many ways, the
operation, and the root. The dtype is compared where MPI computes with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll.errors import StateError

Size = tuple[int, object] | None  # bytes, and a dtype whose text is its name; None if they cannot be known here

_OPERATIONS = {
    getattr(MPI, name).handle: name.lower()
    for name in ("SUM", "PROD", "MAX", "MIN", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "MAXLOC", "MINLOC")
}


def operation_of(op: object) -> str:
    """The name of a reduction. Two that the program has made may be the same or not: they have one name."""
    return _OPERATIONS.get(op.handle, "an own operation") if isinstance(op, MPI.Op) else "a function"


@cache
def parameters_of(method: Callable[..., object]) -> list[str]:
    """The names of a method's parameters after the first. mpi4py's docstrings begin with the signature."""
    signature = re.match(r"\w+\((?:self|cls)(.*)", method.__doc__ or "")
    if signature is None:
        raise StateError("watch: this build of mpi4py does not say what parameters its methods have")
    return re.findall(r", (\w+):", signature[1])


def by_position(parameters: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
    """A call's arguments in the order of the parameters. None where it gives none."""
    return [*args, *map(named.get, parameters[len(args) :])]


def by_name(method: Callable[..., object], args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a call gives by position or by name, by the names of the method's parameters."""
    return dict(zip(parameters_of(method), args, strict=False), **named)


def size_of(given: Any) -> Size:
    """What a buffer of mpi4py's holds: an array, or a list of an array and what MPI must know of it."""
    if isinstance(given, np.ndarray):
        return given.nbytes, given.dtype
    if not isinstance(given, (list, tuple)):
        return _memory(given)
    if not 1 <= len(given) <= 4:
        return None
    array, *rest = given
    kind = rest.pop() if rest and isinstance(rest[-1], (MPI.Datatype, str)) else None
    counts = rest[0] if rest else None
    if isinstance(counts, tuple) and len(rest) == 1:  # (count, displacement), or (counts, displacements)
        counts = counts[0] if counts else None
    memory = _memory(array)
    item: Size = _item(kind) if kind is not None else memory and (np.dtype(str(memory[1])).itemsize, memory[1])
    if item is None:
        return None
    if counts is not None:
        number = int(counts) if np.ndim(counts) == 0 else int(np.sum(counts))
        return number * item[0], item[1]
    if kind is None or memory is None:
        return memory
    datatype = _datatype(kind)
    return memory[0] // (datatype.Get_extent()[1] or 1) * item[0], item[1]


def _memory(array: Any) -> Size:
    """What an array holds that is none of NumPy's."""
    try:
        view = memoryview(array)
        return view.nbytes, np.dtype(view.format or "B").name
    except TypeError:
        pass
    try:  # a tensor, or an array of a device
        return int(array.nbytes), str(getattr(array, "dtype", "uint8")).rpartition(".")[2]
    except (AttributeError, TypeError, ValueError):
        return None


def _datatype(kind: MPI.Datatype | str) -> MPI.Datatype:
    return MPI.Datatype.fromcode(kind) if isinstance(kind, str) else kind


def _item(kind: MPI.Datatype | str) -> Size:
    """The bytes of one item of a datatype, and its name if all of its elements are of one kind."""
    try:
        datatype = _datatype(kind)
        return datatype.Get_size(), _name(datatype)
    except (ValueError, TypeError, MPI.Exception):
        return None


def _name(datatype: MPI.Datatype) -> str:
    if datatype.is_predefined:
        try:
            return np.dtype(datatype.tocode()).name
        except (ValueError, TypeError):
            return datatype.Get_name().removeprefix("MPI_").lower()
    inner = datatype.decode()[2].get("datatype")
    return _name(inner) if isinstance(inner, MPI.Datatype) else "mixed"


class Method(NamedTuple):
    """One of MPI's collectives: ``operation`` is the one of mpicoll's that has the same waits, ``size`` what each rank
    must give alike, or None. Of uneven blocks, which may be empty, no rank is known to need another one."""

    operation: str
    size: Callable[[Any, Any, int], Size] | None = None


def _in_place(given: Any) -> bool:
    """mpi4py takes None for ``MPI.IN_PLACE``, too."""
    return given is None or given is MPI.IN_PLACE


def _whole(send: Any, recv: Any, size: int) -> Size:
    """What each rank gives: in place, what it gets."""
    return size_of(recv if _in_place(send) else send)


def _block(send: Any, recv: Any, size: int) -> Size:
    """What each rank gives, of which all ranks' make what a rank gets."""
    return _part(recv, size) if _in_place(send) else size_of(send)


def _for_each(send: Any, recv: Any, size: int) -> Size:
    return _part(recv if _in_place(send) else send, size)


def _part(given: Any, size: int) -> Size:
    found = size_of(given)
    if found is None:
        return None
    counted = isinstance(given, (list, tuple)) and len(given) > 1 and not isinstance(given[1], (MPI.Datatype, str))
    return found if counted else (found[0] // size, found[1])  # a count is that of one rank


COLLECTIVES = {
    "Barrier": Method("barrier"),
    "Bcast": Method("bcast", lambda buf, recv, size: size_of(buf)),
    "Gather": Method("gather", _block),
    "Gatherv": Method("gatherv"),
    "Scatter": Method("scatter", lambda send, recv, size: _block(recv, send, size)),
    "Scatterv": Method("scatterv"),
    "Allgather": Method("allgather", _block),
    "Allgatherv": Method("allgatherv"),
    "Alltoall": Method("alltoall", _for_each),
    "Alltoallv": Method("alltoallv"),
    "Alltoallw": Method("alltoallv"),
    "Reduce": Method("reduce", _whole),
    "Allreduce": Method("allreduce", _whole),
    "Reduce_scatter_block": Method("reduce_scatter", _for_each),
    "Reduce_scatter": Method("reduce_scatter", _whole),
    "Scan": Method("scan", _whole),
    "Exscan": Method("exscan", _whole),
}
COLLECTIVES |= {
    f"Neighbor_{name}": Method("meeting") for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")
}
COLLECTIVES |= {
    name.lower(): Method(row.operation) for name, row in COLLECTIVES.items() if hasattr(MPI.Cartcomm, name.lower())
}
"""By the name of mpi4py's method that blocks."""
DYNAMIC = "Spawn", "Spawn_multiple", "Accept", "Connect"
"""What makes a communicator with ranks that meet this one only there: they may be another program's."""
MEETINGS = ("Create_intercomm", *DYNAMIC)
"""What makes a communicator of another one, where no rank is known to need another one."""
MAKERS = (*MEETINGS, "Dup", "Clone", "Dup_with_info", "Create", "Split", "Split_type", "Create_cart", "Create_graph",
          "Create_dist_graph_adjacent", "Create_dist_graph", "Create_group", "Sub", "Merge")  # fmt: skip
"""What makes a communicator of another one."""
_SENDS = ("Send", "Bsend", "Ssend", "Rsend")
MESSAGES = {"Recv", "Irecv", "Recv_init", "Probe", "Mprobe", "recv", "irecv", "probe", "mprobe",
            "Psend_init", "Precv_init", "Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace", "sendrecv",
            *_SENDS, *(f"I{each.lower()}" for each in _SENDS), *(f"{each}_init" for each in _SENDS),
            "send", "bsend", "ssend", "isend", "ibsend", "issend"}  # fmt: skip
"""What sends, receives, or waits for a message."""
