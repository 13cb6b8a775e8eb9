"""What a group's methods have in common: torch's simple forms, as ``group.broadcast(tensor, 0)``, and hooks.

torch itself passes lists and an object of options: ``group.broadcast([tensor], options)``. To a program it offers both.
A ``timeout`` changes nothing, except in ``barrier``: that of the group counts.

From torch 2.14 on a program may have torch call hooks before and after each operation of a group
(``register_pre_hook``). torch's own groups call theirs in C++, which calls of a group in Python do not pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from inspect import BoundArguments, Parameter, Signature, signature
from typing import Any

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


DEFAULTS = Options()

Method = Callable[..., Any]


def operation(
    name: str, inputs: int | None = None, outputs: int | None = None, simple: str | None = None
) -> Callable[[Method], Method]:
    """Makes a group's method an operation: torch's ``name`` of it, and which arguments are its inputs and outputs.

    The method returns a Work, several of them, or None if it is complete. torch gets what the group's ``handle`` makes
    of that. ``simple`` has the parameters of torch's simple form, if there is one.
    """

    kind, defaults = Parameter.POSITIONAL_OR_KEYWORD, {"root": 0, "op": ReduceOp.SUM, "timeout": None}
    words = [] if simple is None else [*simple.split(), "timeout"]
    form = Signature([Parameter(word, kind, default=defaults.get(word, Parameter.empty)) for word in words])

    def made(method: Method) -> Method:
        names = {*signature(method).parameters}

        @wraps(method)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            as_torch = (given and type(given[-1]) in OPTIONS) or (named and named.keys() <= names)
            if simple is not None and not as_torch:
                given, named = _with_options(form.bind(*given, **named)), {}
            if self.hooks is not None:
                return _between_hooks(self, method, given, named, name, inputs, outputs)
            return self.handle(method(self, *given, **named))

        call.is_operation = True  # type: ignore[attr-defined]
        return call

    return made


def _with_options(simple: BoundArguments) -> tuple[Any, ...]:
    """The arguments of a simple form as torch itself passes them. Tensors may be in lists already."""
    simple.apply_defaults()
    *tensors, timeout = ((name, value) for name, value in simple.arguments.items() if name not in ("root", "op"))
    root, op = simple.arguments.get("root", 0), simple.arguments.get("op", ReduceOp.SUM)
    options = Options(op, root, bool(tensors) or timeout[1] is None, timeout[1] or timedelta(0))
    are_single = any(isinstance(value, torch.Tensor) for _, value in tensors)
    return *([value] if are_single else value for _, value in tensors), options


# -- hooks ------------------------------------------------------------------------------------------------------------

_ROOTED = ("REDUCE", "BROADCAST", "GATHER", "SCATTER")

Hook = Callable[[Any], object]


class Hooks:
    """The hooks of a group, by their numbers."""

    def __init__(self) -> None:
        self.before: dict[int, Hook] = {}
        self.after: dict[int, Hook] = {}
        self.operations = 0
        """How many they have seen."""


class CallHooks:
    """Part of a group: hooks around its operations."""

    hooks: Hooks | None = None
    """None until there is one: then calls cost nothing more."""

    if PreHookArgs is not None:

        def register_pre_hook(self, hook_id: int, hook: Hook) -> None:
            """Call ``hook`` with torch's PreHookArgs before each operation of the group."""
            self._made().before[hook_id] = hook

        def register_post_hook(self, hook_id: int, hook: Hook) -> None:
            """Call ``hook`` with torch's PostHookArgs after each operation has begun."""
            self._made().after[hook_id] = hook

        def unregister_pre_hook(self, hook_id: int) -> None:
            """Call this hook no more."""
            self._made().before.pop(hook_id, None)

        def unregister_post_hook(self, hook_id: int) -> None:
            """Call this hook no more."""
            self._made().after.pop(hook_id, None)

    def _made(self) -> Hooks:
        self.hooks = self.hooks or Hooks()
        return self.hooks


def _between_hooks(
    group: Any,
    method: Method,
    given: tuple[Any, ...],
    named: dict[str, Any],
    name: str,
    inputs: int | None,
    outputs: int | None,
) -> Any:
    """Call the method with the group's hooks before and after it."""
    complete = signature(method).bind(group, *given, **named)
    complete.apply_defaults()
    arguments = complete.args[1:]
    options, hooks = arguments[-1], group.hooks
    about, done = PreHookArgs(), PostHookArgs()
    about.name = done.name = _named(name)
    about.op_id = done.op_id = hooks.operations
    about.async_op = done.async_op = bool(getattr(options, "asyncOp", False))
    hooks.operations += 1
    for index, field in ((inputs, "input_tensors"), (outputs, "output_tensors")):
        if index is not None:
            setattr(about, field, _flat(arguments[index]))
    if name in _ROOTED:
        about.root = getattr(options, "rootRank", -1)
    for hook in [*hooks.before.values()]:
        hook(about)
    done.work = group.handle(method(group, *arguments))
    for hook in [*hooks.after.values()]:
        hook(done)
    return done.work


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
