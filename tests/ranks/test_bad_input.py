"""Wrong arguments: one clear error on the rank at fault, before any data moves, with nothing written."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import mpicoll
from mpicoll import Op
from mpicoll.errors import ArgumentError, DeviceError, DtypeError, StateError
from tests.arrays import Exporter

pytestmark = pytest.mark.sizes(1, 2)


class OnDevice:
    """What says that it lies on a GPU, on a machine without one."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (4,), "typestr": "<f4", "data": (0xDEAD0000, False), "version": 3, "stream": 1}


def fixed(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x.flags.writeable = False
    return x


OWN = MPI.Op.Create(lambda a, b, kind: None)

Call = Callable[[mpicoll.Communicator, np.ndarray[Any, Any]], Any]

# name -> (the call, given a float64 array of zeros with 4 elements a rank and one a rank beyond them; error; the words
# that the message must have)
CASES: dict[str, tuple[Call, type[ArgumentError], list[str]]] = {
    "no array": (lambda c, y: c.allreduce([1, 2]), ArgumentError, ["allreduce: x:", "list [1, 2]"]),  # type: ignore[call-overload]
    "objects": (lambda c, y: c.bcast(np.array([{}])), DtypeError, ["bcast: x:", "object"]),
    "unknown dtype": (lambda c, y: c.allreduce(y.astype(">f8")), DtypeError, ["allreduce: op:", "sum of >f8"]),
    "unknown op": (lambda c, y: c.allreduce(y, "mean"), ArgumentError, ["allreduce: op:", "avg", "'mean'"]),
    "op of a wrong type": (lambda c, y: c.allreduce(y, ["sum"]), ArgumentError, ["allreduce: op:", "['sum']"]),  # type: ignore[call-overload]
    "premul_sum without factor": (lambda c, y: c.allreduce(y, "premul_sum"), ArgumentError, ["Op.premul_sum(factor)"]),
    "band of floats": (lambda c, y: c.allreduce(y, "band"), DtypeError, ["allreduce: op:", "int64", "band of float64"]),
    "avg of bools": (lambda c, y: c.reduce(y.astype(bool), "avg"), DtypeError, ["reduce: op:", "avg of bool"]),
    "max of complex": (lambda c, y: c.exscan(y.astype("c16"), "max"), DtypeError, ["max of complex128"]),
    "complex factor of floats": (
        lambda c, y: c.allreduce(y, Op.premul_sum(1j)),
        DtypeError,
        ["premul_sum(1j) of float64"],
    ),
    "root too large": (lambda c, y: c.bcast(y, c.size), ArgumentError, ["bcast: root:", "a rank"]),
    "root negative": (lambda c, y: c.reduce(y, root=-1), ArgumentError, ["reduce: root:", "-1"]),
    "root no int": (lambda c, y: c.gather(y, root="0"), ArgumentError, ["gather: root:", "'0'"]),  # type: ignore[call-overload]
    "unknown algorithm": (
        lambda c, y: c.bcast(y, algorithm="x"),
        ArgumentError,
        ["bcast: algorithm:", "native", "'x'"],
    ),
    "algorithm that does not serve": (
        lambda c, y: c.allreduce(y.astype("float16"), algorithm="native"),
        ArgumentError,
        ["allreduce: algorithm:", "sum of float16", "exchange"],
    ),
    "allgather into too little": (
        lambda c, y: c.allgather(np.ones(5), y[:-1]),
        ArgumentError,
        ["allgather: out:", "elements"],
    ),
    "allreduce into too much": (
        lambda c, y: c.allreduce(np.ones(2), out=y),
        ArgumentError,
        ["allreduce: out: expected 2"],
    ),
    "reduce_scatter of no blocks": (
        lambda c, y: c.reduce_scatter(np.ones(())),
        ArgumentError,
        ["reduce_scatter: xs:", "xs may have any shape", "shape ()"],
    ),
    "result as the second array of an allreduce": (
        lambda c, y: c.allreduce(np.ones(2), y),  # type: ignore[call-overload]
        ArgumentError,
        ["allreduce: op:", "given an array (did you mean out=?)"],
    ),
    "result as the second array of a gather": (
        lambda c, y: c.gather(np.ones(2), y),  # type: ignore[call-overload]
        ArgumentError,
        ["gather: root:", "given an array (did you mean out=?)"],
    ),
    "result as the second array of a reduce": (
        lambda c, y: c.reduce(np.ones(2), "sum", y),  # type: ignore[call-overload]
        ArgumentError,
        ["reduce: root:", "did you mean out=?"],
    ),
    "a number": (
        lambda c, y: c.allreduce(1),  # type: ignore[call-overload]
        ArgumentError,
        ["allreduce: x:", "allreduce_object takes Python objects"],
    ),
    "a list": (lambda c, y: c.scan([1, 2]), ArgumentError, ["scan: x:", "np.asarray makes an array of numbers"]),  # type: ignore[call-overload]
    "a dict": (lambda c, y: c.bcast({}), ArgumentError, ["bcast: x:", "dict {} (bcast_object takes Python objects)"]),  # type: ignore[type-var]
    "MINLOC": (
        lambda c, y: c.allreduce(y, "MPI.MINLOC"),
        ArgumentError,
        ["allreduce: op:", "'MPI.MINLOC', which takes pairs of a value and a place: keep mpi4py's call"],
    ),
    "a text as timeout": (
        lambda c, y: setattr(c, "timeout", "5"),
        ArgumentError,
        ["Communicator: timeout: expected seconds, more than 0; given '5'"],
    ),
    "True as timeout": (lambda c, y: setattr(c, "timeout", True), ArgumentError, ["timeout:", "given True"]),
    "capitals": (lambda c, y: c.allreduce(y, "MAX"), ArgumentError, ["given 'MAX' (did you mean 'max'?)"]),
    "a misspelt operation": (lambda c, y: c.allreduce(y, "summ"), ArgumentError, ["'summ' (did you mean 'sum'?)"]),
    "alltoall of no array": (lambda c, y: c.alltoall(None), ArgumentError, ["alltoall: xs: expected an array"]),  # type: ignore[call-overload]
    "scatter of no blocks": (
        lambda c, y: c.scatter(np.ones(()), c.rank),
        ArgumentError,
        ["scatter: xs: expected shape (", "shape ()"],
    ),
    "another dtype": (
        lambda c, y: c.allreduce(np.ones(y.size, "f4"), out=y),
        DtypeError,
        ["out: expected dtype float32", "float64"],
    ),
    "overlap": (lambda c, y: c.allreduce(y[:3], out=y[1:4]), ArgumentError, ["allreduce: out:", "overlaps"]),
    "overlap with a wrong block": (
        lambda c, y: c.allgather(y[1 : 1 + 4], y[: 4 * c.size]),
        ArgumentError,
        ["allgather: out:", "own block", "overlaps"],
    ),
    "reversed onto itself": (lambda c, y: c.allreduce(y, out=y[::-1]), ArgumentError, ["allreduce: out:", "overlaps"]),
    "alltoall onto itself": (
        lambda c, y: c.alltoall(y[: 4 * c.size], y[: 4 * c.size]),
        ArgumentError,
        ["alltoall: out: expected memory that does not overlap xs's", "memory that overlaps it"],
    ),
    "read-only input in place": (
        lambda c, y: c.allreduce(x := fixed(np.ones(2)), out=x),
        ArgumentError,
        ["allreduce: x:", "read-only"],
    ),
    "read-only output": (
        lambda c, y: c.scan(np.ones(2), out=fixed(np.ones(2))),
        ArgumentError,
        ["scan: out:", "written"],
    ),
    "bytes, which are read-only": (
        lambda c, y: c.allreduce(x := b"ab", "max", out=x),
        ArgumentError,
        ["allreduce: x:", "written"],
    ),
    "elements that share memory": (
        lambda c, y: c.allreduce(np.ones(2), out=np.lib.stride_tricks.as_strided(y, (2,), (0,))),
        ArgumentError,
        ["allreduce: out:", "share memory"],
    ),
    "elements that overlap, in place": (
        lambda c, y: c.allreduce(x := np.lib.stride_tricks.as_strided(y, (3, 2), (8, 8)), out=x),
        ArgumentError,
        ["allreduce: x:", "share memory"],
    ),
    "a mask": (lambda c, y: c.allreduce(np.ma.masked_array(y, y == 1)), ArgumentError, ["allreduce: x:", "mask"]),
    "an Op of a name that is no string": (lambda c, y: Op([]), ArgumentError, ["Op: name: expected one of", "[]"]),  # type: ignore[arg-type]
    "a factor that is no number": (lambda c, y: Op.premul_sum("a"), ArgumentError, ["Op: factor:", "'a'"]),  # type: ignore[arg-type]
    "an object that cannot be pickled": (
        lambda c, y: c.allgather_object(lambda: 0),
        ArgumentError,
        ["allgather_object: obj:", "pickled"],
    ),
    "a tag of an object": (lambda c, y: c.send_object(1, 0, tag=-1), ArgumentError, ["send_object: tag:"]),
    "a device that is not here": (
        lambda c, y: c.allreduce(OnDevice()),
        DeviceError,
        ["allreduce: x:", "GPU", "OnDevice"],
    ),
    "counts of another length": (
        lambda c, y: c.allgatherv(y, [1] * (c.size + 1)),
        ArgumentError,
        ["allgatherv: counts:"],
    ),
    "negative counts": (
        lambda c, y: c.scatterv(y, [-1] * c.size, c.rank),
        ArgumentError,
        ["scatterv: counts:", "negative"],
    ),
    "no counts": (
        lambda c, y: c.allgatherv(y[:1], None, y[1 : 1 + c.size]),  # type: ignore[call-overload]
        ArgumentError,
        ["allgatherv: counts:", "None"],
    ),
    "no counts of what is sent": (
        lambda c, y: c.alltoallv(np.ones(c.size), None, [1] * c.size, y[: c.size]),  # type: ignore[call-overload]
        ArgumentError,
        ["alltoallv: sendcounts:", "None"],
    ),
    "counts that are no ints": (lambda c, y: c.gatherv(y, ["a"] * c.size), ArgumentError, ["gatherv:", "'a'"]),  # type: ignore[list-item]
    "rows that are not there": (
        lambda c, y: c.allgatherv(np.ones((2, 3)), [1] * c.size),
        ArgumentError,
        ["allgatherv: x: expected 1 rows of 3", "(2, 3)"],
    ),
    "alltoallv of too few rows": (
        lambda c, y: c.alltoallv(np.ones((c.size, 2)), [2] * c.size, [2] * c.size),
        ArgumentError,
        ["alltoallv: xs:", "rows of 2"],
    ),
    "send to nobody": (lambda c, y: c.send(y, c.size), ArgumentError, ["send: dest:"]),
    "receive from nobody": (lambda c, y: c.irecv(y, -7), ArgumentError, ["irecv: source:", "-7"]),
    "negative tag": (lambda c, y: c.isend(y, 0, tag=-1), ArgumentError, ["isend: tag:", "-1"]),
    "receive into read-only": (lambda c, y: c.recv(fixed(np.ones(1)), 0), ArgumentError, ["recv: x:", "written"]),
    "sendrecv onto a part of itself": (
        lambda c, y: c.sendrecv(y[:3], 0, y[1:4]),
        ArgumentError,
        ["sendrecv: out:", "overlaps"],
    ),
    "too few objects": (
        lambda c, y: c.scatter_object([1] * (c.size + 1), c.rank),
        ArgumentError,
        ["scatter_object: objs:"],
    ),
    "objects that are none": (lambda c, y: c.alltoall_object(None), ArgumentError, ["alltoall_object: objs:", "None"]),  # type: ignore[arg-type]
    "unknown object op": (
        lambda c, y: c.allreduce_object(1, "mean"),
        ArgumentError,
        ["allreduce_object: op:", "'mean'"],
    ),
    "an operation of mpi4py's that is none of these": (
        lambda c, y: c.allreduce(y, MPI.MINLOC),
        ArgumentError,
        ["allreduce: op:", "MPI.SUM", "given MPI.MINLOC"],
    ),
    "an operation of the program's own": (
        lambda c, y: c.reduce(y, OWN),
        ArgumentError,
        ["reduce: op:", "given an MPI.Op of the program's own"],
    ),
    "band of floats by mpi4py's name": (lambda c, y: c.allreduce(y, MPI.BAND), DtypeError, ["band of float64"]),
    "a factor that no float holds": (
        lambda c, y: c.allreduce(y, Op.premul_sum(10**400)),
        ArgumentError,
        ["Op: factor:", "range of a float", "int"],
    ),
    "a factor of very many digits": (
        lambda c, y: c.allreduce(y, Op.premul_sum(10**5000)),
        ArgumentError,
        ["Op: factor:", "range of a float", "int"],
    ),
    "a decimal that no float holds": (
        lambda c, y: c.allreduce(y, Op.premul_sum(Decimal("1e400"))),  # type: ignore[arg-type]
        ArgumentError,
        ["Op: factor:", "range of a float", "Decimal"],
    ),
    "a complex factor of NumPy's, of floats": (
        lambda c, y: c.allreduce(y.astype("f4"), Op.premul_sum(np.complex64(1j))),  # type: ignore[arg-type]
        DtypeError,
        ["premul_sum(1j) of float32"],
    ),
    "a colour that is no int": (lambda c, y: c.split(1.5), ArgumentError, ["split: color:", "None or an int", "1.5"]),  # type: ignore[arg-type]
    "a negative colour": (lambda c, y: c.split(-1), ArgumentError, ["split: color:", "from 0 to", "-1"]),
    "a colour in words": (lambda c, y: c.split("a"), ArgumentError, ["split: color:", "'a'"]),  # type: ignore[arg-type]
    "a colour that MPI cannot count": (lambda c, y: c.split(2**31), ArgumentError, ["split: color:", "2147483647"]),
    "a key that is no int": (lambda c, y: c.split(0, "a"), ArgumentError, ["split: key:", "'a'"]),  # type: ignore[arg-type]
    "ranks that are one": (lambda c, y: c.subset(3), ArgumentError, ["subset: ranks:", "a sequence of ranks", "3"]),  # type: ignore[arg-type]
    "mpi4py's way to work in place": (
        lambda c, y: c.allreduce(MPI.IN_PLACE, out=y),  # type: ignore[call-overload]
        ArgumentError,
        ["allreduce: x: expected an array (out=x replaces MPI.IN_PLACE); given MPI.IN_PLACE"],
    ),
    "scatter to nowhere": (
        lambda c, y: c.scatter(None, (c.rank + 1) % c.size) if c.size > 1 else c._engine.plan("scatter", y, None),
        ArgumentError,
        ["scatter: out: expected an array to receive rank", "'s block: only the root may leave it out; given None"],
    ),
    "scatterv to nowhere": (
        lambda c, y: (
            c.scatterv(None, [1] * c.size, (c.rank + 1) % c.size)
            if c.size > 1
            else c._engine.plan("scatterv", y, None, sendcounts=[1])
        ),
        ArgumentError,
        ["scatterv: out: expected an array to receive rank", "only the root may leave it out; given None"],
    ),
    "counts of more rows than there are": (
        lambda c, y: c.allgatherv(
            np.ones(1), [1 if r == c.rank else 2**62 for r in range(c.size)] + [0] * (c.size < 2)
        ),
        ArgumentError,
        ["allgatherv: counts:"],
    ),
    "counts that no memory holds": (
        lambda c, y: c.alltoallv(y[: c.size], [1] * c.size, [2**62] * c.size),
        ArgumentError,
        ["alltoallv: counts:", "fit into memory"],
    ),
    "counts of tensors that no memory holds": (
        lambda c, y: c.alltoallv(torch.ones(c.size), [1] * c.size, [2**62] * c.size),
        ArgumentError,
        ["alltoallv: counts:", "fit into memory"],
    ),
    "a nested tensor": (
        lambda c, y: c.allreduce(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
        ArgumentError,
        ["allreduce: x: expected a dense tensor; given a nested tensor"],
    ),
    "a jagged tensor": (
        lambda c, y: c.bcast(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)),
        ArgumentError,
        ["bcast: x: expected a dense tensor; given a nested tensor"],
    ),
    "DLPack of a tensor that requires a gradient": (
        lambda c, y: c.allreduce(Exporter(torch.ones(3, requires_grad=True))),
        ArgumentError,
        ["allreduce: x: expected a DLPack array", "Exporter", "gradient"],
    ),
    "elements of no bytes": (
        lambda c, y: c.bcast(np.zeros(3, np.dtype([])), algorithm="binomial_tree"),
        DtypeError,
        ["bcast: x: expected elements of at least one byte"],
    ),
    "no communicator": (lambda c, y: mpicoll.Communicator(5), ArgumentError, ["Communicator: comm:", "5"]),  # type: ignore[arg-type]
    "colliding ranks": (lambda c, y: c.subset([0, 0]), ArgumentError, ["subset: ranks:", "[0, 0]"]),
}


@pytest.fixture(scope="module")
def comm() -> mpicoll.Communicator:
    return mpicoll.Communicator()


@pytest.mark.parametrize("case", CASES)
def test_wrong_arguments(comm: mpicoll.Communicator, case: str) -> None:
    call, kind, words = CASES[case]
    y = np.zeros(5 * comm.size)
    for _ in range(2):  # the second time it might be found in a cache
        with pytest.raises(ArgumentError) as caught:
            call(comm, y)
        assert type(caught.value) is kind
        assert [w for w in words if w not in str(caught.value)] == [], str(caught.value)
    assert not y.any()
    assert comm.allreduce(np.ones(1))[0] == comm.size


def test_a_cached_plan_does_not_serve_an_array_that_has_become_wrong(comm: mpicoll.Communicator) -> None:
    x = np.ones(4)
    comm.allreduce(x, out=x)
    x.flags.writeable = False
    with pytest.raises(ArgumentError, match="written"):
        comm.allreduce(x, out=x)
    x.flags.writeable = True
    x[:] = 1
    x.dtype = np.dtype("int64")  # type: ignore[misc, assignment]  # the same memory, other elements
    with pytest.raises(DtypeError):
        comm.allreduce(x, mpicoll.Op.premul_sum(0.5), out=x)
    x[:] = 3
    assert list(comm.allreduce(x, out=x)) == [3 * comm.size] * 4


def test_arguments_that_python_refuses(comm: mpicoll.Communicator) -> None:
    """Also where a plan of the call is known."""
    x, other, block = np.ones(2), np.zeros(2), np.ones(1)
    for _ in range(2):
        comm.allreduce(other, "max", out=x)
        comm.scatter(None if comm.rank else np.ones(comm.size), out=block)
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        comm.allreduce(x, "max", x=other, out=x)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="multiple values for argument 'op'"):
        comm.allreduce(other, "max", op="max", out=x)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'xs'"):
        comm.scatter(out=block)  # type: ignore[call-overload]
    assert not x.any()


