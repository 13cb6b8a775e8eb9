"""The pages about algorithms say what is so: the one is what its build writes, the other's code does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from mpicoll import algorithms
from mpicoll.analysis.drawing.draw import pictured
from mpicoll.analysis.proof.cases import prove
from mpicoll.cli import main
from mpicoll.errors import ScheduleError
from tests.pure.docs.scripts import DOCS, script


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return script("draw_algorithms")


def test_the_page_is_up_to_date(build: ModuleType) -> None:
    assert (DOCS / "reference/algorithms.md").read_text() == build.text(), "run `make docs` and commit what it writes"


@pytest.mark.usefixtures("registry")
def test_the_example_of_an_own_algorithm(tmp_path: Path) -> None:
    page = (DOCS / "how-to/own_algorithm.md").read_text()
    whole, corrected, call, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {"__name__": "star"}
    file = tmp_path / "star.py"
    file.write_text(whole)
    with pytest.raises(ScheduleError) as caught:
        exec(compile(whole, str(file), "exec"), names)
    assert f"\nmpicoll.errors.ScheduleError: {caught.value}\n" in page
    assert main(["draw", "allreduce", str(file), "-n", "3", "-o", str(tmp_path / "fault.svg")]) == 1
    assert (DOCS / "how-to/fault.svg").read_text() == (tmp_path / "fault.svg").read_text()
    exec(corrected, names)
    star = algorithms.find("allreduce", "star")
    assert star
    proof = prove(star, 64)
    assert f"{proof.messages:>9} {proof.depth:>6}" in page
    assert (DOCS / "how-to/star.svg").read_text().count(">Σ<") == sum(
        shown.label == "Σ" for panel in pictured(star, 4).panels for shown in panel.cells.values()
    )
    assert 'algorithm="star"' in call
