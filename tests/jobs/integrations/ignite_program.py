"""What people write with ignite.distributed, each with what must come out, as in its tutorial of collectives."""

from __future__ import annotations

from typing import Any

import ignite.distributed as idist
import torch
import torch.distributed as dist
from ignite.engine import Engine
from ignite.metrics import Average
from torch import nn

import mpicoll.torch
from tests.jobs.integrations import alone


def collectives(rank: int, size: int) -> None:
    tensor = torch.arange(2, dtype=torch.int64) + 1 + 2 * rank
    idist.all_reduce(tensor, op="SUM")
    assert tensor.tolist() == [sum(1 + 2 * r for r in range(size)), sum(2 + 2 * r for r in range(size))]
    assert idist.all_reduce(rank + 1.0, op="PRODUCT") == float(torch.arange(1, size + 1).prod())
    assert idist.all_reduce(rank, op="MAX") == size - 1
    assert idist.all_gather(2.0 * rank) == [2.0 * r for r in range(size)]
    assert idist.all_gather("rank " * (rank + 1)) == ["rank " * (r + 1) for r in range(size)]
    assert idist.all_gather({"rank": rank}) == [{"rank": r} for r in range(size)]
    group = idist.new_group([size - 1])
    if rank == size - 1:
        gathered: Any = idist.all_gather(torch.tensor([rank]), group=group)
        assert gathered.tolist() == [rank]
    assert idist.broadcast(f"hello from rank {rank}", src=0) == "hello from rank 0"
    sent: Any = idist.broadcast(torch.tensor([1.0 + rank]), src=size - 1)
    assert sent.tolist() == [size]
    # A metric on rank 0: the others know neither its type nor its length.
    assert idist.broadcast(0.5 if rank == 0 else None, src=0, safe_mode=True) == 0.5
    assert (idist.get_local_rank(), idist.get_nproc_per_node()) == (rank, size)
    idist.barrier()


def training() -> None:
    """With its engine, its loader, and a metric, which averages over all ranks.

    DistributedDataParallel is by hand, around auto_model, which knows the backends that it does that for by name."""
    loader = idist.auto_dataloader(alone.data(), batch_size=alone.BATCH, shuffle=False)
    model = nn.parallel.DistributedDataParallel(idist.auto_model(alone.model()))
    optimizer = idist.auto_optim(alone.optimizer(model))

    def step(engine: Engine, batch: Any) -> float:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(step)
    Average().attach(trainer, "loss")
    trainer.run(loader, max_epochs=alone.EPOCHS)
    alone.check(model.module)
    loss = trainer.state.metrics["loss"]
    assert idist.all_gather(loss) == [loss] * idist.get_world_size()


if __name__ == "__main__":
    dist.init_process_group("mpicoll")
    idist.set_local_rank(mpicoll.torch.get_node_local_rank())
    assert (idist.backend(), idist.model_name()) == ("mpicoll", "native-dist")
    rank, size = idist.get_rank(), idist.get_world_size()
    assert (rank, size) == (dist.get_rank(), dist.get_world_size())
    collectives(rank, size)
    training()
    print("all of it works", flush=True)
    dist.destroy_process_group()
