"""What people write with ignite.distributed, each with what must come out, as in its tutorial of collectives."""

from __future__ import annotations

from typing import Any

import ignite.distributed as idist
import torch
import torch.distributed as dist
from ignite.engine import Engine, Events
from ignite.metrics import Accuracy, Average
from torch import nn

import mpicoll.torch


def collectives(rank: int, size: int) -> None:
    tensor = torch.arange(2, dtype=torch.int64) + 1 + 2 * rank
    idist.all_reduce(tensor, op="SUM")
    assert tensor.tolist() == [sum(1 + 2 * r for r in range(size)), sum(2 + 2 * r for r in range(size))]
    assert idist.all_reduce(rank + 1.0, op="PRODUCT") == float(torch.arange(1, size + 1).prod())
    assert idist.all_reduce(rank, op="MAX") == size - 1
    assert idist.all_gather(2.0 * rank) == [2.0 * r for r in range(size)]
    assert idist.all_gather("rank " * (rank + 1)) == ["rank " * (r + 1) for r in range(size)]
    assert idist.all_gather({"rank": rank}) == [{"rank": r} for r in range(size)]
    group = idist.new_group([0, size - 1])
    if rank in (0, size - 1):
        gathered: Any = idist.all_gather(torch.tensor([rank]), group=group)
        assert gathered.tolist() == [0, size - 1]
    assert idist.broadcast(f"hello from rank {rank}", src=0) == "hello from rank 0"
    sent: Any = idist.broadcast(torch.tensor([1.0 + rank]), src=size - 1)
    assert sent.tolist() == [size]
    # A metric on rank 0: the others know neither its type nor its length.
    assert idist.broadcast(0.5 if rank == 0 else None, src=0, safe_mode=True) == 0.5
    assert (idist.get_local_rank(), idist.get_nproc_per_node()) == (rank, size)
    idist.barrier()


def training(rank: int, size: int) -> None:
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


if __name__ == "__main__":
    dist.init_process_group("mpicoll")
    idist.set_local_rank(mpicoll.torch.get_node_local_rank())
    assert (idist.backend(), idist.model_name()) == ("mpicoll", "native-dist")
    rank, size = idist.get_rank(), idist.get_world_size()
    assert (rank, size) == (dist.get_rank(), dist.get_world_size())
    collectives(rank, size)
    training(rank, size)
    print("all of it works", flush=True)
    dist.destroy_process_group()
