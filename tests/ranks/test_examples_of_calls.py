"""Each function of the API pages has an example, which all ranks can run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpicoll.torch as dist
from mpicoll.torch import hooks, nn
from tests.pure.docs.scripts import script
from tests.sharing import SHARED

PAGES = Path(__file__).parents[2] / "docs/reference"
FUNCTION = re.compile(r"^\.\. auto(?:method|function):: mpicoll\.([\w.]+)", re.MULTILINE)
calls = script("examples_of_calls")


def names() -> Iterator[str]:
    for page in ("api.rst", "api_torch.rst"):
        yield from FUNCTION.findall((PAGES / page).read_text())
    yield from (f"torch.nn.{name}" for name in nn.__all__)
    yield from (f"torch.hooks.{name}" for name in vars(hooks) if name.endswith("_compress_hook"))


def test_each_function_has_an_example() -> None:
    assert [name for name in names() if not calls.example_of(name)] == []


@pytest.mark.mpi(min_size=2)
@pytest.mark.any_mpi
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in names():
        example = calls.example_of(name)
        compile(example, name, "exec")
        if name in calls.NOT_RUN or (name == "Communicator.shared" and not SHARED):
            continue
        known: dict[str, Any] = {}
        exec(calls.BEFORE_TORCH if name.startswith("torch.") else calls.BEFORE, known)
        try:
            exec(example, known)
        finally:
            if name.startswith("torch."):
                dist.destroy_process_group()
            else:
                known["comm"].free()
