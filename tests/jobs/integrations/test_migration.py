"""The page's script for torchrun, as it stands there, and the same over MPI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.jobs import python, run, script

pytestmark = pytest.mark.last_mpi

PAGE = (Path(__file__).parents[3] / "docs/how-to/torch.md").read_text()
BEFORE, AFTER = re.findall(r"```python\n(.*?)```", PAGE.partition("## Move from another backend")[2], re.DOTALL)[:2]
PRINTED = "2 ranks, [1.0, 1.0, 1.0]"


def test_only_the_word_differs() -> None:
    assert AFTER == BEFORE.replace('"gloo"', '"mpicoll"') != BEFORE
    assert PRINTED in PAGE


@pytest.mark.parametrize("over", ["torchrun", "mpicoll run"])
def test_it_prints_the_same(over: str, tmp_path: Path) -> None:
    if over == "torchrun":
        result = python(
            "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script(tmp_path, BEFORE)
        )
    else:
        result = run(2, script(tmp_path, AFTER))
    assert result.code == 0, result.output
    assert PRINTED in result.output


def test_without_a_launcher(tmp_path: Path) -> None:
    result = python(script(tmp_path, AFTER))
    assert result.code != 0
    assert "no launcher found: use `mpicoll run -n N script.py`" in result.output
