"""An example for each public function. The API pages show it under the function, and a test runs it on all ranks."""

from __future__ import annotations

BEFORE = """\
import numpy as np
from mpi4py import MPI
import mpicoll

comm = mpicoll.Communicator()
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size
x = np.arange(4.0) + rank
xs = np.arange(4.0 * size).reshape(size, 4) + rank
counts = [r + 1 for r in range(size)]
"""
"""What the examples of a Communicator begin with."""

BEFORE_TORCH = """\
import torch
import mpicoll.torch as dist
from mpicoll.torch import nn

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
right, left = (rank + 1) % size, (rank - 1) % size
x = torch.arange(4.0) + rank
xs = [torch.arange(4.0) + rank for _ in range(size)]
ys = [torch.empty(4) for _ in range(size)]
"""

OF_COMMUNICATOR = {
    "empty": 'x = comm.empty((1000, 1000), "float32")',
    "zeros": "x = comm.zeros(100_000)",
    "empty_like": "y = comm.empty_like(x)",
    "shared": "boundaries = comm.shared(1000)\nboundaries[rank][:] = rank\ncomm.barrier()",
    "allreduce": 'total = comm.allreduce(x)\ngreatest = comm.allreduce(x, "max")\ncomm.allreduce(x, out=x)',
    "reduce": "total = comm.reduce(x, root=0)  # None on the other ranks",
    "bcast": "comm.bcast(x, root=0)",
    "gather": "everyone = comm.gather(x, root=0)  # None on the other ranks",
    "allgather": "everyone = comm.allgather(x)\nassert everyone.shape == (size, 4)",
    "scatter": "mine = comm.scatter(xs if rank == 0 else None, root=0, out=np.empty(4))",
    "reduce_scatter": "mine = comm.reduce_scatter(xs)",
    "alltoall": "theirs = comm.alltoall(xs)  # theirs[r] is rank r's xs[rank]",
    "scan": "so_far = comm.scan(x)",
    "exscan": "before = comm.exscan(x, out=np.zeros(4))",
    "barrier": "comm.barrier()",
    "gatherv": "whole = comm.gatherv(np.ones(counts[rank]), counts, root=0)",
    "allgatherv": "whole = comm.allgatherv(np.ones(counts[rank]), counts)",
    "scatterv": "whole = np.arange(sum(counts)) if rank == 0 else None\n"
    "mine = comm.scatterv(whole, counts, root=0, out=np.empty(counts[rank], np.int64))",
    "reduce_scatterv": "mine = comm.reduce_scatterv(np.ones(sum(counts)), counts)",
    "alltoallv": "theirs = comm.alltoallv(np.ones(sum(counts)), counts, [counts[rank]] * size)",
    "neighbor_allgather": "grid = mpicoll.Communicator(MPI.COMM_WORLD.Create_cart([size], periods=[True]))\n"
    "before, after = grid.neighbor_allgather(x)",
    "neighbor_alltoall": "grid = mpicoll.Communicator(MPI.COMM_WORLD.Create_cart([size], periods=[True]))\n"
    "before, after = grid.neighbor_alltoall(np.stack([x, x]))",
    "send": "if rank == 0:\n    comm.send(x, 1)\nelif rank == 1:\n    comm.recv(x, 0)",
    "recv": "if rank == 0:\n    comm.send(x, 1, tag=3)\nelif rank == 1:\n    comm.recv(x, tag=3)  # of any rank",
    "isend": "request = comm.isend(x, right)\ncomm.recv(np.empty(4), left)\nrequest.wait()",
    "irecv": "y = np.empty(4)\nrequest = comm.irecv(y, left)\ncomm.send(x, right)\nrequest.wait()",
    "sendrecv": "y = np.empty(4)\ncomm.sendrecv(x, right, y, left)\ncomm.sendrecv(x, right, x, left)",
    "probe": "request = comm.isend(x, right)\nfound = comm.probe()\n"
    "y = comm.recv(np.empty(found.nbytes // 8), found.source, found.tag)\nrequest.wait()",
    "iprobe": "if comm.iprobe() is None:\n    pass  # nothing has arrived: do something else",
    "bcast_object": 'settings = comm.bcast_object({"steps": 10} if rank == 0 else None)',
    "gather_object": 'names = comm.gather_object(f"rank {rank}")  # None on the other ranks',
    "allgather_object": 'names = comm.allgather_object(f"rank {rank}")',
    "scatter_object": "mine = comm.scatter_object(list(range(size)) if rank == 0 else None)",
    "alltoall_object": "theirs = comm.alltoall_object([(rank, r) for r in range(size)])",
    "allreduce_object": 'total = comm.allreduce_object(rank)\nlongest = comm.allreduce_object("x" * rank, max)',
    "send_object": 'if rank == 0:\n    comm.send_object({"a": 3}, 1)\nelif rank == 1:\n    found = comm.recv_object(0)',
    "recv_object": 'if rank == 0:\n    comm.send_object("done", 1)\nelif rank == 1:\n    said = comm.recv_object(0)',
    "split": "half = comm.split(rank % 2)\ntotal = half.allreduce(x)",
    "subset": "first = comm.subset([0])\nif first is not None:  # on rank 0\n    first.barrier()",
    "shrink": "try:\n    comm.allreduce(x, out=x)\nexcept mpicoll.errors.RankLost:\n    comm = comm.shrink()",
    "free": "part = comm.split(0)\npart.free()",
}

