"""Wrong arguments: one clear error on the rank at fault, before any data moves, with nothing written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import mpicoll
from mpicoll import Op
from mpicoll.errors import ArgumentError, DeviceError, DtypeError, StateError
from tests.arrays import Exporter, OnAGpu

pytestmark = pytest.mark.sizes(1, 2)


def fixed(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x.flags.writeable = False
    return x


NAMES = {
    "np": np, "torch": torch, "MPI": MPI, "mpicoll": mpicoll, "Op": Op, "Exporter": Exporter,
    "on_a_gpu": OnAGpu(None, shape=(4,), typestr="<f4", data=(0xDEAD0000, False), stream=1), "fixed": fixed,
    "OWN": MPI.Op.Create(lambda a, b, kind: None),
}  # fmt: skip
"""What the calls may name."""

CASES = (
    ("c.allreduce([1, 2])", "allreduce: x: ... list [1, 2]"),
    ("c.bcast(np.array([{}]))", "DtypeError: ... bcast: x: ... object"),
    ("c.allreduce(y.astype('>f8'))", "DtypeError: ... allreduce: op: ... sum of >f8"),
    ("c.allreduce(y, 'mean')", "allreduce: op: ... avg ... 'mean'"),
    ("c.allreduce(y, ['sum'])", "allreduce: op: ... ['sum']"),
    ("c.allreduce(y, 'premul_sum')", "Op.premul_sum(factor)"),
    ("c.allreduce(y, 'band')", "DtypeError: ... allreduce: op: ... int64 ... band of float64"),
    ("c.allreduce(y, Op.premul_sum(1j))", "DtypeError: ... premul_sum(1j) of float64"),
    ("c.bcast(y, c.size)", "bcast: root: ... a rank"),
    ("c.gather(y, root='0')", "gather: root: ... '0'"),
    ("c.bcast(y, algorithm='x')", "bcast: algorithm: ... native ... 'x'"),
    ("c.allreduce(y.astype('float16'), algorithm='native')", "allreduce: algorithm: ... sum of float16 ... exchange"),
    ("c.allgather(np.ones(5), y[:-1])", "allgather: out: ... elements"),
    ("c.allreduce(np.ones(2), out=y)", "allreduce: out: expected 2"),
    ("c.reduce_scatter(np.ones(()))", "reduce_scatter: xs: ... xs may have any shape ... shape ()"),
    ("c.allreduce(np.ones(2), y)", "allreduce: op: ... given an array (did you mean out=?)"),
    ("c.gather(np.ones(2), y)", "gather: root: ... given an array (did you mean out=?)"),
    ("c.reduce(np.ones(2), 'sum', y)", "reduce: root: ... did you mean out=?"),
    ("c.bcast(None)", "bcast: x: ... NoneType None"),
    ("c.isend({}, 0)", "isend: x: ... dict {}"),
    ("setattr(c, 'timeout', '5')", "Communicator: timeout: expected seconds, more than 0; given '5'"),
    ("c.allreduce(y, 'MAX')", "given 'MAX'"),
    ("c.allreduce(y, 'summ')", "given 'summ'"),
    ("c.alltoall(None)", "alltoall: xs: expected an array"),
    ("c.scatter(np.ones(()), c.rank)", "scatter: xs: expected shape ( ... shape ()"),
    ("c.allreduce(np.ones(y.size, 'f4'), out=y)", "DtypeError: ... out: expected dtype float32 ... float64"),
    ("c.allreduce(y[:3], out=y[1:4])", "allreduce: out: ... overlaps"),
    ("c.allgather(y[1:1 + 4], y[:4 * c.size])", "allgather: out: ... own block ... overlaps"),
    ("c.allreduce(y, out=y[::-1])", "allreduce: out: ... overlaps"),
    ("c.alltoall(y[:4 * c.size], y[:4 * c.size])",
     "alltoall: out: expected memory that does not overlap xs's ... memory that overlaps it"),
    ("c.allreduce((x := fixed(np.ones(2))), out=x)", "allreduce: x: ... read-only"),
    ("c.scan(np.ones(2), out=fixed(np.ones(2)))", "scan: out: ... written"),
    ("c.allreduce((x := b'ab'), 'max', out=x)", "allreduce: x: ... written"),
    ("c.allreduce(np.ones(2), out=np.lib.stride_tricks.as_strided(y, (2,), (0,)))", "allreduce: out: ... share memory"),
    ("c.allreduce((x := np.lib.stride_tricks.as_strided(y, (3, 2), (8, 8))), out=x)", "allreduce: x: ... share memory"),
    ("c.allreduce(np.ma.masked_array(y, y == 1))", "allreduce: x: ... mask"),
    ("Op([])", "Op: name: expected one of ... []"),
    ("Op.premul_sum('a')", "Op: factor: ... 'a'"),
    ("c.allgather_object(lambda: 0)", "allgather_object: obj: ... pickled"),
    ("c.send_object(1, 0, tag=-1)", "send_object: tag:"),
    ("c.allreduce(on_a_gpu)", "DeviceError: ... allreduce: x: ... GPU ... OnAGpu"),  # on a machine without one
    ("c.allgatherv(y, [1] * (c.size + 1))", "allgatherv: counts:"),
    ("c.scatterv(y, [-1] * c.size, c.rank)", "scatterv: counts: ... negative"),
    ("c.allgatherv(y[:1], None, y[1:1 + c.size])", "allgatherv: counts: ... None"),
    ("c.alltoallv(np.ones(c.size), None, [1] * c.size, y[:c.size])", "alltoallv: sendcounts: ... None"),
    ("c.gatherv(y, ['a'] * c.size)", "gatherv: ... 'a'"),
    ("c.allgatherv(np.ones((2, 3)), [1] * c.size)", "allgatherv: x: expected 1 rows of 3 ... (2, 3)"),
    ("c.alltoallv(np.ones((c.size, 2)), [2] * c.size, [2] * c.size)", "alltoallv: xs: ... rows of 2"),
    ("c.send(y, c.size)", "send: dest:"),
    ("c.irecv(y, -7)", "irecv: source: ... -7"),
    ("c.isend(y, 0, tag=-1)", "isend: tag: ... -1"),
    ("c.recv(fixed(np.ones(1)), 0)", "recv: x: ... written"),
    ("c.sendrecv(y[:3], 0, y[1:4])", "sendrecv: out: ... overlaps"),
    ("c.scatter_object([1] * (c.size + 1), c.rank)", "scatter_object: objs:"),
    ("c.alltoall_object(None)", "alltoall_object: objs: ... None"),
    ("c.allreduce_object(1, 'mean')", "allreduce_object: op: ... 'mean'"),
    ("c.allreduce(y, MPI.MINLOC)", "allreduce: op: ... MPI.SUM ... given MPI.MINLOC"),
    ("c.reduce(y, OWN)", "reduce: op: ... given an MPI.Op of the program's own"),
    ("c.allreduce(y, MPI.BAND)", "DtypeError: ... band of float64"),
    ("c.allreduce(y, Op.premul_sum(10 ** 400))", "Op: factor: ... range of a float ... int"),
    ("c.split(1.5)", "split: color: ... None or an int ... 1.5"),
    ("c.split(-1)", "split: color: ... from 0 to ... -1"),
    ("c.split(2 ** 31)", "split: color: ... 2147483647"),
    ("c.split(0, 'a')", "split: key: ... 'a'"),
    ("c.subset(3)", "subset: ranks: ... a sequence of ranks ... 3"),
    ("c.allreduce(MPI.IN_PLACE, out=y)",
     "allreduce: x: expected an array (out=x replaces MPI.IN_PLACE); given MPI.IN_PLACE"),
    ("c.scatter(None, (c.rank + 1) % c.size) if c.size > 1 else c._engine.plan('scatter', y, None)",
     "scatter: out: expected an array to receive rank ... 's block: only the root may leave it out; given None"),
    ("c.allgatherv(np.ones(1), [1 if r == c.rank else 2 ** 62 for r in range(c.size)] + [0] * (c.size < 2))",
     "allgatherv: counts:"),
    ("c.alltoallv(y[:c.size], [1] * c.size, [2 ** 62] * c.size)", "alltoallv: counts: ... fit into memory"),
    ("c.allreduce(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))",
     "allreduce: x: expected a dense tensor; given a nested tensor"),
    ("c.allreduce(Exporter(torch.ones(3, requires_grad=True)))",
     "allreduce: x: expected a DLPack array ... Exporter ... gradient"),
    ("c.bcast(np.zeros(3, np.dtype([])), algorithm='binomial_tree')",
     "DtypeError: ... bcast: x: expected elements of at least one byte"),
    ("c.allreduce(memoryview(y).toreadonly(), out=memoryview(y).toreadonly())", "allreduce: out: ... read-only"),
    ("c.iallreduce(np.ones(3), out=np.ones(4))", "iallreduce: out: expected 3 elements"),
    ("c.iallreduce(y, algorithm='rong')", "iallreduce: algorithm: expected None or one of"),
    ("c.ialltoall((x := y[:4 * c.size]), x)", "ialltoall: out: expected memory that does not overlap xs's"),
    ("c.ibcast(y, root=c.size)", "ibcast: root: expected a rank"),
    ("mpicoll.Communicator(5)", "Communicator: comm: ... 5"),
    ("mpicoll.Communicator(MPI.COMM_NULL)", "Communicator: comm: ... not freed; given MPI.COMM_NULL"),
    ("mpicoll.Communicator(check='all')", "Communicator: check: expected off, watch, full; given 'all'"),
    ("mpicoll.Communicator(timeout=0)", "Communicator: timeout: expected seconds, more than 0; given 0"),
    ("mpicoll.Communicator(reproducible=1)", "Communicator: reproducible: expected True, False or None; given 1"),
    ("c.subset([0, 0])", "subset: ranks: ... [0, 0]"),
)  # fmt: skip
"""Calls of a communicator ``c``, where ``y`` has five float64 zeros a rank, and what the error says, in this order: the
class comes first where it is not ArgumentError itself."""
KINDS = {"DtypeError:": DtypeError, "DeviceError:": DeviceError}


@pytest.mark.parametrize(("call", "expected"), CASES)
def test_wrong_arguments(comm: mpicoll.Communicator, call: str, expected: str) -> None:
    y = np.zeros(5 * comm.size)
    words = expected.split(" ... ")
    kind = KINDS.get(words[0], ArgumentError)
    words = [word for word in words if word not in KINDS]
    for _ in range(2):  # the second time it might be found in a cache
        with pytest.raises(ArgumentError) as caught:
            eval(call, {**NAMES, "c": comm, "y": y})
        assert type(caught.value) is kind
        assert isinstance(caught.value, ValueError)
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


def test_a_freed_communicator(comm: mpicoll.Communicator) -> None:
    x = np.ones(1)
    comm.allreduce(x, out=x)
    calls: list[Callable[[], object]] = [
        lambda: comm.allreduce(x, out=x), lambda: comm.bcast(x), lambda: comm.allgather_object(1),
        lambda: comm.send(x, 0), lambda: comm.iallreduce(x), comm.barrier,
    ]  # fmt: skip
    comm.free()
    comm.free()
    for call in calls:
        with pytest.raises(StateError, match="it was freed"):
            call()
    assert x[0] == comm.size


def test_a_block_that_raises_on_one_rank_does_not_wait_for_the_others() -> None:
    comm = mpicoll.Communicator()
    if comm.rank == 0:
        with pytest.raises(ArgumentError), comm:
            comm.bcast(np.ones(1), comm.size)
        with pytest.raises(StateError, match="raised"):
            comm.barrier()
