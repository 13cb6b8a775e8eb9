"""Dtypes and reduction operations: which pairs are legal, and whether the MPI library computes them.

This module knows MPI's datatypes and operations only by name: the name is the attribute of ``mpi4py.MPI`` that holds
them. So nothing here needs an MPI library."""

from __future__ import annotations

import sys
from cmath import isinf
from dataclasses import dataclass, field
from functools import cache, lru_cache
from numbers import Complex, Number, Real
from typing import Any, Literal

from mpicoll.errors import ArgumentError, DtypeError, shown_argument


@dataclass(frozen=True, slots=True)
class Dtype:
    """An element type: ``name`` as in NumPy and torch, and ``itemsize`` in bytes.

    ``kind`` is ``b`` bool, ``i`` signed, ``u`` unsigned, ``f`` float, ``c`` complex, or ``V`` opaque: such elements can
    be moved, but not reduced. ``mpi`` names the MPI datatype with which MPI reduces such elements; it is None where MPI
    libraries have none that can be trusted. ``storage`` names the NumPy dtype that holds the elements' bits where NumPy
    does not have the dtype itself."""

    name: str
    itemsize: int
    kind: str
    mpi: str | None
    storage: str | None = None

    @property
    def short_float(self) -> bool:
        """Whether it is a float so short that its values are combined in float32, and then rounded."""
        return self.kind == "f" and self.itemsize < 4

    def __str__(self) -> str:
        return self.name


DTYPES: dict[str, Dtype] = {
    d.name: d
    for d in (
        Dtype("bool", 1, "b", "C_BOOL"),
        Dtype("int8", 1, "i", "INT8_T"),
        Dtype("int16", 2, "i", "INT16_T"),
        Dtype("int32", 4, "i", "INT32_T"),
        Dtype("int64", 8, "i", "INT64_T"),
        Dtype("uint8", 1, "u", "UINT8_T"),
        Dtype("uint16", 2, "u", "UINT16_T"),
        Dtype("uint32", 4, "u", "UINT32_T"),
        Dtype("uint64", 8, "u", "UINT64_T"),
        Dtype("float16", 2, "f", None),
        Dtype("bfloat16", 2, "f", None, storage="uint16"),
        Dtype("float32", 4, "f", "FLOAT"),
        Dtype("float64", 8, "f", "DOUBLE"),
        Dtype("complex64", 8, "c", "C_FLOAT_COMPLEX"),
        Dtype("complex128", 16, "c", "C_DOUBLE_COMPLEX"),
    )
}

OpName = Literal["sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor", "lxor"]
"""The names that ``op=`` takes, for editors that complete them."""

OPS: dict[str, tuple[str, str]] = {
    "sum": ("biufc", "SUM"),
    "prod": ("biufc", "PROD"),
    "min": ("biuf", "MIN"),
    "max": ("biuf", "MAX"),
    "avg": ("iufc", "SUM"),
    "premul_sum": ("fc", "SUM"),
    "band": ("biu", "BAND"),
    "bor": ("biu", "BOR"),
    "bxor": ("biu", "BXOR"),
    "land": ("biu", "LAND"),
    "lor": ("biu", "LOR"),
    "lxor": ("biu", "LXOR"),
}
"""By operation, the kinds of dtypes that it is defined on, and MPI's name of how it combines two values."""

