"""Libraries over our default group of torch, and a script that moves to it from another backend."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.jobs import REPOSITORY, python, run, script

pytestmark = pytest.mark.any_mpi

NEEDS_TRANSFORMERS = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


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


TURNS = ("mpicoll", "float32"), ("gloo", "float32"), ("mpicoll", "bfloat16")
GENERATES = f"""
import os
from examples.tensor_parallel import main

for os.environ["BACKEND"], dtype in {TURNS}:
    main(dtype)
"""


@NEEDS_TRANSFORMERS
def test_tokens_are_those_of_one_rank_and_of_gloo() -> None:
    """Sums of bfloat16 are rounded differently from backend to backend, so that tokens may differ there."""
    alone = run(1, str(REPOSITORY / "examples/tensor_parallel.py")).good()
    both = run(2, "-c", GENERATES).good()
    line = r"^(\d) ranks over (\w+), (\w+): \[([\d, ]+)\]$"
    found = {it[:3]: it[3].split(", ") for it in re.findall(line, alone.output + both.output, re.MULTILINE)}
    expected = found["1", "mpicoll", "float32"]
    assert len(set(expected)) > 2
    assert found["2", "mpicoll", "float32"] == found["2", "gloo", "float32"] == expected
    assert [len(found["2", *turn]) for turn in TURNS] == [24, 24, 24]


@NEEDS_TRANSFORMERS
def test_the_benchmark() -> None:
    words = ["--models", "small", "--turns", "1", "--tokens", "4"]
    result = run(2, str(REPOSITORY / "benchmarks/tensor_parallel_tokens.py"), *words).good()
    for backend in ("gloo", "mpicoll"):
        for dtype in ("float32", "bfloat16"):
            assert re.search(rf"^small +{dtype} +{backend} +\d+\.\d\d$", result.output, re.MULTILINE), result.output
