"""The tests of PyTorch's suite that cannot pass over mpicoll, and why."""

from __future__ import annotations

_NAMES = "the test makes its model for the backends gloo, nccl and mpi alone"
_GPU = "needs a GPU, and asks for none before it uses it"

KNOWN = {
    "test_SyncBatchNorm_process_group": "needs torchvision",
    "test_accumulate_gradients_no_sync": _NAMES,
    "test_accumulate_gradients_no_sync_allreduce_hook": _NAMES,
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": _NAMES,
    "test_accumulate_gradients_no_sync_grad_is_view": _NAMES,
    "test_all_to_all_cuda": _GPU,
    "test_all_to_all_cuda_complex": _GPU,
    "test_all_to_all_full_group_cuda": _GPU,
}
