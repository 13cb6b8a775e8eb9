"""Which calls take much longer than their neighbours?

    mpicoll run -n 2 benchmarks/cliffs.py [comm] [mpicoll] [torch]

This measures calls through three doors: a Communicator, mpicoll.torch, and torch.distributed on the registered backend.
The neighbours of a call are the same call in its simplest form, in the simplest layout, of float32, and as a sum; and
the same call of twice the size. The neighbour of a call on arrays with gaps is one on arrays without them, into which
the program itself copies, and back. That of a collective among neighbours is mpi4py's. A kind of call that takes more
than ``MANY`` times as long as a neighbour is printed, with the worst of its sizes. The figures are microseconds of the
fastest call, which is what the work itself takes. Run it again before you believe a line, because other programs make
cliffs, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed
from mpi4py import MPI

import mpicoll
import mpicoll.torch
from mpicoll.machine.linux import cpu_name
from mpicoll.machine.mpi_library import library
from mpicoll.units import size_text

MANY, LEAST = 3.0, 3.0
"""What is a cliff: how many times as long, and how many microseconds more at least."""
SIZES = [8 << i for i in range(18)]
"""Bytes of what one rank gives or gets: from 8 to 1 MiB."""
TURNS = 3
OPS = ["sum", "avg", "max", "prod"]
DTYPES = ["float32", "float64", "int8", "int32", "int64", "complex64", "float16", "bfloat16"]
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size

Forms = dict[str, tuple[str, str]]
# A form is a call, and the simplest form that does the same. ``a`` and ``b`` have n elements, ``xs`` and ``ys`` n for
# each rank, ``parts`` and ``others`` are lists of these, and ``pair`` and ``two`` n for each neighbour on a ring.
COMM: Forms = {
    "allreduce": ("comm.allreduce(a, op, a)", ""),
    "allreduce, new array": ("comm.allreduce(a, op)", "allreduce"),
    "iallreduce": ("comm.iallreduce(a, op, a).wait()", "allreduce"),
    "reduce": ("comm.reduce(a, op, 0, b)", ""),
    "ireduce": ("comm.ireduce(a, op, 0, b).wait()", "reduce"),
    "bcast": ("comm.bcast(a)", ""),
    "ibcast": ("comm.ibcast(a).wait()", "bcast"),
    "scan": ("comm.scan(a, op, b)", ""),
    "iscan": ("comm.iscan(a, op, b).wait()", "scan"),
    "exscan": ("comm.exscan(a, op, b)", "scan"),
    "allgather": ("comm.allgather(a, xs)", ""),
    "iallgather": ("comm.iallgather(a, xs).wait()", "allgather"),
    "allgatherv": ("comm.allgatherv(a, counts, xs)", "allgather"),
    "iallgatherv": ("comm.iallgatherv(a, counts, xs).wait()", "allgatherv"),
    "gather": ("comm.gather(a, 0, xs)", ""),
    "igather": ("comm.igather(a, 0, xs).wait()", "gather"),
    "gatherv": ("comm.gatherv(a, counts, 0, xs)", "gather"),
    "scatter": ("comm.scatter(xs, 0, a)", ""),
    "iscatter": ("comm.iscatter(xs, 0, a).wait()", "scatter"),
    "scatterv": ("comm.scatterv(xs, counts, 0, a)", "scatter"),
    "reduce_scatter": ("comm.reduce_scatter(xs, op, a)", ""),
    "ireduce_scatter": ("comm.ireduce_scatter(xs, op, a).wait()", "reduce_scatter"),
    "reduce_scatterv": ("comm.reduce_scatterv(xs, counts, op, a)", "reduce_scatter"),
    "alltoall": ("comm.alltoall(xs, ys)", ""),
    "ialltoall": ("comm.ialltoall(xs, ys).wait()", "alltoall"),
    "alltoallv": ("comm.alltoallv(xs, counts, counts, ys)", "alltoall"),
    "mpi4py's neighbor_allgather": ("cart.Neighbor_allgather(a, two)", ""),
    "neighbor_allgather": ("grid.neighbor_allgather(a, two)", "mpi4py's neighbor_allgather"),
    "mpi4py's neighbor_alltoall": ("cart.Neighbor_alltoall(pair, two)", ""),
    "neighbor_alltoall": ("grid.neighbor_alltoall(pair, two)", "mpi4py's neighbor_alltoall"),
    "sendrecv": ("comm.sendrecv(a, after, b, before)", ""),
    "sendrecv, nobody": ("comm.sendrecv(a, MPI.PROC_NULL, b, MPI.PROC_NULL)", "sendrecv"),
    "send, recv": ("[comm.send(a, after) if i == RANK % 2 else comm.recv(b, before) for i in (0, 1)]", "sendrecv"),
    "isend, irecv": ("[r.wait() for r in (comm.irecv(b, before), comm.isend(a, after))]", "sendrecv"),
}  # fmt: skip
TORCH: Forms = {
    "all_reduce": ("dist.all_reduce(a, op)", ""),
    "all_reduce, async": ("dist.all_reduce(a, op, async_op=True).wait()", "all_reduce"),
    "reduce": ("dist.reduce(a, 0, op)", ""),
    "broadcast": ("dist.broadcast(a, 0)", ""),
    "broadcast, async": ("dist.broadcast(a, 0, async_op=True).wait()", "broadcast"),
    "all_gather_into_tensor": ("dist.all_gather_into_tensor(xs, a)", ""),
    "all_gather": ("dist.all_gather(parts, a)", "all_gather_into_tensor"),
    "gather": ("dist.gather(a, at_root)", "all_gather_into_tensor"),
    "scatter": ("dist.scatter(a, at_root)", "all_gather_into_tensor"),
    "reduce_scatter_tensor": ("dist.reduce_scatter_tensor(a, xs, op)", ""),
    "reduce_scatter": ("dist.reduce_scatter(a, parts, op)", "reduce_scatter_tensor"),
    "all_to_all_single": ("dist.all_to_all_single(ys, xs)", ""),
    "all_to_all": ("dist.all_to_all(others, parts)", "all_to_all_single"),
    "isend, irecv": ("[r.wait() for r in (dist.irecv(b, before), dist.isend(a, after))]", ""),
}  # fmt: skip
BY_HAND = ", packed by hand"
OF_OPS = ["allreduce", "iallreduce", "reduce_scatter", "all_reduce", "all_reduce, async", "reduce_scatter_tensor"]
"""The forms of which all dtypes and operations are measured."""
LONG = {"a": 1, "b": 1, "xs": SIZE, "ys": SIZE, "pair": 2, "two": 2}
"""How many times n elements the arrays have."""


class Cell(NamedTuple):
    """A kind of call. It is the simplest kind unless more is said."""

    form: str
    layout: str = "contiguous"
    dtype: str = "float32"
    op: str = "sum"


class Subclass(np.ndarray[Any, Any]):
    """An array whose type is not NumPy's own."""


