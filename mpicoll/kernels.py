"""Local reductions: the only place where arithmetic happens.

Values are NumPy arrays of a dtype's *storage* type, which is the dtype itself but for bfloat16, held as uint16.
float16 and bfloat16 are combined in float32 and rounded once, to nearest even, at the end. NaN propagates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.buffers import loaded_torch
from mpicoll.dtypes import Dtype, Reduction

__all__ = ["COMBINE", "divide", "fold", "scale", "storage"]

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

CHUNK = 1 << 15
"""Elements combined at a time: three float32 chunks stay in the second-level cache."""


def storage(dtype: Dtype) -> np.dtype[Any]:
    """The NumPy dtype that holds ``dtype``'s bits."""
    return np.dtype(np.uint16 if dtype.name == "bfloat16" else dtype.name)


@np.errstate(all="ignore")  # infinities and NaNs are results, as in MPI and torch
def fold(
    rows: Sequence[Array] | Array, out: Array, reduction: Reduction, factors: Sequence[float] | None = None
) -> None:
    """``out`` = the rows combined in their order, one row a rank; an average is divided by the number of rows.

    ``rows`` and ``out`` are 1-D, of equal length and of the dtype's storage; ``out`` may be one of the rows.
    ``factors``, one a row, multiply the rows of a ``premul_sum``.
    """
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


def divide(values: Array, divisor: int) -> None:
    """Divide float or complex values in place."""
    with np.errstate(all="ignore"):
        _divide(values, divisor)


def _divide(values: Array, divisor: int) -> None:
    parts = values.view(values.real.dtype)  # complex by complex division would round more than once
    np.divide(parts, divisor, out=parts)


def scale(values: Array, factor: float | complex, out: Array) -> None:
    """``out`` = ``factor * values``."""
    with np.errstate(all="ignore"):
        np.multiply(values, factor, out=out)


Decode = Callable[[Array, Array], Array]
Encode = Callable[[Array, Array], None]


def _codec(dtype: Dtype) -> tuple[Decode, Encode]:
    """(decode, encode) between a dtype's storage and the type it is combined in; decode may use its second argument."""
    if _is_half(dtype):
        if (torch := loaded_torch()) is not None:  # several times faster than NumPy on both
            return _torch_codec(torch, getattr(torch, dtype.name))
        return (_decode_bf16, _encode_bf16) if dtype.name == "bfloat16" else (_widen, _narrow)
    return _as_it_is, _narrow


def _is_half(dtype: Dtype) -> bool:
    return dtype.kind == "f" and dtype.itemsize == 2


def _as_it_is(source: Array, into: Array) -> Array:
    return source


def _widen(source: Array, into: Array) -> Array:
    np.copyto(into, source)
    return into


def _narrow(source: Array, into: Array) -> None:
    np.copyto(into, source, casting="same_kind")


def _torch_codec(torch: Any, dtype: Any) -> tuple[Decode, Encode]:
    def narrow(bits: Array) -> Any:
        return torch.from_numpy(bits.view(np.int16)).view(dtype)

    def decode(source: Array, into: Array) -> Array:
        torch.from_numpy(into).copy_(narrow(source))
        return into

    def encode(source: Array, into: Array) -> None:
        narrow(into).copy_(torch.from_numpy(source))

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
