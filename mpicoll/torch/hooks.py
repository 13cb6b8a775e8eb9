"""Communication hooks for DistributedDataParallel that send gradients in 16 bits.

::

    model.register_comm_hook(None, hooks.bf16_compress_hook)

torch's own bfloat16 hook runs over NCCL alone. These run over any group of mpicoll's, even if the
DistributedDataParallel itself has a group of another backend."""

# No `from __future__ import annotations`: DistributedDataParallel checks a hook's annotations, and wants types.

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import GradBucket

from mpicoll.torch.collectives import all_reduce
from mpicoll.torch.group import joined

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


def _compressing(dtype: torch.dtype) -> Hook:
    def compress_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        g = joined(state, "compress_hook")
        buffer = bucket.buffer()
        # Divide first, in the gradients' own dtype: float16 may not hold their sum.
        small = buffer.div_(g.size()).to(dtype)
        work = all_reduce(small, group=g, async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: buffer.copy_(done.value()[0]))

    return compress_hook


bf16_compress_hook: Hook = _compressing(torch.bfloat16)
"""Average the gradients over the group in bfloat16. The hook's ``state`` is the group; None is the default group."""

fp16_compress_hook: Hook = _compressing(torch.float16)
"""The same in float16: more digits, but magnitudes below 6e-8 become zero and those above 65504 infinite."""