Make = Callable[[int, str], Any]
"""Makes an array of so many elements of a dtype."""
Layouts = dict[str, Make]
ARRAYS: Layouts = {
    "contiguous": np.zeros,
    "strided": lambda n, dtype: np.zeros((n, 2), dtype)[:, 0],
    "subclass": lambda n, dtype: np.zeros(n, dtype).view(Subclass),
    "memoryview": lambda n, dtype: np.zeros(n, dtype).data,
    "tensor": lambda n, dtype: torch.zeros(n, dtype=getattr(torch, dtype)),
}
TENSORS: Layouts = {
    "contiguous": lambda n, dtype: torch.zeros(n, dtype=getattr(torch, dtype)),
    "strided": lambda n, dtype: torch.zeros(n, 2, dtype=getattr(torch, dtype))[:, 0],
}


def cells(forms: Forms, layouts: Layouts) -> Iterator[Cell]:
    """All kinds of calls through one door. Shared arrays come last: once there are some, each call looks for them."""
    for form in [form for form in OF_OPS if form in forms]:
        yield from (
            Cell(form, dtype=dtype, op=op) for dtype in DTYPES for op in OPS if (dtype, op) != ("float32", "sum")
        )
    for layout in layouts:
        for form in forms:
            yield Cell(form, layout)
            if "strided" in layout:
                yield Cell(form, layout + BY_HAND)


def packed_by_hand(call: Callable[[], object], pairs: list[tuple[Any, Any]]) -> Callable[[], object]:
    """The call, and a copy to each array without gaps, from one with gaps."""
    copies = [partial(getattr(plain, "copy_", None) or partial(np.copyto, plain), gaps) for plain, gaps in pairs]

    def packed() -> None:
        for copy in copies:
            copy()
        call()

    return packed


def call_of(cell: Cell, text: str, layouts: Layouts, nbytes: int, door: dict[str, Any]) -> Callable[[], object]:
    """A call of this kind and size. Raises what the door raises for what it does not take.

    By hand, each array is copied as often as the text names it: to where the call reads it, or from where it writes."""
    by_hand = cell.layout.endswith(BY_HAND)
    gaps = layouts[cell.layout.removesuffix(BY_HAND)]
    make = layouts["contiguous"] if by_hand else gaps
    n = nbytes // torch.zeros(0, dtype=getattr(torch, cell.dtype)).element_size()
    named = {**door, "MPI": MPI, "RANK": RANK, "after": (RANK + 1) % SIZE, "before": (RANK - 1) % SIZE}
    named |= {name: make(n * many, cell.dtype) for name, many in LONG.items()}
    named |= {"counts": [n] * SIZE, "op": door["op_of"](cell.op)}
    if cell.layout != "memoryview":
        named["pair"] = named["pair"].reshape(2, -1)
    if "dist" in door:
        named["parts"], named["others"] = ([*named[name].chunk(SIZE)] for name in ("xs", "ys"))
        named["at_root"] = named["parts"] if RANK == 0 else None
    call: Callable[[], object] = eval(f"lambda: {text}", named)
    if not by_hand:
        return call
    copied = re.findall(r"\b(?:" + "|".join([*LONG, "parts", "others", "at_root"]) + r")\b", text)
    whole = {"parts": "xs", "others": "ys", "at_root": "xs"}
    return packed_by_hand(
        call, [(named[it], gaps(n * LONG[it], cell.dtype)) for it in (whole.get(c, c) for c in copied)]
    )


