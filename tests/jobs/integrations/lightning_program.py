"""A Trainer over MPI ranks: its parameters are those of one process on whole batches. Takes a folder to write to."""

from __future__ import annotations

import sys
from typing import Any, cast

import torch
import torch.distributed as dist
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins.environments import MPIEnvironment
from pytorch_lightning.strategies import DDPStrategy
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, DistributedSampler
from torchmetrics import MeanMetric

import mpicoll.torch
from tests.jobs.integrations import alone


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.loss = alone.model(), MeanMetric()
        self.seen: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = mse_loss(self.model(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        self.log("epoch", loss, sync_dist=True, on_epoch=True)  # averages integers, too: the sizes of the batches
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.loss.update(mse_loss(self.model(batch[0]), batch[1]), weight=len(batch[0]))
        self.log("validation", self.loss)

    def on_validation_epoch_end(self) -> None:
        self.seen.append(float(self.trainer.callback_metrics["validation"]))
        ranks: Any = self.all_gather(torch.tensor(self.global_rank))
        assert ranks.tolist() == list(range(self.trainer.world_size))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return alone.optimizer(self)


if __name__ == "__main__":
    environment = MPIEnvironment()
    size = environment.world_size()
    saving = ModelCheckpoint(sys.argv[1], filename="last")
    trainer = Trainer(
        accelerator="cpu",
        devices=size,
        max_epochs=alone.EPOCHS,
        strategy=DDPStrategy(process_group_backend="mpicoll", cluster_environment=environment),
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # Lightning's own would shuffle
        logger=False,
        callbacks=[saving],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Regression()
    # Each rank takes every size-th row: a step's rows are those of one process's batch.
    mine: Any = DistributedSampler(alone.data(), size, environment.global_rank(), shuffle=False)
    loaders = [DataLoader(alone.data(), batch_size=alone.BATCH // size, sampler=mine) for _ in range(2)]
    trainer.fit(module, loaders[0], loaders[1])
    assert dist.get_backend() == "mpicoll"
    assert dist.group.WORLD is cast(Any, mpicoll.torch.group.WORLD)
    assert (trainer.global_rank, trainer.world_size) == (mpicoll.torch.get_rank(), size)
    assert abs(module.seen[-1] - alone.check(module.model)) < 1e-4
    assert trainer.strategy.broadcast(f"from rank {trainer.global_rank}", src=1) == "from rank 1"
    saved = torch.load(saving.best_model_path, weights_only=True)["state_dict"]
    assert all(torch.equal(saved[name], value) for name, value in module.state_dict().items())
    print("all of it works", flush=True)
