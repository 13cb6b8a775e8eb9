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
from mpicoll.torch.handles import FINISHED
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
        form_of_torch = signature(method)
        names = form_of_torch.parameters.keys()

        @wraps(method)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            if simple is not None:
                as_torch = (given and type(given[-1]) in OPTIONS) or (named and named.keys() <= names)
                if not as_torch:
                    try:
                        given, named = _with_options(form.bind(*given, **named)), {}
                    except TypeError as e:
                        raise TypeError(f"{method.__name__}: {e}") from None
            if self.hooks is None:
                work = method(self, *given, **named)
                if work is None:
                    self.calls += 1
                    return FINISHED
                return self.handle(work)
            complete = form_of_torch.bind(self, *given, **named)
            complete.apply_defaults()
            all_given, opts = complete.args[1:], complete.arguments["opts"]
            sides = (None if at is None else all_given[at] for at in (inputs, outputs))
            return self.hooks.around(name, *sides, opts, lambda: self.handle(method(self, *all_given)))

        call.is_operation = True  # type: ignore[attr-defined]
        return call

    return made


def _with_options(simple: BoundArguments) -> tuple[Any, ...]:
    """The arguments of a simple form as torch itself passes them. Tensors may be in lists already."""
    simple.apply_defaults()
    tensors = dict(simple.arguments)
    timeout, root, op = tensors.pop("timeout"), tensors.pop("root", 0), tensors.pop("op", ReduceOp.SUM)
    waits = timeout is not None and not tensors  # a barrier, of which alone the time is limited
    are_single = any(isinstance(value, torch.Tensor) for value in tensors.values())
    listed = ([value] if are_single else value for value in tensors.values())
    return *listed, Options(op, root, not waits, timeout or timedelta(0))


# -- hooks ------------------------------------------------------------------------------------------------------------

_ROOTED = ("REDUCE", "BROADCAST", "GATHER", "SCATTER")

Hook = Callable[[Any], object]


class Hooks:
    """The hooks of a group, by their numbers."""

    def __init__(self) -> None:
        self.before: dict[int, Hook] = {}
        self.after: dict[int, Hook] = {}
        self._seen = 0

    def around(self, name: str, inputs: Any, outputs: Any, opts: Any, begin: Callable[[], Any]) -> Any:
        """Begin an operation with the hooks before and after it. Inputs and outputs may be tensors or lists."""
        about, done = PreHookArgs(), PostHookArgs()
        about.name = done.name = _named(name)
        about.op_id = done.op_id = self._seen
        about.async_op = done.async_op = bool(getattr(opts, "asyncOp", False))
        self._seen += 1
        about.input_tensors, about.output_tensors = _flat(inputs), _flat(outputs)
        if name in _ROOTED:
            about.root = getattr(opts, "rootRank", -1)
        for hook in [*self.before.values()]:
            hook(about)
        done.work = begin()
        for hook in [*self.after.values()]:
            hook(done)
        return done.work


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


def _named(name: str) -> Any:
    """torch's name of an operation. torch 2.14 has one for all forms of it, such as ALLGATHER for ALLGATHER_BASE."""
    while "_" in name and not hasattr(HookOpName, name):
        name = name.rpartition("_")[0]
    return getattr(HookOpName, name)


def _flat(given: Any) -> list[torch.Tensor]:
    """The tensors of an argument: one, none, a list of them, or a list of lists."""
    if isinstance(given, torch.Tensor):
        return [given]
    return [tensor for each in given or () for tensor in _flat(each)]
