"""A training that can be stopped at any time and continued. Its result is the same as without the stop.

On SIGUSR1 or SIGTERM, all ranks stop after the same step and write a checkpoint. If you start the program again with
the same folder, it continues from there. When the training is complete, it writes a file named ``finished``. Start it
with

    mpicoll run -n 4 examples/preemptible.py FOLDER

or under Slurm with slurm/preemptible.sbatch.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, EVERY = 64, 500  # the samples of all ranks together; the steps between two checkpoints

stop = False


def on_signal(number: int, frame: object) -> None:
    """Only take note of the signal: what the ranks are doing now must end first."""
    global stop
    stop = True


def all_stop() -> bool:
    """Whether any rank has received the signal. Ranks receive it at different times, but stop after the same step."""
    asked = torch.tensor(stop)
    dist.all_reduce(asked, dist.ReduceOp.MAX)
    return bool(asked)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's samples. They depend only on the number of the step, so no data loader's state must be saved."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 16, generator=generator)
    y = torch.tanh(x.sum(1, keepdim=True))
    rank, size = dist.get_rank(), dist.get_world_size()
    return x[rank::size], y[rank::size]


def save(path: Path, state: dict[str, object]) -> None:
    """Write a checkpoint so that at every moment either the old or the new one is complete."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def train(steps: int, path: Path) -> float | None:
    """Train, from the checkpoint if there is one. Return the last loss, or None if stopped before the end.

    The checkpoint contains the loss, too. So a job that ended after its last checkpoint, but before it wrote
    ``finished``, still has the loss when it starts again.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    first, mean = 0, torch.zeros(())  # mean is that of the loss over all ranks
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first, mean = saved["step"], saved["loss"]
    rank = dist.get_rank()
    if rank == 0:
        print(f"{dist.get_world_size()} ranks, steps {first} to {steps}", flush=True)
    ddp = DistributedDataParallel(model)
    for step in range(first, steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp(x), y)
        loss.backward()
        optimizer.step()
        stopped = all_stop()
        if stopped or (step + 1) % EVERY == 0 or step + 1 == steps:
            mean = loss.detach()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1, "loss": mean}
            if rank == 0:
                save(path, state)
        if stopped and step + 1 < steps:
            if rank == 0:
                print(f"stopped after step {step + 1}, which is saved", flush=True)
            return None
    return mean.item()


def main(folder: Path, steps: int) -> None:
    """Train, and write a file into the folder when the training is complete."""
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, on_signal)
    dist.init_process_group("mpicoll")
    loss = train(steps, folder / "checkpoint.pt")
    for number in (signal.SIGUSR1, signal.SIGTERM):
        # All ranks have stopped for the first signal. Another may arrive when Python has ended and handles none.
        signal.signal(number, signal.SIG_IGN)
    if loss is not None and dist.get_rank() == 0:
        (folder / "finished").write_text(f"step {steps}, loss {loss:.6f}\n")
        print(f"finished: step {steps}, loss {loss:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A training that can be stopped at any time and continued.")
    parser.add_argument("--steps", type=int, default=5000, help="how many steps to train (5000)")
    parser.add_argument("folder", type=Path, help="the folder of the checkpoint, which must exist")
    args = parser.parse_args()
    main(args.folder, args.steps)
