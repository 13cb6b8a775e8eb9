"""What a message holds, as a part of its tag, so that a receive of another dtype is noticed.

MPI moves bytes and compares no types. Where ranks agree on calls (``check="full"``), the tag that MPI sees is made of
the program's tag and the kind of the message: its dtype, or an object. While a receive waits, it looks for messages
with its tag and another kind."""

from __future__ import annotations

from collections.abc import Callable

from mpicoll.errors import MessageError
from mpicoll.fabrics.fabric import Envelope

OBJECT = "object"
KINDS = 32
_NAMES = (
    OBJECT, "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "longdouble", "complex64", "complex128", "clongdouble",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
_CODES = {name: code for code, name in enumerate(_NAMES)}


def on_wire(tag: int, kind: str) -> int:
    """The tag that MPI sees. All dtypes without a name here are one kind."""
    return tag * KINDS + _CODES.get(kind, KINDS - 1)


def of_program(tag: int) -> int:
    """The tag that the program has given."""
    return tag // KINDS


def kind_of(tag: int) -> str:
    """What a message with this tag of MPI's holds."""
    code = tag % KINDS
    return _NAMES[code] if code < len(_NAMES) else "another dtype"


def is_kind(tag: int, kind: str) -> bool:
    """Whether a message with this tag of MPI's is of this kind."""
    return tag % KINDS == on_wire(0, kind)


def look_for_others(
    operation: str, kind: str, source: int | None, tag: int, probe: Callable[[int | None, int], Envelope | None]
) -> None:
    """Raise MessageError if a message from ``source`` with the program's ``tag`` has come that is of another kind."""
    for each in range(tag * KINDS, (tag + 1) * KINDS):
        if not is_kind(each, kind) and (found := probe(source, each)) is not None:
            expected = f"expected {kind} from rank {found.source} (tag {tag})"
            raise MessageError(f"{operation}: {expected}; it has sent {kind_of(each)}, which waits to be received")
