"""A model of transformers, split over the ranks: it generates what one rank generates, and what it does over gloo."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from tests.jobs.jobs import REPOSITORY, run

pytestmark = [
    pytest.mark.any_mpi,
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
]


def generated(ranks: int, backend: str, dtype: str) -> list[str]:
    result = run(ranks, str(REPOSITORY / "examples/tensor_parallel.py"), dtype, env={"BACKEND": backend}).good()
    (tokens,) = re.findall(rf"^{ranks} ranks over {backend}, {dtype}: \[([\d, ]+)\]$", result.output, re.MULTILINE)
    return str(tokens).split(", ")


def test_tokens_are_those_of_one_rank_and_of_gloo() -> None:
    alone = generated(1, "mpicoll", "float32")
    assert len(alone) == 24
    assert len(set(alone)) > 2
    assert generated(2, "mpicoll", "float32") == generated(2, "gloo", "float32") == alone
    assert generated(4, "mpicoll", "float32") == alone


def test_bfloat16() -> None:
    """Sums of 16-bit floats are rounded differently from backend to backend, so that tokens may differ."""
    assert len(generated(2, "mpicoll", "bfloat16")) == 24


def test_the_benchmark() -> None:
    words = ["--models", "small", "--turns", "1", "--tokens", "4"]
    result = run(2, str(REPOSITORY / "benchmarks/tensor_parallel_tokens.py"), *words).good()
    for backend in ("gloo", "mpicoll"):
        for dtype in ("float32", "bfloat16"):
            assert re.search(rf"^small +{dtype} +{backend} +\d+\.\d\d$", result.output, re.MULTILINE), result.output
