"""Synchronous SGD on a partitioned data set: every rank computes on its part, and the ranks average their gradients.

Start it with

    mpicoll run -n 4 examples/sgd.py
"""

import torch
from torch.nn.functional import mse_loss

import mpicoll.torch as dist

EPOCHS, BATCH, SAMPLES, FEATURES = 10, 48, 480, 4


def data_set() -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy samples of a linear function, the same on all ranks."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES, generator=generator)
    y = x @ torch.arange(1.0, FEATURES + 1) + 0.1 * torch.randn(SAMPLES, generator=generator)
    return x, y[:, None]


def make_model() -> torch.nn.Module:
    """A model, the same on all ranks. It has its own generator: torch.manual_seed sets one that all threads share."""
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5, generator=generator)
    return model


def average_gradients(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, dist.ReduceOp.SUM)
        parameter.grad /= dist.get_world_size()


def my_part(batch: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a batch."""
    return batch.tensor_split(dist.get_world_size())[dist.get_rank()]


def train() -> tuple[torch.nn.Module, list[float]]:
    """The trained model, and the loss of each epoch, averaged over the ranks."""
    x, y = data_set()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(EPOCHS):
        total = torch.zeros(1)
        for inputs, targets in zip(x.split(BATCH), y.split(BATCH), strict=True):
            optimizer.zero_grad()
            loss = mse_loss(model(my_part(inputs)), my_part(targets))
            loss.backward()
            average_gradients(model)
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total, dist.ReduceOp.AVG)
        losses.append(total.item() * BATCH / SAMPLES)
    return model, losses


def main(comm: object = None) -> None:
    """What each rank does. A rank is a process or, with ``ranks.run(main)``, a thread."""
    dist.init_process_group("mpicoll")
    _, losses = train()
    for epoch, loss in enumerate(losses):
        print(f"rank {dist.get_rank()}, epoch {epoch}: loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
