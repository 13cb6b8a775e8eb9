"""The kernel's arithmetic against its definition in NumPy: equal bits, but for what the definition leaves open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import DTYPES, OPS, Dtype, Op, Reduction, reduction
from mpicoll.node import loaded

pytestmark = pytest.mark.skipif(loaded.kernel is None, reason=loaded.missing)

Array = np.ndarray[Any, Any]

LENGTHS = 0, 1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 100, 511, 513, 1023, 1025, 4097
"""Whole vectors of the processor and parts of one, and one element more or less than what is combined at once."""
ROWS = 1, 2, 3, 4, 5
FACTORS = (0.5, -3.0, 0.1, float("inf"), 0.0)


def extremes(dtype: Dtype) -> Array:
    """Values at which arithmetic goes wrong, in the dtype's storage."""
    held = kernels.storage(dtype)
    if held.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        limits = np.iinfo(held)
        return np.array([limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, 3, 100], held)
    # Infinities, NaNs, zeros, the least numbers of all, the largest ones, and those whose sum is half of a last bit.
    if dtype.short_float:
        every = np.arange(1 << 16).astype(np.uint16)
        return every.view(held)
    part = held.type().real.dtype
    limit, nan = np.finfo(part), float("nan")
    real = np.array(
        [0.0, -0.0, 1.0, -1.0, 1 + limit.eps, limit.eps / 2, -limit.eps / 2, 0.1, -7.3, nan, -nan, np.inf, -np.inf,
         limit.max, -limit.max, limit.tiny, limit.smallest_subnormal, -limit.smallest_subnormal, limit.tiny / 3],
        part,
    )  # fmt: skip
    if dtype.kind == "f":
        return real
    pairs = np.empty((real.size, real.size), held)
    pairs.real, pairs.imag = real[:, None], real[None, :]
    return pairs.ravel()


def drawn(dtype: Dtype, count: int, n: int, fill: np.random.Generator) -> list[Array]:
    """Rows of which every second value is an extreme one."""
    held = kernels.storage(dtype)
    made = []
    for _ in range(count):
        usual = (fill.standard_normal(2 * n) * 10.0 ** fill.integers(-3, 4, 2 * n)).astype(np.float64)
        if dtype.short_float or dtype.kind == "b":
            plain = fill.choice(extremes(dtype), n)
        elif dtype.kind in "iu":
            plain = fill.integers(0, 256, n * held.itemsize).astype(np.uint8).view(held)
        elif dtype.kind == "c":
            plain = usual.view(np.complex128).astype(held)
        else:
            plain = usual[:n].astype(held)
        made.append(np.where(fill.random(n) < 0.5, fill.choice(extremes(dtype), n), plain).astype(held))
    return made


def by_kernel(of: Reduction, rows: Sequence[Array], out: Array, factors: Sequence[complex] | None = None) -> None:
    kernel = loaded.kernel
    assert kernel is not None
    dtype, op, averages = kernels.numbers(of)
    addresses = tuple(row.ctypes.data for row in rows)
    kernel.reduce_rows(dtype, op, averages, factors, addresses, out.ctypes.data, out.size)


@patch.object(kernels, "kernel", None)
def by_definition(of: Reduction, rows: Sequence[Array], factors: Sequence[complex] | None = None) -> Array:
    """What NumPy gives. It leaves open which of two zeros is the larger one, and whether the products of two complex
    numbers are rounded before they are added; both are said here."""
    is_product = of.combine == "PROD" and of.dtype.kind == "c"
    if of.combine not in ("MIN", "MAX") and not (is_product or (factors is not None and of.dtype.kind == "c")):
        out = np.empty_like(rows[0])
        kernels.reduce_rows_in_numpy(rows, out, of, factors)
        return out
    wide = [kernels.widened(row, of.dtype) for row in rows]
    if factors is not None:
        wide = [product(row, np.full(row.size, factor, row.dtype)) for row, factor in zip(wide, factors, strict=True)]
    total = wide[0]
    for row in wide[1:]:
        total = product(total, row) if is_product else total + row if factors is not None else extreme(of, total, row)
    if not of.dtype.short_float:
        return np.asarray(total)
    out = np.empty_like(rows[0])
    kernels.narrow(total, out, of.dtype)
    return out


def product(a: Array, b: Array) -> Array:
    found = np.empty_like(a)
    found.real = a.real * b.real - a.imag * b.imag
    found.imag = a.real * b.imag + a.imag * b.real
    return found


def extreme(of: Reduction, a: Array, b: Array) -> Array:
    """Of two zeros, +0 is the larger one."""
    found = kernels.COMBINE[of.combine](a, b)
    if a.dtype.kind != "f":
        return np.asarray(found)
    both, one = np.signbit(a) & np.signbit(b), np.signbit(a) | np.signbit(b)
    zero = np.where(both if of.combine == "MAX" else one, a.dtype.type(-0.0), a.dtype.type(0.0))
    return np.asarray(np.where((a == 0) & (b == 0), zero, found))


