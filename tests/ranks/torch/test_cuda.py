"""Arrays in the memory of a GPU: through the MPI where it takes them, through host memory where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mpicoll
import mpicoll.torch as dist
from mpicoll.arrays.dtypes import DTYPES
from mpicoll.errors import ArgumentError, DeviceError, MpicollError, StateError
from tests.arrays import OnAGpu
from tests.ranks.children import in_child
from tests.ranks.torch.cases import FUNCTIONS, LAYOUTS, OP_OF, REDUCING, Case, Group, layouts, legal, run

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU here")]

ASYNC = ("none", "all", "some")
CYCLES = 100_000_000
"""What torch.cuda._sleep keeps a GPU busy for: tens of milliseconds, in which a call that does not wait is wrong."""


@pytest.fixture(autouse=True)
def own_device(default_group: bool) -> None:
    """Ranks are spread over the GPUs there are."""
    torch.cuda.set_device(dist.get_node_local_rank() % torch.cuda.device_count())


def like_cupy(x: torch.Tensor, read_only: bool = False, stream: int | None = None) -> Any:
    """What mpicoll sees of a CuPy array: an interface to memory, which here is a tensor's."""
    return OnAGpu(x, **{**x.__cuda_array_interface__, "data": (x.data_ptr(), read_only), "stream": stream})


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_dtype_and_op(groups: list[Group], function: str) -> None:
    for op in [*OP_OF, "premul_sum"] if function in REDUCING else ["sum"]:
        for i, dtype in enumerate(legal(op) if function in REDUCING else DTYPES):
            root = i % groups[0].size
            run(Case(function, dtype, op, root, (2, 3), async_ranks=ASYNC[i % 3], seed=i, device="cuda"), groups[0])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_layout_and_group(groups: list[Group], function: str) -> None:
    for out_layout in LAYOUTS:
        for i, dtype in enumerate(("float32", "bfloat16", "complex64")):
            if out_layout in layouts(dtype, dims=2):
                layout = "transposed" if function not in ("broadcast", "all_reduce", "reduce") else out_layout
                for g in groups:
                    run(Case(function, dtype, "sum", 0, (2, 3), layout, out_layout, ASYNC[i], device="cuda"), g)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_size(groups: list[Group], function: str) -> None:
    for shape in ((), (0,), (1,), (70_001,), (2_200_000,)):
        for dtype in ("float32", "float16"):
            run(Case(function, dtype, "avg", groups[0].size - 1, shape, device="cuda"), groups[0])


@pytest.mark.parametrize("op", ["sum", "max", "avg"])
def test_what_speaks_cupys_interface(comm: mpicoll.Communicator, op: str) -> None:
    x = torch.full((5,), comm.rank + 1.0, device="cuda")
    expected = {"sum": comm.size * (comm.size + 1) / 2, "max": comm.size, "avg": (comm.size + 1) / 2}[op]
    comm.allreduce(like_cupy(x), op, out=like_cupy(x))
    assert x.tolist() == [expected] * 5
    strided = torch.full((4, 2), comm.rank + 1.0, device="cuda")
    comm.allreduce(like_cupy(strided[:, 0]), op, out=like_cupy(strided[:, 0]))
    assert strided[:, 0].tolist() == [expected] * 4
    assert strided[:, 1].tolist() == [comm.rank + 1.0] * 4
    out = torch.zeros(comm.size, 2, device="cuda")
    comm.allgather(like_cupy(torch.full((2,), float(comm.rank), device="cuda"), read_only=True), out=like_cupy(out))
    assert out.tolist() == [[r, r] for r in range(comm.size)]


@pytest.mark.parametrize("own_stream", [False, True], ids=["default stream", "side stream"])
def test_cupys_arrays(comm: mpicoll.Communicator, own_stream: bool) -> None:
    """In place, and as the library of a result. What CuPy's stream computes before the call goes in."""
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.Stream(non_blocking=True) if own_stream else cupy.cuda.Stream.null:
        for _ in range(20):
            x = cupy.arange(100_000, dtype=np.float32) * 0 + comm.rank + 1
            result = comm.allreduce(x, "max")
            comm.allreduce(x, "sum", out=x)
            assert type(result) is type(x)
            assert cupy.unique(result).tolist() == [comm.size]
            assert cupy.unique(x).tolist() == [comm.size * (comm.size + 1) / 2]


