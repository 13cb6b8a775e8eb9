"""Local reductions, by the kernel and in NumPy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import DTYPES, Op, reduction


@pytest.fixture(params=["kernel", "numpy"])
def helper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "kernel", None)
    return str(request.param)


@pytest.mark.usefixtures("helper")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("op", ["sum", "avg", "prod", "max"])
def test_16_bit_reductions_round_once(dtype: str, op: str) -> None:
    n = 3 * kernels.CHUNK + 5
    x = torch.randn(5, n, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    x[3, 7], x[2, 9], x[1, 11] = float("nan"), float("inf"), -0.0
    wide = x.float()
    exact = wide[0]
    combine = getattr(torch, {"sum": "add", "avg": "add", "prod": "mul", "max": "maximum"}[op])
    for row in wide[1:]:
        exact = combine(exact, row)
    exact = exact / 5 if op == "avg" else exact
    rows = x.view(torch.int16).numpy().view(kernels.storage(DTYPES[dtype]))
    out = np.empty_like(rows[0])
    kernels.reduce_rows(rows, out, reduction(op, DTYPES[dtype], "test"))
    got = torch.from_numpy(out.view(np.int16)).view(getattr(torch, dtype))
    assert torch.equal(got.isnan(), exact.isnan())
    assert torch.equal(got.nan_to_num(), exact.to(got.dtype).nan_to_num())


def test_factors_multiply_in_float32() -> None:
    rows = np.array([[1.0], [1.0]], np.float16)
    out = np.empty(1, np.float16)
    kernels.reduce_rows(rows, out, reduction(Op.premul_sum(0.1), DTYPES["float16"], "test"), [2049.0, -2048.0])
    assert out[0] == 1  # rounded to float16, 2049 would be 2048


def test_infinities_are_results() -> None:
    rows = np.array([[np.inf, 3e38], [-np.inf, 3e38]], np.float32)
    out = np.empty(2, np.float32)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        kernels.reduce_rows(rows, out, reduction("sum", DTYPES["float32"], "test"))
    assert np.isnan(out[0])
    assert np.isinf(out[1])


@pytest.mark.usefixtures("helper")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_minus_zero_is_less_than_zero(dtype: str, op: str) -> None:
    kind = DTYPES[dtype]
    how = reduction(op, kind, "test")
    fill = np.random.default_rng(5)
    for ranks in (1, 2, 3):
        rows = fill.choice(np.array([0, -0x8000, 0x3C00, -0x4400, 1, -0x7FFF], np.int16), (ranks, 70_001))
        in_order = np.where(rows < 0, rows ^ 0x7FFF, rows)  # integers in the order of the floats that have these bits
        best = getattr(in_order, op)(axis=0)
        expected = np.where(best < 0, best ^ 0x7FFF, best)
        given = [row.copy().view(kernels.storage(kind)) for row in rows]
        kernels.reduce_rows(given, given[-1], how)
        assert np.array_equal(given[-1].view(np.int16), expected)
        if ranks == 2:
            given = [row.copy().view(kernels.storage(kind)) for row in rows]
            with np.errstate(all="ignore"):
                kernels.combination(how, given[0], given[1], given[0])()
            assert np.array_equal(given[0].view(np.int16), expected)


@pytest.mark.parametrize("dtype", [d.name for d in DTYPES.values() if d.kind in "iu"])
@pytest.mark.parametrize("divisor", [1, 2, 3, 128, 129, 300])
def test_integers_are_divided_toward_zero(dtype: str, divisor: int) -> None:
    limits = np.iinfo(dtype)
    few = np.array([limits.min, limits.min + 1, limits.max - 1, limits.max, *range(8)], dtype)
    x = np.concatenate([few, np.subtract(0, few[4:]).astype(dtype)])
    expected = [abs(int(v)) // divisor * (-1 if v < 0 else 1) for v in x]
    kernels.divide(x, divisor, DTYPES[dtype])
    assert x.tolist() == expected