def same(dtype: Dtype, found: Array, expected: Array) -> bool:
    """Equal bits. NaNs of 32 bits and more may have any, because a processor takes them from either operand."""
    if dtype.kind in "fc" and not dtype.short_float:
        part = found.dtype.type().real.dtype
        found, expected = found.view(part), expected.view(part)
        nans = np.isnan(expected)
        if not np.array_equal(nans, np.isnan(found)):
            return False
        found, expected = found[~nans], expected[~nans]
    return found.tobytes() == expected.tobytes()


def ops_of(dtype: Dtype) -> list[Op]:
    names = [name for name, (kinds, _) in OPS.items() if dtype.kind in kinds]
    return [Op.premul_sum(2.0) if name == "premul_sum" else Op(name) for name in names]


@np.errstate(all="ignore")
@pytest.mark.parametrize("name", DTYPES)
def test_bits_are_those_of_the_definition(name: str) -> None:
    dtype, fill = DTYPES[name], np.random.default_rng(3)
    for op in ops_of(dtype):
        of = reduction(op, dtype, "test")
        for count in ROWS:
            given = FACTORS[:count] if op.factor is not None else None
            for n in LENGTHS:
                rows = drawn(dtype, count, n, fill)
                expected = by_definition(of, rows, given)
                kept = [row.copy() for row in rows]
                out = np.empty_like(rows[0])
                by_kernel(of, rows, out, given)
                where = f"{op} of {count} x {n} {name}"
                assert same(dtype, out, expected), where
                assert all(row.tobytes() == copy.tobytes() for row, copy in zip(rows, kept, strict=True)), where
                for target in range(count):  # in place
                    mine = [row.copy() for row in rows]
                    by_kernel(of, mine, mine[target], given)
                    assert mine[target].tobytes() == out.tobytes(), f"{where}, in place of row {target}"


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_short_float_is_widened_and_narrowed(name: str) -> None:
    """A row alone is converted both ways. All NaNs become one."""
    dtype = DTYPES[name]
    every = extremes(dtype)
    out = np.empty_like(every)
    by_kernel(reduction("sum", dtype, "test"), [every], out)
    with patch.object(kernels, "kernel", None):
        expected = np.empty_like(every)
        kernels.narrow(kernels.widened(every, dtype), expected, dtype)
    assert out.tobytes() == expected.tobytes()
    nans = {*out.view(np.uint16)[np.isnan(kernels.widened(out, dtype))].tolist()}
    assert nans == {0x7E00 if name == "float16" else 0x7FC0}


def test_what_is_not_defined_is_refused() -> None:
    kernel = loaded.kernel
    assert kernel is not None
    x = np.zeros(4, np.float32)
    float32, band = list(DTYPES).index("float32"), list(kernels.COMBINE).index("BAND")
    with pytest.raises(ValueError, match="the operation is not defined on the dtype"):
        kernel.reduce_rows(float32, band, False, None, (x.ctypes.data,), x.ctypes.data, 4)


def loaded_with(program: str) -> str:
    """What ``loaded.missing`` is after this program."""
    code = f"{program}\nfrom mpicoll.node import loaded\nassert loaded.kernel is None\nprint(loaded.missing)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import mpicoll.node.kernel as kernel; kernel.INTERFACE += 1", "was compiled for another version"),
        ("import sys; sys.modules['mpicoll.node.kernel'] = None", "mpicoll's kernel is not there: import of"),
    ],
)
def test_a_kernel_that_is_not_used(program: str, said: str) -> None:
    assert said in loaded_with(program)


DIVISORS = 2, 3, 5, 6, 7, 10, 63, 64, 100, 127, 128, 129, 255, 256, 257, 1000, 32767, 32768, 32769, 65535, 65536, 65537


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("divisor", DIVISORS)
def test_averages_of_integers_are_exact(dtype: str, divisor: int) -> None:
    """A division multiplies. What lies beside a multiple of the divisor shows whether it rounds as it should."""
    assert loaded.kernel is not None
    limits, fill = np.iinfo(dtype), np.random.default_rng(divisor)
    some = [int(x) for x in fill.integers(limits.min, limits.max, 200, dtype, endpoint=True)]
    beside = [x // divisor * divisor + off for x in [*some, limits.max, limits.min + divisor] for off in (-1, 0, 1)]
    values = [x for x in [*some, *beside, limits.min, limits.max, 0] if limits.min <= x <= limits.max]
    x, nothing, result = np.array(values, dtype), np.zeros(len(values), dtype), np.empty(len(values), dtype)
    rows = (x.ctypes.data, *[nothing.ctypes.data] * (divisor - 1))
    of = kernels.numbers(reduction("avg", DTYPES[dtype], "allreduce"))
    loaded.kernel.reduce_rows(*of, None, rows, result.ctypes.data, x.size)
    expected = [abs(value) // divisor * (1 if value >= 0 else -1) for value in values]
    assert result.tolist() == expected
