"""Small models, and how one process trains them on the whole batch: what every parallel training must come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import nn

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
