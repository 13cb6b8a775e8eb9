"""Gathers of one's own over send and recv: to rank 0, naively and by a tree; to all, naively, by the tree, and
around the ring.

Start it with

    mpicoll run -n 4 examples/own_gather.py
"""

import torch
from own_broadcast import binomial_tree

import mpicoll.torch as dist


def naive(rows: torch.Tensor) -> None:
    """``rows[r]`` is rank r's; rank 0 receives them one after another."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.send(rows[rank], 0)
    else:
        for r in range(1, size):
            dist.recv(rows[r], r)


def tree(rows: torch.Tensor) -> None:
    """In step k, the ranks that are an odd multiple of 2^k send all they have to the rank 2^k below them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    step = 1
    while step < size:
        if rank % (2 * step):
            dist.send(rows[rank : rank + step], rank - step)
            return
        if rank + step < size:
            dist.recv(rows[rank + step : rank + 2 * step], rank + step)
        step *= 2


def all_naive(rows: torch.Tensor) -> None:
    """Everybody sends to everybody at once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [r for r in range(size) if r != rank]
    sends = [dist.P2POp(dist.isend, rows[rank], r) for r in others]
    receives = [dist.P2POp(dist.irecv, rows[r], r) for r in others]
    for work in dist.batch_isend_irecv(sends + receives) if others else []:
        work.wait()


def all_tree(rows: torch.Tensor) -> None:
    """Down the tree to rank 0, and all of it up again."""
    tree(rows)
    binomial_tree(rows)


def all_ring(rows: torch.Tensor) -> None:
    """In each step, everybody hands on to the right what came from the left in the step before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(size - 1):
        sent = dist.isend(rows[(rank - step) % size], (rank + 1) % size)
        dist.recv(rows[(rank - step - 1) % size], (rank - 1) % size)
        sent.wait()


TO_RANK_0 = {"naive": naive, "tree": tree}
TO_ALL = {"all, naive": all_naive, "all, tree": all_tree, "all, ring": all_ring}


def main(comm: object = None) -> None:
    """What each rank does, be it a process or, with ``ranks.run(main)``, a thread."""
    dist.init_process_group("mpicoll")
    rank, size = dist.get_rank(), dist.get_world_size()
    for name, gather in {**TO_RANK_0, **TO_ALL}.items():
        rows = torch.zeros(size, 2, dtype=torch.int64)
        rows[rank] = torch.arange(2) + 1 + 2 * rank
        gather(rows)
        print(f"rank {rank}, {name}: {rows.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
