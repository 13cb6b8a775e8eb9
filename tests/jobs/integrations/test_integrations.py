"""Libraries over our default group of torch, and a script that moves to it from another backend."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.jobs import REPOSITORY, python, run, script

pytestmark = pytest.mark.any_mpi


@pytest.mark.parametrize("package", ["accelerate", "ignite", "pytorch_lightning"])
def test_a_library_trains(package: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    program = Path(__file__).with_name(f"{package.removeprefix('pytorch_')}_program.py")
    result = run(2, str(program), str(tmp_path)).good()
    assert result.output.count("all of it works") == 2, result.output


def test_a_script_of_the_page_prints_the_same_over_both(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/how-to/torch.md").read_text()
    before, after = re.findall(r"```python\n(.*?)```", page.partition("## Move from another backend")[2], re.DOTALL)[:2]
    assert after == before.replace('"gloo"', '"mpicoll"') != before
    said = "2 ranks, [1.0, 1.0, 1.0]"
    assert said in page
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for result in (python(*torchrun, script(tmp_path, before)), run(2, script(tmp_path, after))):
        result.good(said)
    python(script(tmp_path, after)).bad("no launcher found: use `mpicoll run -n N script.py`")


def generated(ranks: int, backend: str, dtype: str) -> list[str]:
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
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
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    words = ["--models", "small", "--turns", "1", "--tokens", "4"]
    result = run(2, str(REPOSITORY / "benchmarks/tensor_parallel_tokens.py"), *words).good()
    for backend in ("gloo", "mpicoll"):
        for dtype in ("float32", "bfloat16"):
            assert re.search(rf"^small +{dtype} +{backend} +\d+\.\d\d$", result.output, re.MULTILINE), result.output
