"""Local reductions, by the kernel where there is one. Else, all of the library's arithmetic happens in this module.

Values are NumPy arrays of a dtype's *storage* type. That is the dtype itself, except for bfloat16, which NumPy does not
have: its bits are held as uint16. float16 and bfloat16 values are combined in float32, and the result is rounded once,
to nearest even. NaN propagates. Of short floats, -0 is less than 0, as IEEE 754-2019's maximum and minimum have it:
NumPy and torch return one or the other, which even depends on the index in the vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import DTYPES, Dtype, Op, Reduction
from mpicoll.arrays.libraries import Described
from mpicoll.node.loaded import kernel

Array = NDArray[Any]

COMBINE: dict[str, np.ufunc] = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
}
"""NumPy's function of two values for each of MPI's operations. The order is that of the kernel's list."""

_SIGNS = {"MAX": np.bitwise_and, "MIN": np.bitwise_or}
"""How the sign bits of values give that of their maximum or minimum, where it is zero."""

CHUNK = 1 << 16  # elements combined at a time: two float32 chunks stay in the second-level cache


def storage(dtype: Dtype) -> np.dtype[Any]:
    """The NumPy dtype that holds ``dtype``'s bits."""
    if dtype.kind == "V":
        return np.dtype((np.void, dtype.itemsize))
    return np.dtype(dtype.storage or dtype.name)


def values(buffer: Buffer) -> Array:
    """A plain buffer's memory as a 1-D array of its dtype's storage. The array does not keep the memory alive."""
    return described(buffer.address, buffer.count, storage(buffer.dtype))


def described(address: int, count: int, dtype: np.dtype[Any]) -> Array:
    """An array of the elements at this address. Nothing is read: it may also describe memory of a device."""
    return np.asarray(Described(address, (count,), dtype.str)) if count else np.empty(0, dtype)


def widened(values: Array, dtype: Dtype) -> Array:
    """Short floats as float32, in new memory. Other values are returned as they are."""
    if not dtype.short_float:
        return values
    return widen(values, np.empty(values.size, np.float32), dtype)


def widen(values: Array, out: Array, dtype: Dtype) -> Array:
    """``out`` = values of the short float ``dtype``, as float32."""
    if kernel is not None:
        kernel.widen(_DTYPES[dtype.name], _address(values), _address(out), values.size)
    elif dtype.name == "bfloat16":
        np.left_shift(values.astype(np.uint32), 16, out=out.view(np.uint32))
    else:
        np.copyto(out, values)
    return out


