"""What a collective must give, computed in one process: inputs whose results are exact, and the results.

Values are NumPy arrays; bfloat16 ones are held as float32, which is exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpicoll.algorithms.collectives import COLLECTIVES

Array = np.ndarray[Any, Any]

COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
}


def held(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype in which the oracle holds values of ``dtype``."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], op: str = "sum") -> Array:
    """Random values of ``dtype`` whose reduction over a handful of ranks is exact, NaNs among them for min and max."""
    t = held(dtype)
    if t.kind == "b":
        return rng.integers(0, 2, shape).astype(t)
    if t.kind in "iu":
        low, high = (np.iinfo(t).min, np.iinfo(t).max)
        return rng.integers(low, high, shape, dtype=t, endpoint=True)
    x = rng.choice([-2.0, -1.0, 0.5, 1.0, 2.0], shape) if op == "prod" else rng.integers(-8, 9, shape).astype(float)
    if t.kind == "c":
        return (x + 1j * rng.choice([-1.0, 0.0, 1.0], shape)).astype(t)
    if op in ("min", "max"):
        x = np.where(rng.random(shape) < 0.05, np.nan, x)
    return np.asarray(x).astype(t)


def reducer(op: str, dtype: str, factors: Sequence[float] | None = None) -> Callable[[Sequence[Array]], Array]:
    """The reduction of one block a rank, in rank order."""

    def of(blocks: Sequence[Array]) -> Array:
        t = blocks[0].dtype
        if op == "premul_sum":
            assert factors is not None
            total = sum((b * t.type(f) for b, f in zip(blocks, factors, strict=False)), np.zeros_like(blocks[0]))
            return np.asarray(total, t)
        total = blocks[0]
        for b in blocks[1:]:
            total = COMBINE[op](total, b)
        if op == "avg" and t.kind in "iu":
            return np.array([_toward_zero(int(v), len(blocks)) for v in total.flat], t).reshape(total.shape)
        if op == "avg":  # 16-bit averages are divided in float32 and then rounded
            wide = np.dtype("float32") if dtype in ("float16", "bfloat16") else t
            parts = np.asarray(total, wide, order="C").reshape(-1).view(wide.type().real.dtype)
            return rounded((parts / parts.dtype.type(len(blocks))).view(wide).reshape(total.shape), dtype)
        return np.asarray(total).astype(t)

    return of


def _toward_zero(value: int, divisor: int) -> int:
    return value // divisor if value >= 0 else -(-value // divisor)


def rounded(x: Array, dtype: str) -> Array:
    """float32 values rounded to ``dtype``, as the oracle holds them."""
    if dtype != "bfloat16":
        return x.astype(held(dtype))
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def outcome(
    collective: str,
    inputs: Sequence[Array],
    op: str = "sum",
    root: int = 0,
    dtype: str = "float64",
    factors: Sequence[float] | None = None,
) -> list[Array | None]:
    """Each rank's result, stacked blocks flattened; None where there is none. Inputs of p blocks are (p, ...)."""
    table = COLLECTIVES[collective]
    vectors = [list(x) if table.gives == "p" else [x] for x in inputs]
    results = table.outcome(vectors, root, reducer(op, dtype, factors))
    return [None if r is None else np.concatenate([np.ravel(b) for b in r]) for r in results]