OF_PACKAGE = {
    "spawn": "mpicoll.spawn(train, (settings,), nprocs=2)  # calls train(rank, settings) in 2 processes",
    "threads": "with mpicoll.threads(2) as ranks:\n    print(ranks.run(lambda comm: comm.allreduce(np.ones(1))))",
    "draw": 'drawing = mpicoll.draw("allreduce", "ring", 4)  # in a notebook, the last line of a cell shows it',
    "record": 'with mpicoll.record("step.json"):\n    comm.allreduce(x)',
    "watch": "mpicoll.watch()  # before the program calls mpi4py or torch.distributed",
    "register": 'mpicoll.register(mpicoll.Algorithm("allreduce", "star", star))',
    "algorithms.steps.one": "from mpicoll.algorithms.steps import one\nassert one(3) == (range(3, 4),)",
    "algorithms.steps.run": "from mpicoll.algorithms.steps import run\nassert run(1, 3) == (range(1, 3),)",
}

OF_TORCH = {
    "init_process_group": "dist.init_process_group()  # rank and size come from MPI",
    "destroy_process_group": "dist.destroy_process_group(dist.new_group())",
    "is_initialized": "if not dist.is_initialized():\n    dist.init_process_group()",
    "is_available": "assert dist.is_available()",
    "new_group": "first = dist.new_group([0])",
    "get_rank": "rank = dist.get_rank()",
    "get_world_size": "size = dist.get_world_size()",
    "get_backend": 'assert dist.get_backend() == "mpicoll"',
    "get_node_local_rank": "local = dist.get_node_local_rank()",
    "get_group_rank": "assert dist.get_group_rank(None, rank) == rank",
    "get_global_rank": "assert dist.get_global_rank(None, 0) == 0",
    "get_process_group_ranks": "ranks = dist.get_process_group_ranks(None)",
    "all_reduce": "dist.all_reduce(x)\nwork = dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)\nwork.wait()",
    "broadcast": "dist.broadcast(x, src=0)",
    "reduce": "dist.reduce(x, dst=0)  # the others' tensors are unchanged",
    "all_gather": "dist.all_gather(ys, x)",
    "all_gather_into_tensor": "whole = torch.empty(size * 4)\ndist.all_gather_into_tensor(whole, x)",
    "gather": "dist.gather(x, ys if rank == 0 else None, dst=0)",
    "scatter": "dist.scatter(x, xs if rank == 0 else None, src=0)",
    "reduce_scatter": "dist.reduce_scatter(x, xs)",
    "reduce_scatter_tensor": "dist.reduce_scatter_tensor(x, torch.cat(xs))",
    "all_to_all": "dist.all_to_all(ys, xs)",
    "all_to_all_single": "dist.all_to_all_single(torch.empty(size), torch.arange(float(size)))",
    "barrier": "dist.barrier()",
    "monitored_barrier": "from datetime import timedelta\ndist.monitored_barrier(timeout=timedelta(seconds=30))",
    "empty": "x = dist.empty(1_000_000)",
    "share_": "dist.share_(torch.nn.Linear(100, 100))",
    "send": "if rank == 0:\n    dist.send(x, 1)\nelif rank == 1:\n    dist.recv(x, 0)",
    "recv": "if rank == 0:\n    dist.send(x, 1)\nelif rank == 1:\n    source = dist.recv(x)  # of any rank",
    "isend": "work = dist.isend(x, right)\ndist.recv(ys[0], left)\nwork.wait()",
    "irecv": "work = dist.irecv(ys[0], left)\ndist.send(x, right)\nwork.wait()",
    "batch_isend_irecv": "calls = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, ys[0], left)]\n"
    "for work in dist.batch_isend_irecv(calls):\n    work.wait()",
    "all_gather_object": 'names = [None] * size\ndist.all_gather_object(names, f"rank {rank}")',
    "gather_object": "dist.gather_object(rank, [None] * size if rank == 0 else None, dst=0)",
    "broadcast_object_list": 'box = [{"steps": 10} if rank == 0 else None]\ndist.broadcast_object_list(box, src=0)',
    "scatter_object_list": "mine = [None]\ndist.scatter_object_list(mine, list(range(size)), src=0)",
    "send_object_list": 'if rank == 0:\n    dist.send_object_list(["done"], 1)\nelif rank == 1:\n'
    "    dist.recv_object_list([None], 0)",
    "recv_object_list": 'box = [None]\nif rank == 0:\n    dist.send_object_list(["done"], 1)\nelif rank == 1:\n'
    "    dist.recv_object_list(box, 0)",
    "nn.broadcast": "y = nn.broadcast(x, src=0)",
    "nn.reduce": "y = nn.reduce(x, dst=0)",
    "nn.all_reduce": "w = x.clone().requires_grad_()\nnn.all_reduce(w).sum().backward()",
    "nn.gather": "ys = nn.gather(x, dst=0)",
    "nn.scatter": "y = nn.scatter(xs, src=0)",
    "nn.all_gather": "ys = nn.all_gather(x)",
    "nn.reduce_scatter": "y = nn.reduce_scatter(torch.empty(4), xs)",
    "nn.all_to_all": "ys = nn.all_to_all(ys, xs)",
    "nn.all_to_all_single": "y = nn.all_to_all_single(torch.empty(size), torch.arange(float(size)))",
}

NOT_RUN = {"spawn", "watch", "register", "torch.init_process_group"}
"""They begin a job, or need what another page has. Other tests run them."""


def example_of(name: str) -> str:
    """The example of ``mpicoll.NAME``, empty if it has none."""
    room, _, call = name.partition(".")
    if room == "torch":
        return OF_TORCH.get(call, "")
    if room == "Communicator":
        return OF_COMMUNICATOR.get(call) or _begun(call)
    return OF_PACKAGE.get(name, "")


def _begun(call: str) -> str:
    """A collective that does not block has the example of the one that does."""
    example = OF_COMMUNICATOR.get(call.removeprefix("i"), "")
    for line in example.splitlines():
        result, is_kept, made = line.partition(" = comm.")
        if is_kept or line.startswith("comm."):
            made = made or line.removeprefix("comm.")
            end = f"{result} = request.result" if is_kept else "request.wait()"
            wait = ["request.wait()"] if is_kept else []
            return "\n".join([example.partition(line)[0] + f"request = comm.i{made}", *wait, end])
    return ""
