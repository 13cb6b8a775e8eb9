"""torch.distributed's API over MPI: ``import mpicoll.torch as dist``.

Names and signatures are torch's. The functions' docstrings say what differs. ``init_process_group`` initialises MPI;
the import does not."""

import torch
from torch.distributed import ReduceOp

from mpicoll import registration, torch_versions
from mpicoll.launch.launch_env import launched_rank

torch_versions.check(torch.__version__, speaks=launched_rank() in (None, 0))

from mpicoll.torch import barriers, collectives, making, messages, objects
from mpicoll.torch.barriers import monitored_barrier

from mpicoll.torch.collectives import (  # isort: skip
    all_gather, all_gather_into_tensor, all_gather_single, all_reduce, all_to_all, all_to_all_single, barrier,
    broadcast, gather, reduce, reduce_scatter, reduce_scatter_single, reduce_scatter_tensor, scatter,
)  # fmt: skip
from mpicoll.torch.group import GroupMember, ProcessGroup, group
from mpicoll.torch.memory import empty, share_
from mpicoll.torch.messages import P2POp, batch_isend_irecv, irecv, isend, recv, send

from mpicoll.torch.objects import (  # isort: skip
    all_gather_object, broadcast_object_list, gather_object, recv_object_list, scatter_object_list, send_object_list,
)  # fmt: skip
from mpicoll.torch.private import uncompiled

from mpicoll.torch.process_groups import (  # isort: skip
    destroy_process_group, get_backend, get_global_rank, get_group_rank, get_node_local_rank, get_process_group_ranks,
    get_rank, get_world_size, init_process_group, is_available, is_initialized, new_group,
)  # fmt: skip
from mpicoll.torch.work import Work

__all__ = [
    "GroupMember", "P2POp", "ProcessGroup", "ReduceOp", "Work", "all_gather", "all_gather_into_tensor",
    "all_gather_object", "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single", "barrier",
    "batch_isend_irecv", "broadcast", "broadcast_object_list", "destroy_process_group", "empty", "gather",
    "gather_object", "get_backend", "get_global_rank", "get_group_rank", "get_node_local_rank",
    "get_process_group_ranks", "get_rank", "get_world_size", "group", "init_process_group", "irecv", "is_available",
    "is_initialized", "isend", "monitored_barrier", "new_group", "recv", "recv_object_list", "reduce", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send", "send_object_list",
    "share_",
]  # fmt: skip


def __dir__() -> list[str]:
    """What programs use."""
    return __all__


# torch.compile may look into the functions of process_groups and memory: in a graph, a rank is a constant.
for _module in (barriers, collectives, making, messages, objects):
    for _function in vars(_module).values():
        if getattr(_function, "__module__", None) == _module.__name__:
            uncompiled(_function)

registration.register()
