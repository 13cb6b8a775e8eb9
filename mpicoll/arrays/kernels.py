"""Local reductions: the only place where arithmetic happens.

Values are NumPy arrays of a dtype's *storage* type, which is the dtype itself but for bfloat16, held as uint16.
float16 and bfloat16 are combined in float32 and rounded once, to nearest even, at the end. NaN propagates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.arrays.buffers import Buffer, loaded_torch
from mpicoll.arrays.dtypes import DTYPES, Dtype, Op, Reduction

__all__ = [
    "COMBINE",
    "combination",
    "divide",
    "in_float",
    "narrow",
    "quietly",
    "reduce_rows",
    "scale",
    "storage",
    "values",
    "widened",
]

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
"""The function of two values that each of MPI's operations is."""

_IN_TORCH = {"SUM": "add", "PROD": "mul", "MIN": "minimum", "MAX": "maximum"}

CHUNK = 1 << 16
"""Elements combined at a time: two float32 chunks stay in the second-level cache."""


def storage(dtype: Dtype) -> np.dtype[Any]:
    """The NumPy dtype that holds ``dtype``'s bits."""
    if dtype.kind == "V":
        return np.dtype((np.void, dtype.itemsize))
    return np.dtype(np.uint16 if dtype.name == "bfloat16" else dtype.name)


