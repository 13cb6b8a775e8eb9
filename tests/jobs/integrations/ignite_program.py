"""What people write with ignite.distributed, each with what must come out. Takes a folder to write to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
import torch.distributed as dist
from ignite.engine import Engine, Events
from ignite.metrics import Accuracy, Average
from torch import nn

import mpicoll.torch

# -- its tutorial -----------------------------------------------------------------------------------------------------


def all_reduce(rank: int, size: int, folder: Path) -> None:
    tensor = torch.arange(2, dtype=torch.int64) + 1 + 2 * rank
    idist.all_reduce(tensor, op="SUM")
    assert tensor.tolist() == [sum(1 + 2 * r for r in range(size)), sum(2 + 2 * r for r in range(size))]
    assert size != 3 or tensor.tolist() == [9, 12]
    assert idist.all_reduce(rank + 1.0, op="PRODUCT") == float(torch.arange(1, size + 1).prod())
    assert idist.all_reduce(rank, op="MAX") == size - 1


def average_gradients(rank: int, size: int, folder: Path) -> None:
    """Equal to one process on the whole batch."""
    torch.manual_seed(0)
    model, data = nn.Linear(3, 2), torch.randn(2 * size, 3)
    whole = torch.autograd.grad(model(data).square().mean(), list(model.parameters()))
    model(data[2 * rank : 2 * rank + 2]).square().mean().backward()
    for parameter, expected in zip(model.parameters(), whole, strict=True):
        idist.all_reduce(parameter.grad, op="SUM")
        torch.testing.assert_close(parameter.grad / size, expected)


def all_gather(rank: int, size: int, folder: Path) -> None:
    assert idist.all_gather(2.0 * rank) == [2.0 * r for r in range(size)]
    assert idist.all_gather("rank " * (rank + 1)) == ["rank " * (r + 1) for r in range(size)]
    assert idist.all_gather({"rank": rank}) == [{"rank": r} for r in range(size)]
    group = idist.new_group(sorted({0, size - 1}))
    if rank in (0, size - 1):
        gathered: Any = idist.all_gather(torch.tensor([rank]), group=group)
        assert gathered.tolist() == sorted({0, size - 1})


def predictions_in_a_file(rank: int, size: int, folder: Path) -> None:
    predictions = idist.all_gather(torch.full((2,), float(rank)))
    if rank == 0:
        torch.save(predictions, folder / "predictions")
    idist.barrier()
    assert torch.load(folder / "predictions").tolist() == [float(r) for r in range(size) for _ in range(2)]


def broadcast(rank: int, size: int, folder: Path) -> None:
    assert idist.broadcast(f"hello from rank {rank}", src=0) == "hello from rank 0"
    sent: Any = idist.broadcast(torch.tensor([1.0 + rank]), src=size - 1)
    assert sent.tolist() == [size]
    assert idist.broadcast(0.5 + rank, src=0) == 0.5


def metric_on_rank_0(rank: int, size: int, folder: Path) -> None:
    """The others know neither its type nor its length."""
    predictions: Any = idist.all_gather(torch.tensor([rank, 1]))
    targets = idist.all_gather(torch.tensor([rank, 0]))
    result = float((predictions == targets).float().mean()) if rank == 0 else None
    assert idist.broadcast(result, src=0, safe_mode=True) == 0.5


def one_download_a_node(rank: int, size: int, folder: Path) -> None:
    data = folder / "data"
    if idist.get_local_rank() > 0:
        idist.barrier()
    else:
        assert not data.exists()
        data.write_text("downloaded")
        idist.barrier()
    assert data.read_text() == "downloaded"


# -- training ---------------------------------------------------------------------------------------------------------


def training(rank: int, size: int, folder: Path) -> None:
    """With its engine, its loader, and its metrics, which average over all ranks.

    DistributedDataParallel is by hand, around auto_model, which knows the backends that it does that for by name."""
    torch.manual_seed(0)
    x = torch.randn(24, 3)
    data: Any = list(zip(x, (x.sum(1) > 0).long(), strict=True))
    loader = idist.auto_dataloader(data, batch_size=4 * size, shuffle=False)
    model = nn.parallel.DistributedDataParallel(idist.auto_model(nn.Linear(3, 2)))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=1.0))

    def step(engine: Engine, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        assert len(inputs) == 4
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, targets)
        loss.backward()
        optimizer.step()
        return {"loss": loss.item(), "y_pred": outputs, "y": targets}

    trainer = Engine(step)
    Average(output_transform=lambda out: out["loss"]).attach(trainer, "loss")
    Accuracy(output_transform=lambda out: (out["y_pred"], out["y"])).attach(trainer, "accuracy")
    losses: list[float] = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def keep(engine: Engine) -> None:
        losses.append(engine.state.metrics["loss"])

    trainer.run(loader, max_epochs=10)
    assert losses[-1] < losses[0] / 2
    assert trainer.state.metrics["accuracy"] > 0.9
    assert idist.all_gather(losses) == [losses] * size
    weight: Any = idist.all_gather(model.module.weight.detach().clone().view(1, -1))
    assert (weight == weight[0]).all()


PROGRAMS: list[Callable[[int, int, Path], None]] = [
    all_reduce, average_gradients, all_gather, predictions_in_a_file, broadcast, metric_on_rank_0,
    one_download_a_node, training,
]  # fmt: skip


def main() -> None:
    dist.init_process_group("mpicoll")
    idist.set_local_rank(mpicoll.torch.get_node_local_rank())
    assert (idist.backend(), idist.model_name()) == ("mpicoll", "native-dist")
    rank, size = idist.get_rank(), idist.get_world_size()
    assert (rank, size) == (dist.get_rank(), dist.get_world_size())
    for program in PROGRAMS:
        program(rank, size, Path(sys.argv[1]))
    print("all of ignite's collectives and a training", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
