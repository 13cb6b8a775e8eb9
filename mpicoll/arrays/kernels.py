"""Local reductions, by the kernel where there is one. Else, all of the library's arithmetic happens in this module.

Values are NumPy arrays of a dtype's *storage* type. That is the dtype itself, except for bfloat16, which NumPy does not
have: its bits are held as uint16. float16 and bfloat16 values are combined in float32, and the result is rounded once,
to nearest even. NaN propagates. Of short floats, -0 is less than 0, as IEEE 754-2019's maximum and minimum have it:
NumPy and torch return one or the other, which even depends on the index in the vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.arrays.buffers import Buffer, Described
from mpicoll.arrays.dtypes import DTYPES, Dtype, Op, Reduction
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

_NAN_BYTES = {
    "float8_e4m3fn": (0x7F, 0xFF),
    "float8_e4m3fnuz": (0x80,),
    "float8_e5m2": (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF),
    "float8_e5m2fnuz": (0x80,),
    "float8_e8m0fnu": (0xFF,),
}
"""The NaNs of torch's floats of one byte, which NumPy does not know."""

CHUNK = 1 << 16
"""Elements combined at a time: two float32 chunks stay in the second-level cache."""


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


def has_nans(dtype: Dtype) -> bool:
    """Whether an element of the dtype can be a NaN, whatever else is known of the dtype."""
    if dtype.kind != "V":
        return dtype.kind in "fc"
    if dtype.name in _NAN_BYTES or dtype.name == "complex32":
        return True
    try:
        return np.dtype(dtype.name).kind in "fc"
    except TypeError:  # another one of torch's own, or a structure
        return False


def first_nan(buffer: Buffer) -> int | None:
    """The index of the first NaN in a plain buffer of floats or complex numbers. None if there is none."""
    dtype = buffer.dtype
    look: Callable[[Array], Array] = np.isnan
    if dtype.name in _NAN_BYTES:
        array = described(buffer.address, buffer.count, np.dtype(np.uint8))
        look = partial(np.isin, test_elements=_NAN_BYTES[dtype.name])
    elif dtype.name == "complex32":
        array = described(buffer.address, 2 * buffer.count, np.dtype(np.float16))
    elif dtype.kind == "V":  # such as big-endian numbers: NumPy itself knows them
        array = described(buffer.address, buffer.count, np.dtype(dtype.name))
    else:
        array, look = values(buffer), lambda part: np.isnan(widened(part, dtype))
    for start in range(0, array.size, CHUNK):
        found = look(array[start : start + CHUNK])
        if found.any():
            return (start + int(found.argmax())) * buffer.count // array.size
    return None


def in_float(reduction: Reduction) -> Reduction:
    """The same operation on float32."""
    return replace(reduction, dtype=DTYPES["float32"])


def widened(values: Array, dtype: Dtype) -> Array:
    """Short floats as float32, in new memory. Other values are returned as they are."""
    if not dtype.short_float:
        return values
    return widen(values, np.empty(values.size, np.float32), dtype)


def widen(values: Array, out: Array, dtype: Dtype) -> Array:
    """``out`` = values of the short float ``dtype``, as float32."""
    if kernel is None:
        return _codec(dtype)[0](values, out)
    kernel.widen(_DTYPES[dtype.name], _address(values), _address(out), values.size)
    return out


def narrow(values: Array, out: Array, dtype: Dtype) -> None:
    """``out`` = float32 values, rounded to the short float ``dtype``."""
    if kernel is None:
        _codec(dtype)[1](values, out)
    else:
        kernel.narrow(_DTYPES[dtype.name], _address(values), _address(out), values.size)


def quietly(run: Callable[[], object]) -> Callable[[], object]:
    """``run`` with floating-point errors ignored: infinities and NaNs are results, as in MPI and torch.

    The result must not be called from within ``run``, nor by two threads at once."""
    if int(np.__version__.partition(".")[0]) < 2:
        return np.errstate(all="ignore")(run)
    # NumPy 2 keeps this setting in the context. Entering a context takes a thirtieth of the time of entering errstate.
    context = copy_context()
    context.run(partial(np.seterr, all="ignore"))
    return partial(context.run, run)


def numbers(reduction: Reduction) -> tuple[int, int, bool]:
    """A reduction as the kernel knows it: the numbers of its dtype and operation, and whether it averages."""
    return _DTYPES[reduction.dtype.name], _OPS[reduction.combine], reduction.averages


def reduce_rows(
    rows: Sequence[Array] | Array, out: Array, reduction: Reduction, factors: Sequence[float] | None = None
) -> None:
    """``out`` = the rows combined in their order. There is one row per rank; an average is divided by their number.

    ``rows`` and ``out`` are 1-D, without gaps, of equal length and of the dtype's storage. ``out`` may be one of the
    rows. ``factors`` has one factor for each row of a ``premul_sum``.
    """
    if kernel is None:
        reduce_rows_in_numpy(rows, out, reduction, factors)
    else:
        kernel.reduce_rows(*numbers(reduction), factors, tuple(map(_address, rows)), _address(out), out.size)