def test_a_freed_communicator() -> None:
    comm = mpicoll.Communicator()
    x = np.ones(1)
    comm.allreduce(x, out=x)
    comm.free()
    comm.free()
    for use in (comm.allreduce, comm.bcast, comm.allgather_object, lambda x: comm.send(x, 0), lambda x: comm.barrier()):
        with pytest.raises(StateError, match="freed"):
            use(x)
    assert x[0] == comm.size


def test_a_block_that_raises_on_one_rank_does_not_wait_for_the_others() -> None:
    comm = mpicoll.Communicator()
    if comm.rank == 0:
        with pytest.raises(ArgumentError), comm:
            comm.bcast(np.ones(1), comm.size)
        with pytest.raises(StateError, match="raised"):
            comm.barrier()


def test_errors_carry_the_whole_call() -> None:
    e = ArgumentError("bcast", "root", "a rank, 0 to 3", "7")
    assert (e.operation, e.argument, e.expected, e.given) == ("bcast", "root", "a rank, 0 to 3", "7")
    assert isinstance(e, ValueError)
    assert str(e) == "bcast: root: expected a rank, 0 to 3; given 7"


def test_an_output_that_runs_backwards_into_the_input() -> None:
    with mpicoll.Communicator() as comm:
        whole = np.arange(100.0)
        with pytest.raises(ArgumentError, match="out: expected memory that does not overlap"):
            comm.allreduce(whole[:50], out=whole[79:29:-1])
        comm.allreduce(whole[:50], out=whole[99:49:-1])  # they only meet
        np.testing.assert_array_equal(whole[99:49:-1], comm.size * np.arange(50))
