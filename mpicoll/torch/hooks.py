"""Communication hooks for DistributedDataParallel: gradients travel in 16 bits.

::

    model.register_comm_hook(None, hooks.bf16_compress_hook)

torch's own hook of that name refuses to run without NCCL, by its name. These run over any group of mpicoll's, also
under a DistributedDataParallel whose own group is another backend's.
"""

# No postponed annotations here: DistributedDataParallel compares a hook's with the types themselves.

from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket

from mpicoll.torch import collectives
from mpicoll.torch.group import joined
from mpicoll.torch.work import CollectiveWork

__all__ = ["bf16_compress_hook", "fp16_compress_hook"]

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


def _compressing(dtype: torch.dtype) -> Hook:
    def compress_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        g = joined(state, "compress_hook")
        buffer = bucket.buffer()
        # Divided first, in the gradients' own precision: their sum may be more than float16 holds.
        small = buffer.div_(g.size()).to(dtype)
        work = collectives.all_reduce(small, group=g, async_op=True)
        assert isinstance(work, CollectiveWork)
        return work.get_future().then(lambda done: buffer.copy_(done.value()[0]))

    return compress_hook


bf16_compress_hook: Hook = _compressing(torch.bfloat16)
"""The average of the gradients over the group, in bfloat16. Its ``state`` is the group; None is the default one."""

fp16_compress_hook: Hook = _compressing(torch.float16)
"""The same in float16: more digits, but magnitudes below 6e-8 become zero and ones above 65504 infinite."""
