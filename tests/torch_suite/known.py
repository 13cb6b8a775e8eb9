"""The tests of PyTorch's suite that cannot pass over mpicoll, and why. torch's own runner skips all of them but two
(those of monitored_barrier that ask for gloo to be there, and no more), as the backend is not one that they name."""

from __future__ import annotations

_GPU = "needs a GPU"
_NAMES = "makes its model for the backends gloo, nccl and mpi alone"
_TIMEOUT = "wants a barrier that nobody else enters to end after the group's timeout, which a blocking MPI call cannot"
_MONITORED = "wants gloo's backend or its words; before 2.14, torch refuses monitored_barrier for every other backend"

KNOWN = {
    "test_SyncBatchNorm_process_group": "needs torchvision",
    "test_accumulate_gradients_no_sync": _NAMES,
    "test_accumulate_gradients_no_sync_allreduce_hook": _NAMES,
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": _NAMES,
    "test_accumulate_gradients_no_sync_grad_is_view": _NAMES,
    "test_all_to_all_cuda": _GPU,
    "test_all_to_all_cuda_complex": _GPU,
    "test_all_to_all_full_group_cuda": _GPU,
    "test_barrier_timeout_full_group": _TIMEOUT,
    "test_barrier_timeout_global": _TIMEOUT,
    "test_batch_isend_irecv_mixed_backend_err": _GPU,
    "test_batch_isend_irecv_op_err": _GPU,
    "test_monitored_barrier_gloo": _MONITORED,
    "test_monitored_barrier_gloo_rank_0_timeout": _MONITORED,
    "test_monitored_barrier_gloo_subgroup": _MONITORED,
    "test_new_subgroups_with_group_param": "needs four ranks",
    "test_sparse_all_reduce_sum": "MPI reduces dense tensors alone: a sparse one is refused in a line",
}
