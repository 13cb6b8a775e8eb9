"""accelerate over our default group: training is that of one process on whole batches, and metrics are gathered."""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, ROWS, BATCH = 3, 32, 8


def data() -> TensorDataset:
    x = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x.sum(1, keepdim=True))


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def alone() -> nn.Module:
    """One process on the whole batches."""
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for x, y in DataLoader(data(), batch_size=BATCH):
            optimizer.zero_grad()
            nn.functional.mse_loss(one(x), y).backward()
            optimizer.step()
    return one


def main() -> None:
    dist.init_process_group("mpicoll")
    accelerator = Accelerator(cpu=True)
    rank, size = accelerator.process_index, accelerator.num_processes
    assert (rank, size) == (dist.get_rank(), dist.get_world_size())
    assert dist.get_backend() == "mpicoll"
    mine = model()
    ours, optimizer, loader = accelerator.prepare(
        mine, torch.optim.SGD(mine.parameters(), lr=0.1), DataLoader(data(), batch_size=BATCH // size)
    )
    assert isinstance(ours, nn.parallel.DistributedDataParallel)
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(ours(x), y))
            optimizer.step()
    for found, wanted in zip(accelerator.unwrap_model(ours).parameters(), alone().parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert accelerator.gather(torch.tensor([rank])).tolist() == list(range(size))
    assert accelerator.reduce(torch.ones(2)).tolist() == [size, size]
    accelerator.wait_for_everyone()
    print("trained and gathered", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
