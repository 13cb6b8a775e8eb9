"""What to write instead of a name of mpi4py's that a Communicator does not have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from inspect import getmembers, isfunction, signature
from types import ModuleType
from typing import Any, TypeVar

from mpicoll.errors import NoAttribute

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C")

_INSTEAD = {
    "Allreduce": "allreduce(x, out=y)",
    "Reduce": "reduce(x, root=0, out=y)",
    "Scan": "scan(x, out=y)",
    "Exscan": "exscan(x, out=y)",
    "Bcast": "bcast(x, root=0)",
    "Gather": "gather(x, root=0, out=ys)",
    "Allgather": "allgather(x, out=ys)",
    "Scatter": "scatter(xs, root=0, out=y)",
    "Reduce_scatter_block": "reduce_scatter(xs, out=y)",
    "Alltoall": "alltoall(xs, out=ys)",
    "Barrier": "barrier()",
    "Allgatherv": "allgatherv(mine, counts, out=whole)",
    "Gatherv": "gatherv(mine, counts, root=0, out=whole)",
    "Scatterv": "scatterv(whole, counts, root=0, out=mine)",
    "Reduce_scatter": "reduce_scatterv(whole, counts, out=mine)",
    "Alltoallv": "alltoallv(whole, given, taken)",
    "Sendrecv": "sendrecv(x, right, y, left)",
    "Sendrecv_replace": "sendrecv(x, right, x, left)",
    "Send": "send(x, right)",
    "Recv": "recv(y)",
    "Isend": "isend(x, right)",
    "Irecv": "irecv(y, left)",
    "Get_rank": "rank",
    "Get_size": "size",
    "Split": "split(rank % 2, key=rank)",
    "Split_type": "node",
    "Create": "subset([1, 0])",
    "Create_group": "subset([1, 0])",
    "Dup": "split(0)",
    "dup": "split(0)",
    "Clone": "split(0)",
    "clone": "split(0)",
    "Free": "free()",
    "reduce_object": "allreduce_object(obj)",
}
"""As docs/how-to/migrate_mpi4py.md has it. A test compares them."""
_KEYWORDS = {
    "sendbuf", "recvbuf", "buf", "sendobj", "recvobj", "obj", "status", "dest", "source", "recvcounts", "group",
}  # fmt: skip
RECEIVES = {"recv": "x", "irecv": "x", "sendrecv": "out"}
"""The argument for the array of what comes. mpi4py's methods of these names have none: they return a Python object."""
_CALLS = {call.partition("(")[0]: call for call in reversed(_INSTEAD.values())}
_PAGE = "docs/how-to/migrate_mpi4py.md"


def explained(method: F) -> F:
    """The method. If it is called with a keyword of mpi4py's, the TypeError says what to write instead."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except TypeError as e:
            own, name = [*signature(method).parameters], method.__name__
            instead = _CALLS.get(name, f"{name}({', '.join(own[1:])})")
            if not _KEYWORDS & kwargs.keys() - own:
                into = RECEIVES.get(name)
                if into is None or into in kwargs or len(args) > own.index(into):
                    raise
                own_call = "comm.recv_object()" if name == "recv" else "mpi4py's own call"
                instead += f", and {own_call} returns Python objects"
            raise TypeError(f"{e}: mpicoll's is comm.{instead} ({_PAGE})") from None

    return call  # type: ignore[return-value]


def all_explained(communicator: type[C]) -> type[C]:
    """The class. Its public methods are explained, except those of the kernel, which explains them itself."""
    for name, method in getmembers(communicator, isfunction):
        if not name.startswith("_"):
            setattr(communicator, name, explained(method))
    return communicator


@cache
def answer_names(communicator: type, mpi: ModuleType | None) -> None:
    """From now on, such communicators answer the names of mpi4py's ``MPI``. Where ranks are threads, nobody may have
    loaded that."""
    kinds = [mpi.Cartcomm, mpi.Graphcomm, mpi.Distgraphcomm] if mpi is not None else []
    names = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
    for name in {*_INSTEAD, *names} - {*dir(communicator), "rank", "size"}:
        lower = name.lower()
        instead = _INSTEAD.get(name, lower if hasattr(communicator, lower) else None)
        if instead is None and name.endswith("_init"):
            instead = f"bind({lower.removesuffix('_init')!r}, ...)"
        why = "keep mpi4py's call, on its own communicator" if instead is None else f"mpicoll's is comm.{instead}"
        setattr(communicator, name, NoAttribute(name, f": {why} ({_PAGE})"))