def least(call: Callable[[], object], calls: int) -> float:
    """Microseconds of the fastest of these calls, on the slowest rank."""
    fastest = 1e9
    WORLD.Barrier()
    for _ in range(calls):
        start = perf_counter()
        call()
        fastest = min(fastest, perf_counter() - start)
    return float(WORLD.allreduce(fastest, MPI.MAX)) * 1e6


def measured(forms: Forms, layouts: Layouts, door: dict[str, Any]) -> dict[Cell, list[float]]:
    """The microseconds of all kinds of calls, by size. A kind that the door refuses is left out. All are measured
    several times, one after another, because something else may keep a core busy for a moment."""
    found: dict[Cell, list[float]] = {}
    for cell in [*cells(forms, layouts)] * TURNS:
        try:
            calls = [call_of(cell, forms[cell.form][0], layouts, nbytes, door) for nbytes in SIZES]
            calls[0]()
        except (TypeError, ValueError, RuntimeError, BufferError):  # on all ranks, before data moves
            continue
        now = [least(call, 60 if nbytes <= 64 << 10 else 20) for call, nbytes in zip(calls, SIZES, strict=True)]
        found[cell] = [*map(min, now, found.get(cell, now))]
    return found


def cliffs(forms: Forms, times: dict[Cell, list[float]]) -> Iterator[str]:
    """A line for each kind of call that has a much faster neighbour: the worst of all."""
    for cell, own in times.items():
        if cell.layout.endswith(BY_HAND):
            continue
        simpler = [
            cell._replace(form=forms[cell.form][1] or cell.form),
            cell._replace(layout=cell.layout + BY_HAND if "strided" in cell.layout else "contiguous"),
            cell._replace(dtype="float32"),
            cell._replace(op="sum"),
        ]
        others = {", ".join(other): times[other] for other in simpler if other != cell and other in times}
        others["twice the size"] = [*own[1:], own[-1]]
        worst = 0.0, ""
        for name, other in others.items():
            for nbytes, us, less in zip(SIZES, own, other, strict=True):
                if us - less >= LEAST:
                    line = f"{size_text(nbytes):>5} {us:8.1f} {us / less:5.1f} x {less:.1f}, {name}"
                    worst = max(worst, (us / less, line))
        if worst[0] > MANY:
            yield f"{', '.join(cell):52} {worst[1]}"


def shared_tensor(n: int, dtype: str) -> Any:
    return mpicoll.torch.empty(n, dtype=getattr(torch, dtype)).zero_()


def of_torch(module: Any) -> dict[str, Any]:
    """The names of a door with torch's functions."""
    return {"dist": module, "op_of": lambda op: getattr(module.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper()))}


def main() -> None:
    """Measure. Rank 0 prints."""
    asked = sys.argv[1:] or ["comm", "mpicoll", "torch"]
    comm = mpicoll.Communicator()
    cart = WORLD.Create_cart([SIZE], periods=[True])
    grid = mpicoll.Communicator(cart)

    def shared(n: int, dtype: str) -> Any:
        made = comm.empty(n, dtype)
        made[:] = 0
        return made

    arrays = {**ARRAYS, "shared": shared, "strided shared": lambda n, dtype: shared(2 * n, dtype)[::2]}
    tensors = {**TENSORS, "shared": shared_tensor, "strided shared": lambda n, dtype: shared_tensor(2 * n, dtype)[::2]}
    mpicoll.torch.init_process_group()
    torch.distributed.init_process_group("mpicoll")
    doors: dict[str, tuple[Forms, Layouts, dict[str, Any]]] = {
        "comm": (COMM, arrays, {"comm": comm, "grid": grid, "cart": cart, "op_of": str}),
        "mpicoll": (TORCH, tensors, of_torch(mpicoll.torch)),
        "torch": (TORCH, tensors, of_torch(torch.distributed)),
    }
    for name in asked:
        forms, layouts, door = doors[name]
        start = perf_counter()
        times = measured(forms, layouts, door)
        if RANK == 0:
            took = f"{len(times)} kinds of calls in {perf_counter() - start:.0f} s"
            refused = sorted({*forms} - {cell.form for cell in times})
            print(f"# {name}: {took}, without {refused}, {library()}, {SIZE} ranks, {cpu_name()}")
            print(*cliffs(forms, times), sep="\n", flush=True)
    torch.distributed.destroy_process_group()
    mpicoll.torch.destroy_process_group()


if __name__ == "__main__":
    main()
