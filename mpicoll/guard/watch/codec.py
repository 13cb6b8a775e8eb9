"""Messages of the protocol as lines of JSON: an object is the list of its class's name and its fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from mpicoll.guard.watch.protocol import MESSAGES, Message

Reader = Callable[[Any], Any]
"""Gives a value of JSON as one of a type, and raises ValueError if it is none."""


def line_of(message: object) -> bytes:
    """The message as a line."""
    return json.dumps(message, default=_plain).encode() + b"\n"


def message_in(line: bytes) -> object:
    """The message of a line. Raises ValueError if there is none."""
    value = json.loads(line) if line.endswith(b"\n") else None
    kind = MESSAGES.get(value[0]) if isinstance(value, list) and value and isinstance(value[0], str) else None
    if kind is None:
        raise ValueError("not a message")
    return read(value, kind)


def read(value: Any, kind: Any) -> Any:
    """A value of JSON as one of this type. Raises ValueError if it is none."""
    return _reader(kind)(value)


@cache  # the type is looked at once: a trace has a million values
def _reader(kind: Any) -> Reader:
    if kind is Any:
        return lambda value: value
    if isinstance(kind, type) and issubclass(kind, Message):
        return _of_class(kind)
    parts = [_reader(part) for part in get_args(kind)]
    origin = get_origin(kind)
    if origin is list:
        return lambda value: [*map(parts[0], _checked(value, list))]
    if origin is tuple:
        return lambda value: tuple(_each(parts, _checked(value, list)))
    if origin is dict:
        return lambda value: {key: parts[1](each) for key, each in _checked(value, dict).items()}
    if origin in (Union, UnionType):
        return lambda value: _first(parts, value)
    return lambda value: _checked(value, kind, int if kind is float else kind)


def _of_class(kind: type[Message]) -> Reader:
    hints = get_type_hints(kind)
    parts = [_reader(hints[name]) for name in kind.fields]

    def of(value: Any) -> Any:
        if _checked(value, list)[:1] != [kind.__name__]:
            raise ValueError(f"not a {kind.__name__}")
        return kind(*_each(parts, value[1:]))

    return of


def _checked(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise ValueError(f"not a {kinds[0].__name__}")
    return value


def _each(parts: Sequence[Reader], values: Sequence[Any]) -> list[Any]:
    if len(parts) != len(values):
        raise ValueError(f"not {len(parts)} values")
    return [part(value) for part, value in zip(parts, values, strict=True)]


def _first(parts: Sequence[Reader], value: Any) -> Any:
    for part in parts:
        with suppress(ValueError):
            return part(value)
    raise ValueError("none of the types that are possible here")


def _plain(message: Message) -> list[Any]:
    return [type(message).__name__, *(getattr(message, name) for name in message.fields)]
