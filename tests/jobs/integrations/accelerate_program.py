"""accelerate over our default group: training is that of one process on whole batches, and metrics are gathered."""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from tests.jobs.integrations import alone

dist.init_process_group("mpicoll")
accelerator = Accelerator(cpu=True)
rank, size = accelerator.process_index, accelerator.num_processes
assert (rank, size) == (dist.get_rank(), dist.get_world_size())
mine = alone.model()
ours, optimizer, loader = accelerator.prepare(
    mine, alone.optimizer(mine), DataLoader(alone.data(), batch_size=alone.BATCH // size)
)
assert isinstance(ours, nn.parallel.DistributedDataParallel)
for _ in range(alone.EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(ours(x), y))
        optimizer.step()
alone.check(accelerator.unwrap_model(ours))
assert accelerator.gather(torch.tensor([rank])).tolist() == list(range(size))
assert accelerator.reduce(torch.ones(2)).tolist() == [size, size]
accelerator.wait_for_everyone()
print("all of it works", flush=True)
accelerator.end_training()
