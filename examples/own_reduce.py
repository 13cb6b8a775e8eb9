"""Reductions of one's own over send and recv: to rank 0 all to one and by a tree, to all naively and by a butterfly.

Start it with

    mpicoll run -n 4 examples/own_reduce.py
"""

import torch

import mpicoll.torch as dist


def all_to_one(x: torch.Tensor) -> None:
    """Rank 0 takes in and adds every other rank's, one after another."""
    if dist.get_rank() > 0:
        dist.send(x, 0)
        return
    other = torch.empty_like(x)
    for r in range(1, dist.get_world_size()):
        dist.recv(other, r)
        x += other


def tree(x: torch.Tensor) -> None:
    """In step k, the ranks that are an odd multiple of 2^k send to the rank 2^k below them, and are done."""
    rank, size, step = dist.get_rank(), dist.get_world_size(), 1
    total, other = x.clone(), torch.empty_like(x)
    while step < size:
        if rank % (2 * step):
            dist.send(total, rank - step)
            return
        if rank + step < size:
            dist.recv(other, rank + step)
            total += other
        step *= 2
    x.copy_(total)


def naive(x: torch.Tensor) -> None:
    """To rank 0 and back."""
    all_to_one(x)
    dist.broadcast(x, 0)


def butterfly(x: torch.Tensor) -> None:
    """In step k, ranks that differ in bit k exchange and add. Those beyond a power of two hand theirs in before."""
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


TO_RANK_0 = {"all to one": all_to_one, "tree": tree}
TO_ALL = {"naive": naive, "butterfly": butterfly}


def main() -> None:
    for name, reduce in {**TO_RANK_0, **TO_ALL}.items():
        x = torch.arange(2) + 1 + 2 * dist.get_rank()
        reduce(x)
        print(f"rank {dist.get_rank()}, {name}: {x.tolist()}")


if __name__ == "__main__":
    dist.init_process_group("mpicoll")
    main()
    dist.destroy_process_group()
