"""A small regression, and what one process makes of it, on whole batches: ranks must find the same."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, ROWS, BATCH = 3, 32, 8


def data() -> TensorDataset:
    x = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x.sum(1, keepdim=True))


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def optimizer(one: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)


def check(found: nn.Module) -> float:
    """That these are the parameters of one process. Its loss on all the data after the last epoch."""
    one = model()
    steps = optimizer(one)
    for _ in range(EPOCHS):
        for x, y in DataLoader(data(), batch_size=BATCH):
            steps.zero_grad()
            nn.functional.mse_loss(one(x), y).backward()
            steps.step()
    for mine, wanted in zip(found.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
    x, y = data().tensors
    return float(nn.functional.mse_loss(one(x), y))