class _At:
    """Memory at an address, as NumPy takes it."""

    def __init__(self, address: int, count: int, dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": (count,), "typestr": dtype.str}


def values(buffer: Buffer) -> Array:
    """A plain buffer's memory as a 1-D array of its dtype's storage. Whoever uses it keeps the memory."""
    dtype = storage(buffer.dtype)
    return np.asarray(_At(buffer.address, buffer.count, dtype)) if buffer.count else np.empty(0, dtype)


def in_float(reduction: Reduction) -> Reduction:
    """The same operation on float32."""
    return replace(reduction, dtype=DTYPES["float32"])


def widened(values: Array, dtype: Dtype) -> Array:
    """16-bit values as float32, in new memory; any others as they are."""
    if not _is_half(dtype):
        return values
    return _codec(dtype)[0](values, np.empty(values.size, np.float32))


def narrow(values: Array, out: Array, dtype: Dtype) -> None:
    """``out`` = float32 values, rounded to 16 bits."""
    _codec(dtype)[1](values, out)


def quietly(run: Callable[[], object]) -> Callable[[], object]:
    """``run`` with floating-point errors ignored: infinities and NaNs are results, as in MPI and torch.

    It may not be called by itself, nor by two threads at once."""
    if int(np.__version__.partition(".")[0]) < 2:
        return np.errstate(all="ignore")(run)
    context = copy_context()  # where NumPy keeps it; entering one costs a thirtieth of entering errstate
    context.run(partial(np.seterr, all="ignore"))
    return partial(context.run, run)


@np.errstate(all="ignore")  # infinities and NaNs are results, as in MPI and torch
def reduce_rows(
    rows: Sequence[Array] | Array, out: Array, reduction: Reduction, factors: Sequence[float] | None = None
) -> None:
    """``out`` = the rows combined in their order, one row a rank; an average is divided by the number of rows.

    ``rows`` and ``out`` are 1-D, of equal length and of the dtype's storage; ``out`` may be one of the rows.
    ``factors``, one a row, multiply the rows of a ``premul_sum``.
    """
    at_once = loaded_torch() is not None or not _is_half(reduction.dtype)
    if len(rows) == 2 and at_once and factors is None and not reduction.averages:
        combination(reduction, rows[0], rows[1], out)()
        return
    combine = COMBINE[reduction.combine]
    decode, encode = _codec(reduction.dtype)
    wide = np.dtype(np.float32) if _is_half(reduction.dtype) else out.dtype
    size = min(CHUNK, out.size)
    total, term = np.empty(size, wide), np.empty(size, wide)

    def value(i: int, piece: slice, into: Array) -> Array:
        found = decode(rows[i][piece], into)
        return found if factors is None else np.multiply(found, factors[i], out=into)

    for start in range(0, out.size, CHUNK):
        piece = slice(start, min(start + CHUNK, out.size))
        t, v = total[: piece.stop - start], term[: piece.stop - start]
        result = value(0, piece, t)
        for i in range(1, len(rows)):
            result = combine(result, value(i, piece, v), out=t)
        if reduction.averages:
            np.copyto(t, result)
            _divide(t, len(rows))
            result = t
        encode(result, out[piece])


def combination(reduction: Reduction, a: Array, b: Array, out: Array) -> Callable[[], object]:
    """What does ``out`` = a op b, bound; ``out`` may be ``a`` or ``b``. 16-bit values are rounded each time.

    The caller ignores floating-point errors.
    """
    if not _is_half(reduction.dtype):
        return partial(COMBINE[reduction.combine], a, b, out=out)
    torch = loaded_torch()
    if torch is None:
        return partial(reduce_rows, (a, b), out, replace(reduction, op=Op("sum")))  # an average is divided at the end
    of_two = getattr(torch, _IN_TORCH[reduction.combine])
    calls = []
    with torch.inference_mode(False):  # tensors of that mode could not be written to outside it, where this may run
        for start in range(0, out.size, CHUNK):
            x, y, z = (_as_torch(torch, reduction.dtype, each[start : start + CHUNK]) for each in (a, b, out))
            calls.append(partial(of_two, x, y, out=z))
    unify = _one_nan(out, reduction.dtype)

    def run() -> None:
        for call in calls:
            call()
        unify()

    return run


def divide(values: Array, divisor: int, dtype: Dtype) -> None:
    """Divide values in place: 16-bit ones in float32, integers toward zero."""
    _rewrite(values, values, dtype, lambda x: _divide(x, divisor))


def scale(values: Array, factor: float | complex, out: Array, dtype: Dtype) -> None:
    """``out`` = ``factor * values``; 16-bit ones are multiplied in float32."""
    _rewrite(values, out, dtype, lambda x: np.multiply(x, factor, out=x))


@np.errstate(all="ignore")
def _rewrite(values: Array, out: Array, dtype: Dtype, change: Callable[[Array], object]) -> None:
    """``out`` = ``values``, changed in place in the type that they are combined in."""
    if not _is_half(dtype):
        if out is not values:
            np.copyto(out, values)
        change(out)
        return
    decode, encode = _codec(dtype)
    wide = np.empty(min(CHUNK, out.size), np.float32)
    for start in range(0, out.size, CHUNK):
        piece = slice(start, min(start + CHUNK, out.size))
        x = decode(values[piece], wide[: piece.stop - start])
        change(x)
        encode(x, out[piece])


def _divide(values: Array, divisor: int) -> None:
    if values.dtype.kind in "iu":
        _divide_integers(values, divisor)
    else:
        parts = values.view(values.real.dtype)  # complex by complex division would round more than once
        np.divide(parts, divisor, out=parts)


def _divide_integers(values: Array, divisor: int) -> None:
    """Toward zero, as C and NCCL divide; in 64 bits, because a short integer may not hold the number of ranks."""
    for start in range(0, values.size, CHUNK):
        piece = values[start : start + CHUNK]
        wide = piece.astype(piece.dtype.kind + "8")
        if piece.dtype.kind == "i":
            wide += (wide >> 63) & (divisor - 1)  # what makes of NumPy's quotient, rounded down, the one toward zero
        piece[...] = wide // divisor


Decode = Callable[[Array, Array], Array]
Encode = Callable[[Array, Array], None]


def _codec(dtype: Dtype) -> tuple[Decode, Encode]:
    """(decode, encode) between a dtype's storage and the type it is combined in; decode may use its second argument."""
    if _is_half(dtype):
        if (torch := loaded_torch()) is not None:  # several times faster than NumPy on both
            decode, encode = _torch_codec(torch, dtype)
        else:
            decode, encode = (_decode_bf16, _encode_bf16) if dtype.name == "bfloat16" else (_widen, _narrow)

        def encode_alike(source: Array, into: Array) -> None:
            encode(source, into)
            _one_nan(into, dtype)()

        return decode, encode_alike
    return _as_it_is, _narrow


def _one_nan(values: Array, dtype: Dtype) -> Callable[[], object]:
    """What gives all NaNs among 16-bit values the same bits, bound. NumPy and torch make different ones, torch even by
    where in a vector they are; and ranks of which only some have torch must find equal bits."""
    infinity, nan = (0x7F80, 0x7FC0) if dtype.name == "bfloat16" else (0x7C00, 0x7E00)
    bits, signed = values.view(np.uint16), values.view(np.int16)
    # NaNs are the largest of either sign: to look for these two costs a tenth of combining the values.
    last, last_positive, at, at_positive = bits.argmax, signed.argmax, bits.item, signed.item

    def unify() -> None:
        if at(last()) > infinity | 0x8000 or at_positive(last_positive()) > infinity:
            bits[(bits & 0x7FFF) > infinity] = nan

    return unify if values.size else _nothing


def _nothing() -> None:
    pass


def _is_half(dtype: Dtype) -> bool:
    return dtype.kind == "f" and dtype.itemsize == 2


def _as_it_is(source: Array, into: Array) -> Array:
    return source


def _widen(source: Array, into: Array) -> Array:
    np.copyto(into, source)
    return into


def _narrow(source: Array, into: Array) -> None:
    np.copyto(into, source, casting="same_kind")


def _as_torch(torch: Any, dtype: Dtype, bits: Array) -> Any:
    return torch.from_numpy(bits.view(np.int16)).view(getattr(torch, dtype.name))


def _torch_codec(torch: Any, dtype: Dtype) -> tuple[Decode, Encode]:
    def decode(source: Array, into: Array) -> Array:
        torch.from_numpy(into).copy_(_as_torch(torch, dtype, source))
        return into

    def encode(source: Array, into: Array) -> None:
        _as_torch(torch, dtype, into).copy_(torch.from_numpy(source))

    return decode, encode


def _decode_bf16(source: Array, into: Array) -> Array:
    bits = into.view(np.uint32)
    np.copyto(bits, source)
    np.left_shift(bits, 16, out=bits)
    return into


def _encode_bf16(source: Array, into: Array) -> None:
    bits = source.view(np.uint32)
    # To nearest, ties to even: add half a unit less the bit that decides the tie, then cut.
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    np.copyto(into, rounded, casting="unsafe")
    into[np.isnan(source)] = 0x7FC0
