"""Data-parallel training with torch's own DistributedDataParallel over MPI. Only the backend's name comes from mpicoll.

Start it with

    mpicoll run -n 4 examples/ddp.py
    BACKEND=nccl mpicoll run -n 4 examples/ddp.py    # the same program on another backend; gloo works, too
"""

import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH, SAMPLES = 4, 48, 480


def data_set() -> TensorDataset:
    """Small noisy images of a vertical or a horizontal bar, the same on all ranks."""
    generator = torch.Generator().manual_seed(1)
    images = 0.5 * torch.randn(SAMPLES, 1, 8, 8, generator=generator)
    labels = torch.randint(2, (SAMPLES,), generator=generator)
    places = torch.randint(8, (SAMPLES,), generator=generator)
    for image, label, place in zip(images, labels, places, strict=True):
        (image[0] if label else image[0].t())[place] += 1.0
    return TensorDataset(images, labels)


def make_model() -> nn.Module:
    """A small convolutional network. DistributedDataParallel sends rank 0's parameters to all ranks."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(32, 2)
    )


def train(model: nn.Module) -> list[float]:
    """Train in place. Return each epoch's share of right answers over all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    device = next(model.parameters()).device
    data = data_set()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, size, rank, shuffle=True, seed=2)
    loader = DataLoader(data, batch_size=BATCH // size, sampler=sampler)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.02)
    shares = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        right = torch.zeros(1, device=device)
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            logits = ddp(images)
            nn.functional.cross_entropy(logits, labels).backward()
            optimizer.step()
            right += (logits.argmax(1) == labels).sum()
        dist.all_reduce(right)
        shares.append(right.item() / SAMPLES)
    return shares


def main() -> None:
    dist.init_process_group(os.environ.get("BACKEND", "mpicoll"))
    device = torch.device("cpu")
    if torch.cuda.is_available():  # deal the GPUs of a node to its ranks in turn
        device = torch.device("cuda", dist.get_node_local_rank() % torch.cuda.device_count())
    torch.manual_seed(0)
    for epoch, share in enumerate(train(make_model().to(device))):
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks over {dist.get_backend()}, epoch {epoch}: {share:.1%} right")
    gc.collect()  # free DistributedDataParallel, which keeps gloo's threads: one sometimes aborts when Python ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
