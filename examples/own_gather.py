"""Gathers written with send and recv: two to rank 0 (naive, tree), and three to all ranks (naive, tree, ring).

Start it with

    mpicoll run -n 4 examples/own_gather.py
"""

import torch
from own_broadcast import binomial_tree

import mpicoll.torch as dist


def naive(rows: torch.Tensor) -> None:
    """``rows[r]`` belongs to rank r. Rank 0 receives the rows one after another."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.send(rows[rank], 0)
    else:
        for r in range(1, size):
            dist.recv(rows[r], r)


def tree(rows: torch.Tensor) -> None:
    """In step k, each rank that is an odd multiple of 2^k sends all that it has to the rank 2^k below it."""
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
    """Every rank sends to all others at once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [r for r in range(size) if r != rank]
    sends = [dist.P2POp(dist.isend, rows[rank], r) for r in others]
    receives = [dist.P2POp(dist.irecv, rows[r], r) for r in others]
    for work in dist.batch_isend_irecv(sends + receives) if others else []:
        work.wait()


def all_tree(rows: torch.Tensor) -> None:
    """Gather to rank 0 along the tree, then broadcast all rows along the tree."""
    tree(rows)
    binomial_tree(rows)


def all_ring(rows: torch.Tensor) -> None:
    """In each step, every rank passes on to the next rank what it received from the one before in the last step."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(size - 1):
        sent = dist.isend(rows[(rank - step) % size], (rank + 1) % size)
        dist.recv(rows[(rank - step - 1) % size], (rank - 1) % size)
        sent.wait()


TO_RANK_0 = {"naive": naive, "tree": tree}
TO_ALL = {"all, naive": all_naive, "all, tree": all_tree, "all, ring": all_ring}


def main(comm: object = None) -> None:
    """What each rank does. A rank is a process or, with ``ranks.run(main)``, a thread."""
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
