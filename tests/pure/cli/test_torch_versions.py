"""One place says which versions of torch were tested; an older one is refused and a newer one told, in a line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize(("version", "code", "said"), [("2.4.1", 1, "needs torch"), ("9.0.0", 0, "was tested with")])
def test_as_it_is_imported(version: str, code: int, said: str) -> None:
    pytest.importorskip("torch")
    program = f"import torch; torch.__version__ = '{version}'; import mpicoll.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == code, done.stderr
    assert [said in line for line in done.stderr.splitlines()][-1 if code else 0]
    assert done.stderr.count(f"this is torch {version}") == 1