# On bools every operation is a logical one: a sum is true where any is, a product where all are.
_OF_BOOLS = {
    "SUM": "LOR", "MAX": "LOR", "BOR": "LOR", "LOR": "LOR",
    "PROD": "LAND", "MIN": "LAND", "BAND": "LAND", "LAND": "LAND",
    "BXOR": "LXOR", "LXOR": "LXOR",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Op:
    """A reduction operation by name. A ``premul_sum`` also has the factor by which each input is multiplied."""

    name: str
    factor: float | complex | None = None
    """It may be given as any kind of number. It is kept as the nearest float or complex."""
    shown: str = field(init=False, repr=False, default="")
    """The factor as text. It makes operations with the factors 0.0 and -0.0 unequal, though these numbers are equal."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in OPS:
            raise ArgumentError("Op", "name", "one of " + ", ".join(OPS), repr(self.name))
        if self.name == "premul_sum":
            object.__setattr__(self, "factor", _number(self.factor))
        elif self.factor is not None:
            raise ArgumentError("Op", "factor", "a number with premul_sum, None otherwise", repr(self.factor))
        object.__setattr__(self, "shown", repr(self.factor))

    @staticmethod
    def premul_sum(factor: float | complex) -> Op:
        """The sum over ranks of ``factor * x``. Each rank may have a factor of its own."""
        return Op("premul_sum", factor)

    def __str__(self) -> str:
        return self.name if self.factor is None else f"{self.name}({self.factor})"


def _number(given: Any) -> float | complex:
    """A factor as a float or, where it is complex, a complex number."""
    if not isinstance(given, Number) or isinstance(given, bool):
        raise ArgumentError("Op", "factor", "a number with premul_sum, None otherwise", repr(given))
    exact: Any = given
    try:
        number = complex(exact) if isinstance(exact, Complex) and not isinstance(exact, Real) else float(exact)
        if number == exact or not isinf(number):  # some kinds of numbers become infinite without an error
            return number
    except (OverflowError, ValueError):
        pass  # it is too large, as the error below says
    raise ArgumentError("Op", "factor", "a number within the range of a float", f"a larger {type(given).__name__}")


@cache
def _of_mpi4py() -> list[tuple[Any, str]]:
    """mpi4py's predefined operations and their names. It is a list of pairs because operations cannot be hashed."""
    mpi = sys.modules["mpi4py.MPI"]
    return [(op, name) for name, op in vars(mpi).items() if name.isupper() and isinstance(op, mpi.Op)]


def name_of(op: object, operation: str) -> str:
    """The name of an operation that is given as a name or as one of mpi4py's, such as MPI.SUM. Raises ArgumentError
    for anything else."""
    names = [name for name in OPS if name != "premul_sum"]
    if isinstance(op, str) and op in names:
        return op
    given = shown_argument(op)
    if isinstance(op, str) and op.removeprefix("MPI.").lower() in ("minloc", "maxloc"):
        given += _PAIRS
    mpi = sys.modules.get("mpi4py.MPI")  # who has an operation of mpi4py's has imported mpi4py
    if mpi is not None and isinstance(op, mpi.Op):
        mpi_name = next((name for known, name in _of_mpi4py() if known == op), None)
        if mpi_name is not None and mpi_name.lower() in OPS:
            return mpi_name.lower()
        given = f"MPI.{mpi_name}" if mpi_name else "an MPI.Op of the program's own"
        given += _PAIRS * (mpi_name in ("MINLOC", "MAXLOC"))
    expected = f"one of {', '.join(names)}, mpi4py's name of one of these (MPI.SUM), or Op.premul_sum(factor)"
    raise ArgumentError(operation, "op", expected, given)


_PAIRS = ", which takes pairs of a value and a place: keep mpi4py's call"


@dataclass(frozen=True, slots=True)
class Reduction:
    """How ``op`` is computed on ``dtype``.

    ``combine`` is MPI's name of the operation on two values. ``mpi`` says whether MPI libraries compute it rightly;
    where they do not, mpicoll computes it. An average is a sum that is divided by the number of ranks at the end."""

    op: Op
    dtype: Dtype
    combine: str
    mpi: bool

    @property
    def rounds(self) -> bool:
        """Whether combining two values rounds the result of float32 to a shorter float: then an algorithm that combines
        fewer times is more exact."""
        return self.dtype.short_float and self.combine in ("SUM", "PROD")

    @property
    def averages(self) -> bool:
        return self.op.name == "avg"


@lru_cache(maxsize=1024)  # bounded, because each factor makes another operation
def _reduction(op: Op, dtype: Dtype) -> Reduction | None:
    kinds, combine = OPS[op.name]
    if dtype.kind not in kinds:
        return None
    if isinstance(op.factor, complex) and dtype.kind != "c":
        return None
    if dtype.kind == "b":
        combine = _OF_BOOLS[combine]
    # MPI libraries lose NaNs in MIN and MAX, or different ranks get different results. Sums of 8- and 16-bit integers
    # wrap around in NumPy and torch, but Open MPI 5.0.11 saturates them, except for the last few elements of a vector.
    loses_nan = dtype.kind == "f" and combine in ("MIN", "MAX")
    saturates = dtype.kind in "iu" and dtype.itemsize < 4 and combine == "SUM"
    return Reduction(op, dtype, combine, mpi=dtype.mpi is not None and not loses_nan and not saturates)


def reduction(op: object, dtype: Dtype, operation: str) -> Reduction:
    """The reduction of ``dtype`` by ``op``, which is an :class:`Op` or what ``name_of`` takes. Raises DtypeError if the
    operation is not defined on the dtype."""
    named = op if isinstance(op, Op) else Op(name_of(op, operation))
    found = _reduction(named, dtype)
    if found is None:
        kinds = "c" if isinstance(named.factor, complex) else OPS[named.name][0]
        legal = ", ".join(d.name for d in DTYPES.values() if d.kind in kinds)
        raise DtypeError(operation, "op", f"a dtype on which {named} is defined ({legal})", f"{named} of {dtype}")
    return found
