"""Two reductions to rank 0, written with send and recv: all to one, and a tree.

Start it with

    mpicoll run -n 4 examples/own_reduce.py
"""

import torch

import mpicoll.torch as dist


def all_to_one(x: torch.Tensor) -> None:
    """Rank 0 receives and adds the tensors of all other ranks, one after another."""
    if dist.get_rank() > 0:
        dist.send(x, 0)
        return
    other = torch.empty_like(x)
    for r in range(1, dist.get_world_size()):
        dist.recv(other, r)
        x += other


def tree(x: torch.Tensor) -> None:
    """In step k, each rank that is an odd multiple of 2^k sends its sum to the rank 2^k below it, and is done."""
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


REDUCTIONS = {"all to one": all_to_one, "tree": tree}


def main(comm: object = None) -> None:
    """What each rank does. A rank is a process or, with ``ranks.run(main)``, a thread."""
    dist.init_process_group("mpicoll")
    rank = dist.get_rank()
    for name, reduce in REDUCTIONS.items():
        x = torch.arange(2) + 1 + 2 * rank
        reduce(x)
        print(f"rank {rank}, {name}: {x.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
