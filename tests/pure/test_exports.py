"""What users import, and that the reference has all of it. To change it is to change the contract."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpicoll

REFERENCE = Path(__file__).parents[2] / "docs/reference"
ON_PAGE = set(re.findall(r"^\.\. auto\w+:: mpicoll\.([\w.]+)", (REFERENCE / "api.rst").read_text(), re.MULTILINE))


def test_the_package() -> None:
    names = ["Algorithm", "Communicator", "Op", "__version__", "draw", "errors", "record", "register", "spawn",
             "threads", "watch"]  # fmt: skip
    assert mpicoll.__all__ == dir(mpicoll) == names
    assert all(hasattr(mpicoll, name) for name in names)
    assert {*names} - {"__version__"} <= ON_PAGE


def test_a_communicator() -> None:
    with mpicoll.threads(1) as ranks:
        names = {name for name in ranks.run(dir)[0] if not name.startswith("_")}
    assert names == {name.removeprefix("Communicator.") for name in ON_PAGE if name.startswith("Communicator.")}


def test_the_package_for_torch() -> None:
    torch = pytest.importorskip("mpicoll.torch")
    text = (REFERENCE / "api_torch.rst").read_text()
    of_torch = {"GroupMember", "ProcessGroup", "ReduceOp", "group"}  # objects, which torch's own manual explains
    assert {name for name in torch.__all__ if name not in text} <= of_torch


@pytest.mark.slow
@pytest.mark.parametrize(("version", "code", "said"), [("2.4.1", 1, "needs torch"), ("9.0.0", 0, "was tested with")])
def test_a_version_of_torch_that_was_not_tested(version: str, code: int, said: str) -> None:
    pytest.importorskip("torch")
    program = f"import torch; torch.__version__ = '{version}'; import mpicoll.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stderr.splitlines()[-1 if code else 0]
    assert done.stderr.count(f"this is torch {version}") == 1


def test_errors_are_one_tree() -> None:
    names = mpicoll.errors.__all__
    classes = [getattr(mpicoll.errors, name) for name in names]
    assert all(issubclass(each, mpicoll.errors.MpicollError) for each in classes)
    defined = {n for n, v in vars(mpicoll.errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert defined == set(names)