@np.errstate(all="ignore")  # infinities and NaNs are results, as in MPI and torch
def reduce_rows_in_numpy(
    rows: Sequence[Array] | Array, out: Array, reduction: Reduction, factors: Sequence[float] | None = None
) -> None:
    """The same where there is no kernel. This is the definition of what the kernel does."""
    combine = _of_two(reduction)
    decode, encode = _codec(reduction.dtype)
    wide = np.dtype(np.float32) if reduction.dtype.short_float else out.dtype
    size = min(CHUNK, out.size)
    total, term = np.empty(size, wide), np.empty(size, wide)

    def value(i: int, piece: slice, into: Array) -> Array:
        decoded = decode(rows[i][piece], into)
        return decoded if factors is None else np.multiply(decoded, factors[i], out=into)

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
        write = partial(encode, result, out[piece])
        _with_sign(write, [row[piece] for row in rows], out[piece], reduction)()


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _of_two(reduction: Reduction) -> Callable[..., Array]:
    """The function of two arrays that writes to ``out``, which may be one of them."""
    complex_product = reduction.combine == "PROD" and reduction.dtype.kind == "c"
    return _complex_product if complex_product else COMBINE[reduction.combine]


def _complex_product(a: Array, b: Array, out: Array) -> Array:
    """NumPy rounds the product of arrays of one element in another way if ``out`` is one of them. What an element
    becomes must not depend on how many others there are."""
    if out.size == 1:
        out[:] = np.multiply(a, b)
        return out
    return np.multiply(a, b, out=out)


def combination(reduction: Reduction, a: Array, b: Array, out: Array) -> Callable[[], object]:
    """A function that computes ``out`` = a op b. ``out`` may be ``a`` or ``b``. It rounds short floats each time. Its
    caller divides an average at the end.

    The caller must have floating-point errors ignored.
    """
    if kernel is None:
        if not reduction.dtype.short_float:
            return partial(_of_two(reduction), a, b, out=out)
        return partial(reduce_rows_in_numpy, (a, b), out, replace(reduction, op=Op("sum")))
    dtype, op, _ = numbers(reduction)
    run = partial(kernel.reduce_rows, dtype, op, False, None, (_address(a), _address(b)), _address(out), out.size)
    run.__dict__["arrays"] = a, b, out  # it knows their addresses
    return run


def _with_sign(
    write: Callable[[], object], rows: Sequence[Array], out: Array, reduction: Reduction
) -> Callable[[], object]:
    """``write``, which writes the rows combined to ``out``, and then the sign of each maximum or minimum of short
    floats that is zero."""
    signs = _SIGNS.get(reduction.combine)
    if signs is None or not reduction.dtype.short_float:
        return write
    given, bits = [row.view(np.int16) for row in rows], out.view(np.int16)

    def run() -> None:
        sign = reduce(signs, given)  # before ``out`` is written to, which may be one of the rows
        write()
        zeros = (bits & 0x7FFF) == 0
        if zeros.any():
            bits[zeros] = sign[zeros] & -0x8000

    return run


def divide(values: Array, divisor: int, dtype: Dtype) -> None:
    """Divide values in place. Short floats are divided in float32; integers are divided toward zero."""
    _rewrite(values, values, dtype, lambda x: _divide(x, divisor))


def scale(values: Array, factor: float | complex, out: Array, dtype: Dtype) -> None:
    """``out`` = ``factor * values``. Short floats are multiplied in float32."""
    _rewrite(values, out, dtype, lambda x: np.multiply(x, factor, out=x))


@np.errstate(all="ignore")
def _rewrite(values: Array, out: Array, dtype: Dtype, change: Callable[[Array], object]) -> None:
    """``out`` = the values after ``change``, which works in place on values of the type in which they are combined."""
    if not dtype.short_float:
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
    """Divide toward zero, as C and NCCL do."""
    kind: Any = values.dtype.type
    fits = divisor <= np.iinfo(kind).max
    for start in range(0, values.size, CHUNK):
        piece = values[start : start + CHUNK]
        if not fits:  # a short integer may not hold the number of ranks
            wide = piece.astype(piece.dtype.kind + "8")
            _divide_integers(wide, divisor)
            piece[...] = wide
            continue
        if piece.dtype.kind == "i":  # NumPy rounds down: this makes negative quotients round up, to zero
            piece += (piece >> (8 * piece.itemsize - 1)) & kind(divisor - 1)
        np.floor_divide(piece, kind(divisor), out=piece)


Decode = Callable[[Array, Array], Array]
Encode = Callable[[Array, Array], None]


def _codec(dtype: Dtype) -> tuple[Decode, Encode]:
    """(decode, encode) between a dtype's storage and the type in which its values are combined. ``decode`` returns the
    values, and may write them to its second argument."""
    return _CODECS[dtype.name] if dtype.short_float else (_unchanged, _narrow)


def _unchanged(source: Array, into: Array) -> Array:
    return source


def _widen(source: Array, into: Array) -> Array:
    np.copyto(into, source)
    return into


def _narrow(source: Array, into: Array) -> None:
    np.copyto(into, source, casting="same_kind")


def _decode_bf16(source: Array, into: Array) -> Array:
    bits = into.view(np.uint32)
    np.copyto(bits, source)
    np.left_shift(bits, 16, out=bits)
    return into


def _encode_bf16(source: Array, into: Array) -> None:
    bits = source.view(np.uint32)
    # To nearest, ties to even: add just under half of the last bit that is kept, or exactly half where that bit is 1.
    # Then cut the lower bits off.
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    np.copyto(into, rounded, casting="unsafe")
    into[np.isnan(source)] = 0x7FC0


def _encode_f16(source: Array, into: Array) -> None:
    _narrow(source, into)
    into.view(np.uint16)[np.isnan(source)] = 0x7E00


_CODECS: dict[str, tuple[Decode, Encode]] = {"float16": (_widen, _encode_f16), "bfloat16": (_decode_bf16, _encode_bf16)}
"""How each short float is decoded and encoded. All NaNs in a result get the same bits: ranks must get equal ones."""

_DTYPES = {name: number for number, name in enumerate(DTYPES)}
_OPS = {name: number for number, name in enumerate(COMBINE)}
