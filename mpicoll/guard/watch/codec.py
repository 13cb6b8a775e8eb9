"""Messages of the protocol as lines of JSON: an object is the list of its class's name and its fields."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from mpicoll.guard.watch.protocol import MESSAGES

__all__ = ["line_of", "message_in", "read"]


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
    if isinstance(kind, type) and is_dataclass(kind):
        types = _types(kind)
        if isinstance(value, list) and value[:1] == [kind.__name__] and len(value) == len(types) + 1:
            return kind(*map(read, value[1:], types))
    elif get_origin(kind) is list:
        if isinstance(value, list):
            return [read(each, get_args(kind)[0]) for each in value]
    elif get_origin(kind) is tuple:
        if isinstance(value, list) and len(value) == len(get_args(kind)):
            return tuple(map(read, value, get_args(kind)))
    elif get_origin(kind) is dict:
        if isinstance(value, dict):
            return {key: read(each, get_args(kind)[1]) for key, each in value.items()}
    elif get_origin(kind) in (Union, UnionType):
        return _one_of(value, get_args(kind))
    elif kind is Any or type(value) is kind or (value is None and kind is NoneType):
        return value
    elif kind is float and type(value) is int:
        return float(value)
    raise ValueError(f"{str(value)[:40]!r} is no {getattr(kind, '__name__', kind)}")


def _one_of(value: Any, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        try:
            return read(value, kind)
        except ValueError:
            continue
    raise ValueError(f"{str(value)[:40]!r} is none of {kinds}")


@cache
def _types(kind: Any) -> list[Any]:
    """Of the fields of a class."""
    hints = get_type_hints(kind)
    return [hints[field.name] for field in fields(kind)]


def _plain(message: Any) -> list[Any]:
    return [type(message).__name__, *(getattr(message, field.name) for field in fields(message))]
