"""Four broadcasts from rank 0, written with send and recv: one to all, two trees and a ring.

Start it with

    mpicoll run -n 4 examples/own_broadcast.py
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

import mpicoll.torch as dist


def one_to_all(x: torch.Tensor) -> None:
    """Rank 0 sends the tensor to every other rank: size - 1 messages, one after another."""
    if dist.get_rank() == 0:
        for r in range(1, dist.get_world_size()):
            dist.send(x, r)
    else:
        dist.recv(x, 0)


def binary_tree(x: torch.Tensor) -> None:
    """Rank r receives from rank (r - 1) // 2, and sends to ranks 2r + 1 and 2r + 2."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(x, (rank - 1) // 2)
    for child in (2 * rank + 1, 2 * rank + 2):
        if child < size:
            dist.send(x, child)


def binomial_tree(x: torch.Tensor) -> None:
    """In each step, every rank that has the tensor sends it on: half way around first, then a quarter, and so on."""
    rank, size = dist.get_rank(), dist.get_world_size()
    distance = 1 << (size - 1).bit_length()
    while distance > 1:
        distance //= 2
        if rank % (2 * distance) == distance:
            dist.recv(x, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < size:
            dist.send(x, rank + distance)


def ring(x: torch.Tensor, pieces: int = 4) -> None:
    """Each rank passes every piece on to the next rank. While one piece travels on, the next one arrives."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sends = []
    for piece in x.view(-1).tensor_split(pieces):
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank + 1 < size:
            sends.append(dist.isend(piece, rank + 1))
    for work in sends:
        work.wait()


BROADCASTS = {"one to all": one_to_all, "binary tree": binary_tree, "binomial tree": binomial_tree, "ring": ring}


CALLS = 20


def timed(broadcast: Callable[[torch.Tensor], object], shape: tuple[int, ...]) -> float:
    """Microseconds of a call: the median, without three calls that warm up."""
    x = torch.ones(shape) if dist.get_rank() == 0 else torch.zeros(shape)
    took = []
    for _ in range(3 + CALLS):
        dist.barrier()
        began = perf_counter()
        broadcast(x)
        dist.barrier()
        took.append(1e6 * (perf_counter() - began))
    assert torch.all(x == 1)
    return median(took[3:])


def main(comm: object = None) -> None:
    """What each rank does. A rank is a process or, with ``ranks.run(main)``, a thread."""
    dist.init_process_group("mpicoll")
    for shape in ((16,), (256, 256), (1024, 1024)):
        for name, broadcast in {**BROADCASTS, "mpicoll": lambda x: dist.broadcast(x, 0)}.items():
            took = timed(broadcast, shape)
            if dist.get_rank() == 0:
                print(f"{tuple(shape)!s:>12} {name:<13} {took:10.0f} us")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
