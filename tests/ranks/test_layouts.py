"""Random collectives on arrays of all layouts. Each rank has its own: what comes out is what comes out of plain arrays,
and what lies between the elements stays. Each call is made again, and the kernel finds it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mpicoll

pytestmark = pytest.mark.sizes(1, 2, 3, 4)

DRAWS = 120
LENGTHS = [0, 1, 3, 17, 500, 2_047, 9_000, 30_000]
DTYPES = ["float32", "int8", "int16", "float64", "complex128"]


class Subclass(np.ndarray[Any, Any]):
    """An array whose type is not NumPy's own."""


Array = NDArray[Any]
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "plain": lambda memory: memory[: memory.size // 8],
    "strided": lambda memory: memory[1 : memory.size // 4 : 2],
    "backwards": lambda memory: memory[memory.size // 8 * 3 - 1 :: -3] if memory.size else memory,
    "column": lambda memory: memory.reshape(-1, 8)[:, 5],
    "subclass": lambda memory: memory[: memory.size // 8].view(Subclass),
}
"""An array of an eighth of the memory's elements."""
FORMS: dict[str, tuple[str, str]] = {
    "allreduce": ("one", "one"), "reduce": ("one", "one"), "scan": ("one", "one"), "exscan": ("one", "one"),
    "bcast": ("one", ""), "gather": ("one", "all"), "allgather": ("one", "all"), "scatter": ("all", "one"),
    "reduce_scatter": ("all", "one"), "alltoall": ("all", "all"), "gatherv": ("mine", "uneven"),
    "allgatherv": ("mine", "uneven"), "scatterv": ("uneven", "mine"), "reduce_scatterv": ("uneven", "mine"),
    "alltoallv": ("sent", "came"),
}  # fmt: skip
"""How many elements a rank gives, and how many it gets."""


def drawn_call(common: np.random.Generator, size: int, rank: int) -> tuple[str, dict[str, Any], int, int]:
    """A form, its arguments beside the arrays, and how many elements its arrays have on this rank."""
    form, n = str(common.choice([*FORMS])), int(common.choice(LENGTHS))
    root, counts = int(common.integers(size)), [int(k) for k in common.integers(0, n + 1, size)]
    pairs = common.integers(0, n // size + 1, (size, size))
    sent, came = ([int(k) for k in row] for row in (pairs[rank], pairs[:, rank]))
    lengths = {"one": n, "all": n * size, "mine": counts[rank], "uneven": sum(counts), "sent": sum(sent),
               "came": sum(came), "": 0}  # fmt: skip
    more: dict[str, Any] = {}
    if form == "alltoallv":
        more = {"sendcounts": sent, "recvcounts": came}
    elif form.endswith("v"):
        more = {"counts": counts}
    if form.removesuffix("v") in ("reduce", "bcast", "gather", "scatter"):
        more["root"] = root
    if form.startswith(("all", "re")) and "reduce" in form:
        more["op"] = str(common.choice(["sum", "avg", "prod"]))
    gives, gets = FORMS[form]
    return form, more, lengths[gives], lengths[gets]


def made(comm: mpicoll.Communicator, form: str, blocks: bool, arguments: dict[str, Any]) -> Any:
    return getattr(comm, form)(**arguments) if blocks else getattr(comm, f"i{form}")(**arguments).wait()


def test_random_layouts() -> None:
    seed = int(os.environ.get("MPICOLL_SEED", "20261129"))
    print(f"MPICOLL_SEED={seed}")
    comm = mpicoll.Communicator()
    own = np.random.default_rng([seed, comm.rank, 1])
    for i in range(DRAWS):
        common = np.random.default_rng([seed, i])
        form, more, given, taken = drawn_call(common, comm.size, comm.rank)
        dtype, blocks, in_place = str(common.choice(DTYPES)), bool(common.random() < 0.5), bool(common.random() < 0.3)
        memory = [own.integers(1, 4, 8 * n).astype(dtype) for n in (given, taken)]
        x, y = (LAYOUTS[str(own.choice([*LAYOUTS]))](each) for each in memory)
        first = "x" if FORMS[form][0] in ("one", "mine") and form != "scatter" else "xs"
        in_place &= form in ("allreduce", "reduce", "scan")
        out = {} if form == "bcast" else {"out": x if in_place else y}
        for _ in range(3):
            before = [each.copy() for each in memory]
            plain, result = np.array(x), np.array(y)
            there = {} if form == "bcast" else {"out": plain if in_place else result}
            made(comm, form, True, {first: plain, **more, **there})
            made(comm, form, blocks, {first: x, **more, **out})
            where = f"draw {i}: {form} {more} of {given} {dtype} to {taken}, strides {x.strides} and {y.strides}"
            np.testing.assert_array_equal(x, plain, err_msg=where)
            np.testing.assert_array_equal(y, result, err_msg=where)
            x[...], y[...] = (LAYOUTS["plain"](own.integers(1, 4, 8 * n).astype(dtype)) for n in (given, taken))
            for now, then, array in zip(memory, before, (x, y), strict=True):
                assert between(now, now, array) == between(then, now, array), where


def between(values: Array, memory: Array, array: Array) -> bytes:
    """The values of the memory, without the array's elements."""
    found = values.copy()
    first = (array.ctypes.data - memory.ctypes.data) // memory.itemsize
    np.lib.stride_tricks.as_strided(found[first:], array.shape, array.strides)[...] = 0
    return found.tobytes()


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "does not block"])
def test_other_counts_are_another_call(blocks: bool) -> None:
    """Though they are in the same list, and the arrays have as many elements."""
    comm = mpicoll.Communicator()
    size, rank = comm.size, comm.rank
    counts, xs = [2] * size, np.arange(4.0 * size).reshape(2 * size, 2)
    for turn in range(4):
        counts[:] = [2] * size
        if turn % 2 and size > 1:
            counts[0], counts[1] = 1, 3
        starts = [0, *np.cumsum(counts).tolist()]
        begin, end = list(pairwise(starts))[rank]
        y = np.empty((counts[rank], 2))
        made(comm, "scatterv", blocks, {"xs": xs, "counts": counts, "out": y})
        np.testing.assert_array_equal(y, xs[begin:end])
        made(comm, "reduce_scatterv", blocks, {"xs": xs, "counts": tuple(counts), "out": y})
        np.testing.assert_array_equal(y, size * xs[begin:end])
        gathered = np.empty_like(xs)
        made(comm, "allgatherv", blocks, {"x": xs[begin:end], "counts": counts, "out": gathered})
        np.testing.assert_array_equal(gathered, xs)


def test_many_counts_of_the_same_arrays() -> None:
    """More than the kernel has sets of calls at first, so that it must tell calls apart whose hashes begin alike."""
    comm = mpicoll.Communicator()
    if comm.size < 2:
        pytest.skip("one rank has one way to divide its rows")
    rows, own = 100, 5
    xs, out = np.arange(float(rows)).reshape(rows, 1), np.empty((own, 1))
    for _ in range(2):
        for cut in range(rows - own):
            counts = [cut, own, *[0] * (comm.size - 2)]  # rank 1 has the same array each time
            if comm.size > 2:
                counts[-1] = rows - own - cut
            begin, end = list(pairwise([0, *np.cumsum(counts).tolist()]))[comm.rank]
            result = out if comm.rank == 1 else np.empty((end - begin, 1))
            comm.scatterv(xs[: sum(counts)], counts, 0, result)
            np.testing.assert_array_equal(result, xs[begin:end])


def test_other_rows_are_another_call() -> None:
    """Of as many elements, at the same place, but more or fewer rows than the counts say."""
    comm = mpicoll.Communicator()
    memory, gathered = np.arange(6.0), np.empty(6 * comm.size)
    counts = [3] * comm.size
    for _ in range(2):
        comm.allgatherv(memory.reshape(3, 2), counts, gathered.reshape(-1, 2))
        with pytest.raises(mpicoll.errors.ArgumentError, match=r"3 rows"):
            comm.allgatherv(memory.reshape(6, 1), counts, gathered.reshape(-1, 1))


LENT: dict[str, Callable[[Sequence[int]], Any]] = {
    "memoryview": lambda values: np.array(values, np.int8).data,
    "bytearray": lambda values: bytearray(np.array(values, np.int8)),
}


@pytest.mark.parametrize("kind", LENT)
def test_lent_memory_stays_while_a_call_is_under_way(kind: str) -> None:
    comm = mpicoll.Communicator()
    for _ in range(3):
        x, y = LENT[kind]([comm.rank + 1] * 9), LENT[kind]([0] * 9)
        if comm.rank:  # the first rank's call cannot be complete before
            comm.recv_object(0)
        request = comm.iallreduce(x, out=y)
        if comm.rank == 0 and comm.size > 1 and isinstance(x, bytearray):
            with pytest.raises(BufferError):
                x.extend(b"more")
        for other in range(1, comm.size) if comm.rank == 0 else ():
            comm.send_object(None, other)
        request.wait()
        assert bytes(memoryview(y)) == bytes([sum(range(comm.size + 1))] * 9)
        if isinstance(x, bytearray):
            del request
            x.extend(b"more")  # nothing holds it any more


def test_memory_that_nobody_may_write() -> None:
    """Not either when an array that may be written to lay at this place in the call before."""
    comm = mpicoll.Communicator()
    memory = np.ones(5)
    for _ in range(2):
        comm.allreduce(memory.data, out=memory.data)
        with pytest.raises(mpicoll.errors.ArgumentError, match="read-only"):
            comm.allreduce(memory.data.toreadonly(), out=memory.data.toreadonly())
