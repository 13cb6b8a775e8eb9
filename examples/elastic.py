"""A training that goes on when ranks are killed, with the ranks that are left, from the last step. Start it with

    mpicoll run --elastic -n 4 examples/elastic.py

and end ranks with ``kill -9``: each prints the number of its process. As long as one is left, the training comes to its
end. Its result is the same, but for rounding, because each step divides its samples among the ranks that there are.
"""

import argparse
import os
import time
from typing import Any

import torch
from torch import nn

from mpicoll.errors import RankLost

BATCH = 64  # the samples of all ranks together


def gradients(dist: Any, model: nn.Module, step: int) -> torch.Tensor:
    """Compute the gradients of all ranks' samples, and return the loss of this rank's."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 16, generator=generator)
    y = torch.tanh(x.sum(1, keepdim=True))
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    loss = nn.functional.mse_loss(model(x[mine]), y[mine], reduction="sum") / BATCH
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return loss.detach()


def agree(dist: Any, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> int:
    """Let all ranks have the state of the one that is furthest. When a rank is lost, others may be a step apart."""
    steps: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(steps, step)
    furthest = max(steps)
    state = [{"model": model.state_dict(), "optimizer": optimizer.state_dict()}]
    dist.broadcast_object_list(state, src=steps.index(furthest))
    if step < furthest:
        model.load_state_dict(state[0]["model"])
        optimizer.load_state_dict(state[0]["optimizer"])
    return int(furthest)


def main(dist: Any, steps: int, seconds: float) -> None:
    """Train. Each step takes so many seconds at least."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step, loss = 0, torch.zeros(())
    while step < steps:
        try:
            if not dist.is_initialized():
                dist.init_process_group("mpicoll")  # of all ranks that are left
            step = agree(dist, model, optimizer, step)
            print(f"rank {dist.get_rank()} of {dist.get_world_size()}, process {os.getpid()}: from step {step}")
            while step < steps:
                optimizer.zero_grad()
                loss = gradients(dist, model, step)
                dist.all_reduce(loss)
                optimizer.step()  # after all that needs other ranks: a loss leaves the state of the last step
                step += 1
                time.sleep(seconds)
        except RankLost as lost:
            print(f"step {step}: {lost}")
            if dist.is_initialized():
                dist.destroy_process_group()
    if dist.get_rank() == 0:
        print(f"finished: step {steps}, loss {loss.item():.5f}, {dist.get_world_size()} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A training that goes on when ranks are killed.")
    parser.add_argument("--torch", action="store_true", help="through torch.distributed instead of mpicoll.torch")
    parser.add_argument("--steps", type=int, default=500, help="how many steps to train (500)")
    parser.add_argument("--seconds", type=float, default=0.1, help="what a step takes at least (0.1)")
    args = parser.parse_args()
    if args.torch:
        import torch.distributed as dist
    else:
        import mpicoll.torch as dist  # type: ignore[no-redef]
    main(dist, args.steps, args.seconds)
