"""What a type checker makes of programs: ``make lint`` checks this file, and nothing runs it.

Each ``assert_type`` says the exact type of a result. Each ``type: ignore`` says that a call is refused: mypy reports
those that are not needed."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import torch
from mpi4py import MPI

import mpicoll
import mpicoll.torch as dist
from mpicoll.arrays.protocols import ArrayLike
from mpicoll.communicator.engine.requests import Request

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]
Result = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def numpy_in_numpy_out(comm: mpicoll.Communicator, x: Vector) -> None:
    assert_type(comm.allreduce(x), Result)
    assert_type(comm.allreduce(x, MPI.MAX), Result)
    assert_type(comm.bcast(x), Vector)
    assert_type(comm.scan(x, "max"), Result)
    assert_type(comm.scan(x, algorithm="one_that_the_program_registered"), Result)
    assert_type(comm.allgather(x), Result)  # of another shape
    assert_type(comm.allgatherv(x, [1, 2]), Result)
    assert_type(comm.alltoallv(x, [1, 2], [2, 1]), Result)
    assert_type(comm.recv(x), Vector)
    assert_type(comm.sendrecv(x, 1, x), Vector)
    assert_type(comm.irecv(x), Request)


def torch_in_torch_out(comm: mpicoll.Communicator, x: torch.Tensor, weight: torch.nn.Parameter) -> None:
    assert_type(comm.allreduce(x), torch.Tensor)
    assert_type(comm.allreduce(weight), torch.Tensor)  # a new array of values is no parameter
    assert_type(comm.allreduce(weight, out=weight), torch.Tensor)
    assert_type(comm.allreduce(weight, out=x), torch.Tensor)
    assert_type(comm.bcast(weight), torch.nn.Parameter)
    assert_type(comm.allgather(x), torch.Tensor)
    assert_type(comm.recv(x), torch.Tensor)


def none_where_a_rank_has_no_result(comm: mpicoll.Communicator, x: Vector, t: torch.Tensor) -> None:
    assert_type(comm.reduce(x), Result | None)
    assert_type(comm.gather(t), torch.Tensor | None)
    assert_type(comm.gatherv(t, [1, 2]), torch.Tensor | None)
    assert_type(comm.exscan(t), torch.Tensor | None)
    assert_type(comm.scatter(t), torch.Tensor)
    assert_type(comm.scatter(t if comm.rank == 0 else None, out=t), torch.Tensor)
    assert_type(comm.scatter(None), Any)
    assert_type(comm.scatterv(None, [1, 2], out=t), torch.Tensor)
    assert_type(comm.scatter(None, out=x), Result)
    assert_type(comm.split(0), mpicoll.Communicator | None)


def other_memory(comm: mpicoll.Communicator, x: Vector, t: torch.Tensor, any_array: ArrayLike) -> None:
    """A new array is one of NumPy's or of torch's, and no type checker can tell which."""
    assert_type(comm.allreduce(memoryview(b"ab")), Any)
    assert_type(comm.allreduce(memoryview(b"ab"), out=bytearray(2)), Any)
    assert_type(comm.allreduce(x, out=t), Any)
    comm.allreduce([1, 2])  # type: ignore[call-overload]
    comm.allreduce(x, out=[0.0])  # type: ignore[call-overload]
    comm.allreduce(x, 3)  # type: ignore[call-overload]
    comm.bcast([1, 2])  # type: ignore[type-var]
    comm.send("text", 1)  # type: ignore[arg-type]


def objects(comm: mpicoll.Communicator, name: str) -> None:
    assert_type(comm.bcast_object(name), str)
    assert_type(comm.bcast_object(), Any)
    assert_type(comm.gather_object(name), list[str] | None)
    assert_type(comm.scatter_object([name]), str)
    assert_type(comm.alltoall_object([1, 2]), list[int])
    assert_type(comm.allreduce_object((1, 2), MPI.MAXLOC), tuple[int, int])
    assert_type(comm.allreduce_object({1}, lambda a, b: a | b), set[int])


def of_two(rank: int, name: str, times: int = 2) -> None: ...


def programs(name: str) -> None:
    def summed(comm: mpicoll.Communicator, times: int) -> float:
        return float(comm.allreduce(np.ones(times))[0])

    with mpicoll.threads(2) as ranks:
        assert_type(ranks.run(summed, 3), list[float])
        ranks.run(summed, name)  # type: ignore[arg-type]
    mpicoll.spawn(of_two, (name, 3), nprocs=2)
    mpicoll.spawn(of_two, [name], nprocs=2)
    mpicoll.spawn(of_two, (3,), nprocs=2)  # type: ignore[arg-type]
    mpicoll.spawn(of_two, nprocs=2)  # type: ignore[arg-type]


def with_torchs_names(x: torch.Tensor) -> None:
    assert_type(dist.all_reduce(x, dist.ReduceOp.MAX), dist.Work | None)
    assert_type(dist.isend(x, 1), dist.Work | None)
    assert_type(dist.recv(x), int)
