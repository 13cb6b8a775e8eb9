"""Four all-reduces written with send and recv: naive, tree, ring and butterfly. Each works for any number of ranks.

Start it with

    mpicoll run -n 4 examples/own_all_reduce.py
"""

import torch
from own_broadcast import binomial_tree, one_to_all
from own_reduce import all_to_one
from own_reduce import tree as tree_to_one

import mpicoll.torch as dist


def naive(x: torch.Tensor) -> None:
    """All ranks send to rank 0. It adds the tensors and sends the sum to all."""
    all_to_one(x)
    one_to_all(x)


def tree(x: torch.Tensor) -> None:
    """Reduce to rank 0 along the tree, then broadcast the sum along the tree."""
    tree_to_one(x)
    binomial_tree(x)


def ring(x: torch.Tensor) -> None:
    """Each block travels around the ring twice: first every rank adds its own to it, then every rank gets the sum."""
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = x.view(-1).tensor_split(size)
    for step in range(2 * (size - 1)):
        mine, theirs = blocks[(rank - step) % size], blocks[(rank - step - 1) % size]
        adding = step < size - 1
        sent = dist.isend(mine, (rank + 1) % size)
        taken = torch.empty_like(theirs) if adding else theirs
        dist.recv(taken, (rank - 1) % size)
        sent.wait()
        if adding:
            theirs += taken


def butterfly(x: torch.Tensor) -> None:
    """In step k, ranks that differ in bit k exchange and add. Ranks beyond a power of two hand in theirs before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    inside = 1 << (size.bit_length() - 1)
    other = torch.empty_like(x)
    if rank >= inside:
        dist.send(x, rank - inside)
        dist.recv(x, rank - inside)
        return
    if rank + inside < size:
        dist.recv(other, rank + inside)
        x += other
    for bit in range(inside.bit_length() - 1):
        sent = dist.isend(x, rank ^ (1 << bit))
        dist.recv(other, rank ^ (1 << bit))
        sent.wait()
        x += other
    if rank + inside < size:
        dist.send(x, rank + inside)


ALL_REDUCES = {"naive": naive, "tree": tree, "ring": ring, "butterfly": butterfly}


def main(comm: object = None) -> None:
    """What each rank does. A rank is a process or, with ``ranks.run(main)``, a thread."""
    dist.init_process_group("mpicoll")
    rank = dist.get_rank()
    for name, all_reduce in ALL_REDUCES.items():
        x = torch.arange(2) + 1 + 2 * rank
        all_reduce(x)
        print(f"rank {rank}, {name}: {x.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
