"""Train a sharded transformer in bf16, and save a checkpoint that any number of ranks can load.

torch's fully_shard splits the parameters, the gradients and the optimizer's state over the ranks.

Start it with

    mpicoll run -n 4 examples/fsdp.py                 # train, and save in checkpoints/20
    mpicoll run -n 2 examples/fsdp.py checkpoints/20  # continue from there, on fewer ranks
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

STEPS, ROWS, LENGTH, VOCABULARY, WIDTH = 20, 24, 16, 32, 64


class Model(nn.Module):
    """Tokens in, logits of the next token out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=x.dtype)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x).flatten(0, 1).clone()


def sharded_model() -> nn.Module:
    """The model. Each layer is gathered when it is needed, and freed afterwards."""
    torch.manual_seed(0)
    model = Model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows. Each row counts upwards from a random token, with its own step."""
    generator = torch.Generator().manual_seed(step)
    start, stride = torch.randint(VOCABULARY, (2, ROWS, 1), generator=generator)
    text = (start + (1 + stride % 3) * torch.arange(LENGTH + 1)) % VOCABULARY
    mine = text.tensor_split(dist.get_world_size())[dist.get_rank()]
    return mine[:, :-1], mine[:, 1:]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Train in place. Return the loss of each step, averaged over the ranks."""
    losses = []
    for step in steps:
        tokens, following = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).float(), following.flatten())
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses


def main(saved: str | None = None, folder: str = "checkpoints") -> list[float]:
    """Train, from the checkpoint ``saved`` if it is given, and save one in ``folder``. Return the losses."""
    dist.init_process_group("mpicoll")
    model = sharded_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    parameters, state = get_state_dict(model, optimizer)
    everything: dict[str, Any] = {"model": parameters, "optimizer": state, "step": 0}
    if saved is not None:
        checkpoint.load(everything, checkpoint_id=saved)
        set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=state)
    first = everything["step"]
    last = first + STEPS
    losses = train(model, optimizer, range(first, last))
    parameters, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": parameters, "optimizer": state, "step": last}, checkpoint_id=f"{folder}/{last}")
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, steps {first} to {last}: loss {losses[0]:.2f} to {losses[-1]:.2f}")
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:2])
