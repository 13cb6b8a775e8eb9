"""Compute a metric over all ranks: gather the predictions, compute on rank 0, and send the result to all ranks.

Start it with

    mpicoll run -n 4 examples/metrics.py
"""

import torch

import mpicoll.torch as dist


def accuracy(predicted: torch.Tensor, target: torch.Tensor) -> float:
    """The share of right predictions over all ranks. Each rank gives equally many, and each gets the same number."""
    everything = []
    for mine in (predicted, target):
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        everything.append(torch.cat(parts))
    result = torch.zeros(1, dtype=torch.float64)
    if dist.get_rank() == 0:
        result[0] = (everything[0] == everything[1]).double().mean()
    dist.broadcast(result, 0)
    return result.item()


def main(comm: object = None) -> None:
    """What each rank does. A rank is a process or, with ``ranks.run(main)``, a thread."""
    dist.init_process_group("mpicoll")
    generator = torch.Generator().manual_seed(dist.get_rank())
    target = torch.randint(10, (1000,), generator=generator)
    right = torch.rand(1000, generator=generator) < 0.9
    predicted = torch.where(right, target, target + 1)
    print(f"rank {dist.get_rank()}: accuracy {accuracy(predicted, target):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