def test_jaxs_arrays(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their library makes the result, and nothing is written into them."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else a rank takes most of the memory
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.full(1000, comm.rank + 1.0, jnp.bfloat16)
    result = comm.allreduce(x)
    torch.cuda.synchronize()
    assert type(result) is type(x)
    assert result.dtype == jnp.bfloat16
    assert (np.asarray(result) == comm.size * (comm.size + 1) / 2).all()
    with pytest.raises(ArgumentError, match="allreduce: x: expected an array that can be written to"):
        comm.allreduce(x, out=x)
    assert (np.asarray(x) == comm.rank + 1).all()


# -- order ------------------------------------------------------------------------------------------------------------


def _written_late(n: int, value: float) -> torch.Tensor:
    """A tensor that the current stream fills, but not soon."""
    x = torch.zeros(n, device="cuda")
    torch.cuda._sleep(CYCLES)
    return x.fill_(value)


MAX = dist.ReduceOp.MAX
CALLS: dict[str, Callable[..., tuple[Any, list[torch.Tensor]]]] = {
    "all_reduce": lambda x, outs, last, **how: (dist.all_reduce(x, MAX, **how), [x]),
    "all_gather_into_tensor": lambda x, outs, last, **how: (
        dist.all_gather_into_tensor(whole := torch.cat(outs), x, **how), [whole[-len(x) :]]
    ),
    "all_gather": lambda x, outs, last, **how: (dist.all_gather(outs, x, **how), outs[-1:]),
    "gather": lambda x, outs, last, **how: (
        dist.gather(x, outs if last else None, len(outs) - 1, **how), outs[-1:] * last
    ),
    "scatter": lambda x, outs, last, **how: (
        dist.scatter(outs[0], [x] * len(outs) if last else None, len(outs) - 1, **how), outs[:1]
    ),
    "all_to_all": lambda x, outs, last, **how: (dist.all_to_all(outs, [x] * len(outs), **how), outs[-1:]),
    "broadcast": lambda x, outs, last, **how: (dist.broadcast(x, len(outs) - 1, **how), [x]),
}  # fmt: skip
"""Calls, and the results that must be what the last rank gives."""


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("own_stream", [False, True], ids=["default stream", "side stream"])
def test_calls_follow_the_current_stream(rank: int, size: int, call: Any, async_op: bool, own_stream: bool) -> None:
    """What the stream computes before the call goes in, and what it computes after sees the result."""
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        outs = [torch.zeros(1000, device="cuda") for _ in range(size)]
        work, results = call(_written_late(1000, rank + 1.0), outs, rank == size - 1, async_op=async_op)
        if work is not None:
            work.wait()
        after = [r * 2 for r in results]
    stream.synchronize()
    assert [r.unique().tolist() for r in results] == [[float(size)]] * len(results)
    assert [a.unique().tolist() for a in after] == [[2.0 * size]] * len(after)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("n", [10, 2_000_000])
def test_messages_follow_the_current_stream(rank: int, n: int) -> None:
    """Device to device, device to host and host to device."""
    for sender_on_device, receiver_on_device in ((True, True), (True, False), (False, True)):
        with torch.cuda.stream(torch.cuda.Stream()):
            if rank == 0:
                x = _written_late(n, 3.0) if sender_on_device else torch.full((n,), 3.0)
                dist.send(x, 1)
                request = dist.isend(x, 1)
                request.wait()
            elif rank == 1:
                y = torch.zeros(n, device="cuda" if receiver_on_device else "cpu")
                dist.recv(y, 0)
                assert (y == 3).all()
                y.zero_()
                request = dist.irecv(y, 0)
                request.wait()
                assert (y * 2 == 6).all()


def test_an_interface_s_stream_is_waited_for(comm: mpicoll.Communicator) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = _written_late(1000, comm.rank + 1.0)
    comm.allreduce(it := like_cupy(x, stream=stream.cuda_stream), "max", out=it)
    assert x.unique().tolist() == [float(comm.size)]


def test_memory_is_given_back(size: int) -> None:
    """Two hundred calls on new tensors hold no more device memory than ten did, and the last two tensors."""
    n_elements = 781 * 128  # torch gives whole blocks of 512 bytes

    def calls(n: int) -> int:
        for i in range(n):
            work = dist.all_reduce(torch.ones(n_elements, device="cuda"), async_op=i % 2 == 0)
            if work is not None:
                work.wait()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    few = calls(10)
    assert calls(200) <= few + 2 * 4 * n_elements


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("async_op", [False, True])
def test_a_stream_that_captures_a_graph(size: int, async_op: bool) -> None:
    """The call is refused before data moves, and so is a wait. The group can be used afterwards."""
    x = torch.ones(4, device="cuda")
    pending = dist.all_reduce(x, async_op=True)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        with pytest.raises(StateError, match="the current stream is capturing a CUDA graph"):
            dist.all_reduce(x, async_op=async_op)
        with pytest.raises(StateError, match="the current stream is capturing a CUDA graph"):
            pending.wait()
    pending.wait()
    dist.all_reduce(x)
    assert x.tolist() == [size**2] * 4


def test_a_forked_process(comm: mpicoll.Communicator) -> None:
    """It gets an error with a name, and its parent goes on."""
    x = torch.ones(4, device="cuda")
    comm.allreduce(x, out=x)

    def check() -> None:
        with pytest.raises(MpicollError, match="fork"):
            comm.allreduce(x, out=x)

    in_child(check)
    comm.allreduce(x, out=x)
    assert x.tolist() == [comm.size**2] * 4


@pytest.mark.parametrize("operation", ["iallreduce", "allreduce"])
def test_a_call_of_another_thread_follows_the_current_stream(comm: mpicoll.Communicator, operation: str) -> None:
    """An average has no call of MPI's that does not block. So a thread carries it out."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(5):
            x = _written_late(1000, comm.rank + 1.0)
            request = getattr(comm, operation)(x, "avg", out=x)
            if operation == "iallreduce":
                request.wait()
            assert x.unique().tolist() == [(comm.size + 1) / 2]


def test_long_calls_of_ranks_that_share_a_gpu(comm: mpicoll.Communicator) -> None:
    one = torch.cuda.device_count() == 1
    for n, route in ((1000, "staged"), (3_000_000, "ipc" if one else "staged")):
        x = torch.full((n,), comm.rank + 1.0, device="cuda")
        comm.allreduce(x, out=x)
        assert x.unique().tolist() == [comm.size * (comm.size + 1) / 2]
        assert comm.last_route.startswith((route, "native"))


@pytest.mark.parametrize("n", [1000, 30_000_000])
def test_ipc_where_memory_comes_and_goes(comm: mpicoll.Communicator, n: int) -> None:
    """New memory at an address at which there was other memory, which a peer had opened. None of it stays taken."""
    left = []
    for i in range(8):
        x = torch.full((n + i,), comm.rank + i, dtype=torch.float32, device="cuda")
        comm.allreduce(x, "sum", out=x, algorithm="ipc")
        assert x.unique().tolist() == [comm.size * (comm.size - 1) / 2 + comm.size * i]
        del x
        torch.cuda.empty_cache()
        comm.barrier()
        left.append(torch.cuda.mem_get_info()[0])
        comm.barrier()
    assert left[-1] > left[1] - 4 * n


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_another_gpu(comm: mpicoll.Communicator) -> None:
    x, y = (torch.full((4,), 5.0, device=f"cuda:{i}") for i in range(2))
    with pytest.raises(DeviceError, match="allreduce: out: expected memory on cuda:0, where x is; given cuda:1"):
        comm.allreduce(x, out=y)
    for a in (x, y):
        comm.allreduce(a, "max", out=a)
        assert (a == 5).all()
