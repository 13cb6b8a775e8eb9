"""Small models, and how one process trains them on the whole batch: what every parallel training must come to. And a
row of numbers for each rank, and what a collective makes of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch
from mpicoll.errors import TimeoutError

ROWS = 12
"""The rows of a whole batch: a multiple of every number of ranks in the tests."""
STEPS = 3
WIDTH = 12
"""The length of the perceptron's vectors, also such a multiple."""

Batch = tuple[torch.Tensor, torch.Tensor]


class Transformer(nn.Module):
    """Tokens in, logits of the next token out."""

    def __init__(self, vocabulary: int = 11, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def convnet() -> nn.Module:
    """Images of 1 x 8 x 8 in, five logits out."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 5),
    )  # fmt: skip


def transformer() -> Transformer:
    torch.manual_seed(2)
    return Transformer()


def sharded(model: Transformer, mesh: DeviceMesh, **options: Any) -> Transformer:
    """The transformer, with an FSDP unit for each of its layers."""
    for unit in (*model.layers, model):
        fully_shard(unit, mesh=mesh, **options)
    return model


def mlp(width: int = WIDTH) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))


def images(step: int) -> Batch:
    g = torch.Generator().manual_seed(10 + step)
    return torch.randn(ROWS, 1, 8, 8, generator=g), torch.randint(5, (ROWS,), generator=g)


def tokens(step: int) -> Batch:
    g = torch.Generator().manual_seed(20 + step)
    text = torch.randint(11, (ROWS, 7), generator=g)
    return text[:, :-1], text[:, 1:]


def vectors(step: int, width: int = WIDTH) -> Batch:
    g = torch.Generator().manual_seed(30 + step)
    return torch.randn(ROWS, width, generator=g), torch.randn(ROWS, width, generator=g)


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], batch: Batch) -> torch.Tensor:
    """The mean over the batch. The mean of equal parts' losses is the loss of the whole."""
    x, y = batch
    out = model(x)
    if y.is_floating_point():
        return nn.functional.mse_loss(out, y)
    return nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())


def part(batch: Batch, rank: int, size: int) -> Batch:
    """One rank's rows of the batch."""
    x, y = batch
    return x.chunk(size)[rank], y.chunk(size)[rank]


def sgd(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer] = sgd,
) -> nn.Module:
    """Train for one step on each batch, and return the model."""
    steps = optimizer(model.parameters())
    for batch in batches:
        steps.zero_grad()
        loss_of(model, batch).backward()
        steps.step()
    return model


def assert_equal_to_rounding(model: nn.Module, expected: nn.Module, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Parameter by parameter."""
    wanted = dict(expected.named_parameters())
    found = {name.removeprefix("module."): p for name, p in model.named_parameters()}
    assert found.keys() == wanted.keys()
    for name, p in found.items():
        torch.testing.assert_close(p, wanted[name], rtol=rtol, atol=atol, msg=partial("{}: {}".format, name))


@contextmanager
def shared_folder() -> Iterator[str]:
    """A new folder that all ranks share. It is removed when all have left it. There must be a default group."""
    made = TemporaryDirectory() if dist.get_rank() == 0 else None
    said = [made.name if made else None]
    dist.broadcast_object_list(said, 0)
    yield str(said[0])
    dist.barrier()
    if made:
        made.cleanup()


class TwoLayers(nn.Module):
    """In the backward pass, rank 1 comes to its second layer when rank 0 has left its own, or after ``limit``.

    The second layer's gradients are reduced first. If rank 0 waits for that, it cannot leave before rank 1 has come."""

    def __init__(self, rank: int, limit: timedelta) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        self.rank, self.limit = rank, limit
        self.messages = dist.new_group(backend="mpicoll")
        self.left: Any = None
        self.left_in_time = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h.register_hook(self.leave_second)
        y: torch.Tensor = self.second(h)
        y.register_hook(self.come_to_second)
        return y

    def come_to_second(self, _: torch.Tensor) -> None:
        if self.rank == 1:
            self.left = mpicoll.torch.irecv(torch.empty(1), 0, self.messages)
            try:
                self.left_in_time = self.left.wait(self.limit)
            except TimeoutError:
                self.left_in_time = False

    def leave_second(self, _: torch.Tensor) -> None:
        if self.rank == 0:
            mpicoll.torch.send(torch.ones(1), 1, self.messages)


def backward_waits(rank: int, expected: bool, **options: Any) -> bool:
    """Whether rank 0's backward pass waited for its first all-reduce. ``expected`` says for how long to look.

    All ranks call this, with the same options of DistributedDataParallel."""
    model = TwoLayers(rank, timedelta(seconds=0.2 if expected else 60))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001, **options)
    for _ in range(2):  # the first pass finds out in which order gradients come
        ddp(torch.ones(1, 32)).sum().backward()
        if rank == 1:
            model.left.wait()
    found = [model.left_in_time]
    dist.broadcast_object_list(found, 1)
    dist.destroy_process_group(model.messages)
    return not found[0]


def row(rank: int) -> torch.Tensor:
    return torch.arange(1.0, 4.0) + 10 * rank


def everybodys(size: int) -> torch.Tensor:
    return torch.stack([row(r) for r in range(size)])


def total(size: int) -> torch.Tensor:
    return everybodys(size).sum(0)
