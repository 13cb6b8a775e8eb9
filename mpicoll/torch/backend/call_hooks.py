"""What a program has torch call before and after each operation of a group: ``register_pre_hook``, from torch 2.14 on.

torch's own groups call their hooks in C++, which calls of a group in Python do not pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from mpicoll.torch.backend.simple_forms import bound
from mpicoll.torch.private import HookOpName, PostHookArgs, PreHookArgs

_OPERATIONS: dict[str, tuple[str, int | None, int | None]] = {
    "allreduce": ("ALLREDUCE", 0, None),
    "allreduce_coalesced": ("ALLREDUCE_COALESCED", 0, None),
    "reduce": ("REDUCE", 0, None),
    "broadcast": ("BROADCAST", 0, None),
    "allgather": ("ALLGATHER", 1, 0),
    "all_gather_single": ("ALLGATHER_BASE", 1, 0),
    "allgather_coalesced": ("ALLGATHER_COALESCED", 1, 0),
    "all_gather_single_coalesced": ("ALLGATHER_INTO_TENSOR_COALESCED", 1, 0),
    "gather": ("GATHER", 1, 0),
    "gather_single": ("GATHER", 1, 0),
    "scatter": ("SCATTER", 1, 0),
    "reduce_scatter": ("REDUCE_SCATTER", 1, 0),
    "reduce_scatter_single": ("REDUCE_SCATTER_BASE", 1, 0),
    "reduce_scatter_single_coalesced": ("REDUCE_SCATTER_TENSOR_COALESCED", 1, 0),
    "alltoall": ("ALLTOALL", 1, 0),
    "all_to_all_single": ("ALLTOALL_BASE", 1, 0),
    "barrier": ("BARRIER", None, None),
    "send": ("SEND", 0, None),
    "recv": ("RECV", None, 0),
    "recv_anysource": ("RECV", None, 0),
}
"""By a group's method: torch's name of the operation, and which arguments are its inputs and its outputs."""

_ROOTED = ("REDUCE", "BROADCAST", "GATHER", "SCATTER")

Hook = Callable[[Any], object]


class CallHooks:
    """Part of a group: hooks around its operations. A group without hooks pays nothing for them."""

    _before: dict[int, Hook] | None = None
    _after: dict[int, Hook]
    _operations = 0

    if PreHookArgs is not None:

        def register_pre_hook(self, hook_id: int, hook: Hook) -> None:
            """Call ``hook`` with torch's PreHookArgs before each operation of the group."""
            self._hooked()[0][hook_id] = hook

        def register_post_hook(self, hook_id: int, hook: Hook) -> None:
            """Call ``hook`` with torch's PostHookArgs after each operation has begun."""
            self._hooked()[1][hook_id] = hook

        def unregister_pre_hook(self, hook_id: int) -> None:
            """Call this hook no more."""
            self._hooked()[0].pop(hook_id, None)

        def unregister_post_hook(self, hook_id: int) -> None:
            """Call this hook no more."""
            self._hooked()[1].pop(hook_id, None)

    def _hooked(self) -> tuple[dict[int, Hook], dict[int, Hook]]:
        """The hooks. From the first one on, the methods of this group call them."""
        if self._before is None:
            self._before, self._after = {}, {}
            known = {id(getattr(type(self), name)): name for name in _OPERATIONS}
            for name in dir(type(self)):
                first = known.get(id(getattr(type(self), name, None)))  # older names mean the same methods
                if first is not None:
                    setattr(self, name, self._around(getattr(self, name), *_OPERATIONS[first]))
        return self._before, self._after

    def _around(
        self, method: Callable[..., Any], name: str, inputs: int | None, outputs: int | None
    ) -> Callable[..., Any]:
        @wraps(method)
        def call(*given: Any, **named: Any) -> Any:
            arguments = bound(method, given, named)
            before, after = self._hooked()
            about = PreHookArgs()
            about.name, about.op_id = _named(name), self._operations
            self._operations += 1
            for index, field in ((inputs, "input_tensors"), (outputs, "output_tensors")):
                if index is not None:
                    setattr(about, field, _flat(arguments[index]))
            options = arguments[-1]
            if name in _ROOTED:
                about.root = getattr(options, "rootRank", -1)
            about.async_op = bool(getattr(options, "asyncOp", False))
            for hook in [*before.values()]:
                hook(about)
            work = method(*arguments)
            if after:
                done = PostHookArgs()
                done.name, done.op_id, done.async_op, done.work = about.name, about.op_id, about.async_op, work
                for hook in [*after.values()]:
                    hook(done)
            return work

        return call


def _named(name: str) -> Any:
    """torch's name of an operation. torch 2.14 has one for all forms of it, such as ALLGATHER for ALLGATHER_BASE."""
    while "_" in name and not hasattr(HookOpName, name):
        name = name.rpartition("_")[0]
    return getattr(HookOpName, name)


def _flat(given: Any) -> list[torch.Tensor]:
    """The tensors of an argument: one, a list of them, or a list of lists."""
    if isinstance(given, torch.Tensor):
        return [given]
    return [tensor for each in given for tensor in _flat(each)]