def narrow(values: Array, out: Array, dtype: Dtype) -> None:
    """``out`` = float32 values, rounded to the short float ``dtype``. All NaNs in it get the same bits: ranks must get
    equal ones."""
    if kernel is not None:
        kernel.narrow(_DTYPES[dtype.name], _address(values), _address(out), values.size)
    elif dtype.name == "bfloat16":
        bits = values.view(np.uint32)
        # To nearest, ties to even: add just under half of the last bit that is kept, or exactly half where that bit is
        # 1. Then cut the lower bits off.
        np.copyto(out, (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16, casting="unsafe")
        out[np.isnan(values)] = 0x7FC0
    else:
        with np.errstate(all="ignore"):
            np.copyto(out, values, casting="same_kind")
        out.view(np.uint16)[np.isnan(values)] = 0x7E00


def numbers(reduction: Reduction) -> tuple[int, int, bool]:
    """A reduction as the kernel knows it: the numbers of its dtype and operation, and whether it averages."""
    return _DTYPES[reduction.dtype.name], _OPS[reduction.combine], reduction.averages


def reduce_rows(
    rows: Sequence[Array] | Array, out: Array, reduction: Reduction, factors: Sequence[complex] | None = None
) -> None:
    """``out`` = the rows combined in their order. There is one row per rank; an average is divided by their number.

    ``rows`` and ``out`` are 1-D, without gaps, of equal length and of the dtype's storage. ``out`` may be one of the
    rows. ``factors`` has one factor for each row of a ``premul_sum``."""
    if kernel is None:
        reduce_rows_in_numpy(rows, out, reduction, factors)
    else:
        kernel.reduce_rows(*numbers(reduction), factors, tuple(map(_address, rows)), _address(out), out.size)


@np.errstate(all="ignore")  # infinities and NaNs are results, as in MPI and torch
def reduce_rows_in_numpy(
    rows: Sequence[Array] | Array, out: Array, reduction: Reduction, factors: Sequence[complex] | None = None
) -> None:
    """The same where there is no kernel. This is the definition of what the kernel does."""
    dtype, combine = reduction.dtype, COMBINE[reduction.combine]
    signs = _SIGNS.get(reduction.combine) if dtype.short_float else None
    for piece in _chunks(out):
        terms = [widened(row[piece], dtype) for row in rows]
        if factors is not None:
            terms = [np.multiply(term, factor) for term, factor in zip(terms, factors, strict=True)]
        total = reduce(combine, terms)
        if signs is not None:
            zeros = np.where(reduce(signs, map(np.signbit, terms)), np.float32(-0.0), np.float32(0.0))
            total = np.where(total == 0, zeros, total)
        if reduction.averages:
            total = np.array(total)
            _divide(total, len(rows))
        if dtype.short_float:
            narrow(total, out[piece], dtype)
        else:
            np.copyto(out[piece], total, casting="same_kind")


def _chunks(values: Array) -> Iterator[slice]:
    for start in range(0, values.size, CHUNK):
        yield slice(start, start + CHUNK)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def combination(reduction: Reduction, a: Array, b: Array, out: Array) -> Callable[[], object]:
    """A function that computes ``out`` = a op b. ``out`` may be ``a`` or ``b``. It rounds short floats each time. Its
    caller divides an average at the end."""
    if kernel is None:
        return partial(reduce_rows_in_numpy, (a, b), out, replace(reduction, op=Op("sum")))
    dtype, op, _ = numbers(reduction)
    run = partial(kernel.reduce_rows, dtype, op, False, None, (_address(a), _address(b)), _address(out), out.size)
    run.__dict__["arrays"] = a, b, out  # it knows their addresses
    return run


@np.errstate(all="ignore")
def divide(values: Array, divisor: int, dtype: Dtype) -> None:
    """Divide values in place. Short floats are divided in float32; integers are divided toward zero."""
    if not dtype.short_float:
        _divide(values, divisor)
        return
    for piece in _chunks(values):
        wide = widened(values[piece], dtype)
        _divide(wide, divisor)
        narrow(wide, values[piece], dtype)


@np.errstate(all="ignore")
def scale(values: Array, factor: complex, out: Array, dtype: Dtype) -> None:
    """``out`` = ``factor * values``. Short floats are multiplied in float32."""
    if not dtype.short_float:
        np.multiply(values, factor, out=out)
        return
    for piece in _chunks(values):
        wide = widened(values[piece], dtype)
        narrow(np.multiply(wide, factor, out=wide), out[piece], dtype)


def _divide(values: Array, divisor: int) -> None:
    kind: Any = values.dtype.type
    if values.dtype.kind not in "iu":
        parts = values.view(values.real.dtype)  # complex by complex division would round more than once
        np.divide(parts, divisor, out=parts)
    elif divisor > np.iinfo(kind).max:  # a short integer may not hold the number of ranks
        wide = values.astype(values.dtype.kind + "8")
        _divide(wide, divisor)
        values[...] = wide
    else:  # toward zero, as C and NCCL do
        for piece in _chunks(values):
            part = values[piece]
            if values.dtype.kind == "i":  # NumPy rounds down: this makes negative quotients round up, to zero
                part += (part >> (8 * part.itemsize - 1)) & kind(divisor - 1)
            np.floor_divide(part, kind(divisor), out=part)


_DTYPES = {} if kernel is None else {name: kernel.dtype_named(name) for name in DTYPES}
_OPS = {name: number for number, name in enumerate(COMBINE)}
