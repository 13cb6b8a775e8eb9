"""torch's simple forms of a group's methods, as ``group.broadcast(tensor, 0)``.

torch itself passes lists and an object of options: ``group.broadcast([tensor], options)``. To a program it offers both.
In the functions here the parameters of the simple forms have torch's names. Each returns what the other form takes.
A ``timeout`` changes nothing, except in ``barrier``: that of the group counts.
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

from mpicoll.torch.functions.reduce_op import GivenOp
from mpicoll.torch.private import OPTIONS


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


def also_simple(method: M) -> M:
    """The group's method, which takes the simple form too."""
    simple, names = _FORMS[method.__name__], set(signature(method).parameters)

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


def bound(method: Callable[..., Any], given: Form, named: dict[str, Any]) -> Form:
    """All arguments of a call of a group's method, in the form with lists and options."""
    if hasattr(method, "listed"):
        given, named = method.listed(given, named)
    arguments = signature(method).bind(*given, **named)
    arguments.apply_defaults()
    return arguments.args


def _broadcast(tensor: Any, root: Any = 0, timeout: timedelta | None = None) -> Form:
    return _listed(tensor), Options(rootRank=root)


def _allreduce(tensor: Any, op: GivenOp = ReduceOp.SUM, timeout: timedelta | None = None) -> Form:
    return _listed(tensor), Options(op)


def _reduce(tensor: Any, root: Any = 0, op: GivenOp = ReduceOp.SUM, timeout: timedelta | None = None) -> Form:
    return _listed(tensor), Options(op, root)


def _allgather(output_tensors: Any, input_tensor: Any, timeout: timedelta | None = None) -> Form:
    return _listed(output_tensors, input_tensor), _listed(input_tensor), DEFAULTS


def _gather(output_tensors: Any, input_tensor: Any, root: Any = 0, timeout: timedelta | None = None) -> Form:
    return _listed(output_tensors, input_tensor), _listed(input_tensor), Options(rootRank=root)


def _scatter(output_tensor: Any, input_tensors: Any, root: Any = 0, timeout: timedelta | None = None) -> Form:
    return _listed(output_tensor), _listed(input_tensors, output_tensor), Options(rootRank=root)


def _reduce_scatter(output: Any, input: Any, op: GivenOp = ReduceOp.SUM, timeout: timedelta | None = None) -> Form:
    return _listed(output), _listed(input, output), Options(op)


def _all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int],
    input_split_sizes: Sequence[int],
    timeout: timedelta | None = None,
) -> Form:
    return output, input, output_split_sizes, input_split_sizes, DEFAULTS


def _barrier(timeout: timedelta | None = None) -> Form:
    return (DEFAULTS if timeout is None else Options(asyncOp=False, timeout=timeout),)


_FORMS: dict[str, Callable[..., Form]] = {
    form.__name__.removeprefix("_"): form
    for form in (
        _broadcast, _allreduce, _reduce, _allgather, _gather, _scatter, _reduce_scatter, _all_to_all_single, _barrier,
    )
}  # fmt: skip


def _listed(given: Any, beside: Any = None) -> Any:
    """``given`` in a list, if it or what stands ``beside`` it is a tensor of the simple form."""
    return [given] if isinstance(given, torch.Tensor) or isinstance(beside, torch.Tensor) else given
