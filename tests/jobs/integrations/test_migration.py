"""The page's script for torchrun, as it stands there, and the same over MPI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.jobs import REPOSITORY, python, run, script

pytestmark = pytest.mark.last_mpi


def test_a_script_of_the_page_prints_the_same_over_both(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/how-to/torch.md").read_text()
    before, after = re.findall(r"```python\n(.*?)```", page.partition("## Move from another backend")[2], re.DOTALL)[:2]
    assert after == before.replace('"gloo"', '"mpicoll"') != before
    said = "2 ranks, [1.0, 1.0, 1.0]"
    assert said in page
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for result in (python(*torchrun, script(tmp_path, before)), run(2, script(tmp_path, after))):
        assert result.code == 0, result.output
        assert said in result.output
    python(script(tmp_path, after)).bad("no launcher found: use `mpicoll run -n N script.py`")
