"""Generate tokens with a language model of transformers whose layers are split over the ranks (tensor parallelism).

The model is a tiny Llama with random weights, made on the spot: nothing is downloaded. Start it with

    mpicoll run -n 2 examples/tensor_parallel.py
    BACKEND=gloo mpicoll run -n 4 examples/tensor_parallel.py bfloat16
"""

import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig

PROMPT, NEW = (3, 1, 4, 1, 5, 9, 2, 6), 24


def make(folder: str, width: int = 128, layers: int = 4, heads: int = 8) -> None:
    """Save a model. The number of heads must be a multiple of the number of ranks."""
    torch.manual_seed(0)
    shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    shape |= {"num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": 256}
    no_words: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    LlamaForCausalLM(LlamaConfig(**shape, **no_words)).save_pretrained(folder)


def split_model(dtype: torch.dtype, **shape: int) -> Any:
    """The model, of which each rank has a part of every layer. Rank 0 makes it; all ranks read their parts."""
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        if dist.get_rank() == 0:
            make(own, **shape)
        dist.broadcast_object_list(folder)
        plan = DistributedConfig(tp_plan="auto")
        model = AutoModelForCausalLM.from_pretrained(folder[0], dtype=dtype, distributed_config=plan)
        dist.barrier()  # all have read it
    return model


def generate(model: Any, tokens: int) -> list[int]:
    """The likeliest continuation of the prompt, token by token."""
    prompt = torch.tensor([PROMPT])
    how = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    with torch.inference_mode():
        found = model.generate(prompt, attention_mask=torch.ones_like(prompt), **how)
    return [int(token) for token in found[0, len(PROMPT) :]]


def main(dtype: str = "float32") -> list[int]:
    dist.init_process_group(os.environ.get("BACKEND", "mpicoll"))
    tokens = generate(split_model(getattr(torch, dtype)), NEW)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks over {dist.get_backend()}, {dtype}: {tokens}")
    dist.destroy_process_group()
    return tokens


if __name__ == "__main__":
    main(*sys.argv[1:2])
