"""What a group's methods have in common: torch's simple forms, as ``group.broadcast(tensor, 0)``, and hooks.

torch itself passes lists and an object of options: ``group.broadcast([tensor], options)``. To a program it offers both.
In the functions here the parameters of the simple forms have torch's names. Each returns what the other form takes.
A ``timeout`` changes nothing, except in ``barrier``: that of the group counts.

From torch 2.14 on a program may have torch call hooks before and after each operation of a group
(``register_pre_hook``). torch's own groups call theirs in C++, which calls of a group in Python do not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

import torch
from torch.distributed import ReduceOp

from mpicoll.torch.caller import GivenOp
from mpicoll.torch.private import OPTIONS, HookOpName, PostHookArgs, PreHookArgs


@dataclass(frozen=True)
class Options:
    """What the group's methods read of torch's options, whose names these are."""

    reduceOp: GivenOp = ReduceOp.SUM
    rootRank: Any = 0
    asyncOp: bool = True
    timeout: timedelta = timedelta(0)


_OPTIONS = OPTIONS | {Options}
"""Classes of options."""

DEFAULTS = Options()

_NOTHING = object()
"""Stands for an argument that was not given."""

Form = tuple[Any, ...]
Tensors = Sequence[torch.Tensor]
M = TypeVar("M", bound=Callable[..., Any])


def operation(
    name: str, inputs: int | None = None, outputs: int | None = None, simple: Callable[..., Form] | None = None
) -> Callable[[M], M]:
    """Marks a group's method as an operation: torch's ``name`` of it, and which arguments are its inputs and outputs.

    It also takes the ``simple`` form, if there is one.
    """

    def marked(method: M) -> M:
        made = method if simple is None else _also_simple(method, simple)
        made.hooked = name, inputs, outputs  # type: ignore[attr-defined]
        return made

    return marked


def _also_simple(method: M, simple: Callable[..., Form]) -> M:
    names = set(signature(method).parameters)

    def listed(given: Form, named: dict[str, Any]) -> tuple[Form, dict[str, Any]]:
        """The arguments of the form with lists and options."""
        if (given and type(given[-1]) in _OPTIONS) or (named and named.keys() <= names):
            return given, named
        return simple(*given, **named), {}

    @wraps(method)
    def call(self: Any, first: Any = _NOTHING, second: Any = _NOTHING, /, *more: Any, **named: Any) -> Any:
        if type(second) in _OPTIONS and not more and not named:  # as torch calls most: the shortest way
            return method(self, first, second)
        given, named = listed(tuple(x for x in (first, second, *more) if x is not _NOTHING), named)
        return method(self, *given, **named)

    call.listed = listed  # type: ignore[attr-defined]
    return cast(M, call)


# -- the simple forms -------------------------------------------------------------------------------------------------


def broadcast(tensor: Any, root: Any = 0, timeout: timedelta | None = None) -> Form:
    return _listed(tensor), Options(rootRank=root)


def allreduce(tensor: Any, op: GivenOp = ReduceOp.SUM, timeout: timedelta | None = None) -> Form:
    return _listed(tensor), Options(op)


def reduce(tensor: Any, root: Any = 0, op: GivenOp = ReduceOp.SUM, timeout: timedelta | None = None) -> Form:
    return _listed(tensor), Options(op, root)


def allgather(output_tensors: Any, input_tensor: Any, timeout: timedelta | None = None) -> Form:
    return _listed(output_tensors, input_tensor), _listed(input_tensor), DEFAULTS


def gather(output_tensors: Any, input_tensor: Any, root: Any = 0, timeout: timedelta | None = None) -> Form:
    return _listed(output_tensors, input_tensor), _listed(input_tensor), Options(rootRank=root)


def scatter(output_tensor: Any, input_tensors: Any, root: Any = 0, timeout: timedelta | None = None) -> Form:
    return _listed(output_tensor), _listed(input_tensors, output_tensor), Options(rootRank=root)


def reduce_scatter(output: Any, input: Any, op: GivenOp = ReduceOp.SUM, timeout: timedelta | None = None) -> Form:
    return _listed(output), _listed(input, output), Options(op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int],
    input_split_sizes: Sequence[int],
    timeout: timedelta | None = None,
) -> Form:
    return output, input, output_split_sizes, input_split_sizes, DEFAULTS


def barrier(timeout: timedelta | None = None) -> Form:
    return (DEFAULTS if timeout is None else Options(asyncOp=False, timeout=timeout),)


def _listed(given: Any, beside: Any = None) -> Any:
    """``given`` in a list, if it or what stands ``beside`` it is a tensor of the simple form."""
    return [given] if isinstance(given, torch.Tensor) or isinstance(beside, torch.Tensor) else given


# -- hooks ------------------------------------------------------------------------------------------------------------

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
            for name in dir(type(self)):
                if (about := getattr(getattr(type(self), name, None), "hooked", None)) is not None:
                    setattr(self, name, self._around(getattr(self, name), *about))
        return self._before, self._after

    def _around(
        self, method: Callable[..., Any], name: str, inputs: int | None, outputs: int | None
    ) -> Callable[..., Any]:
        @wraps(method)
        def call(*given: Any, **named: Any) -> Any:
            if hasattr(method, "listed"):
                given, named = method.listed(given, named)
            complete = signature(method).bind(*given, **named)
            complete.apply_defaults()
            arguments = complete.args
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
