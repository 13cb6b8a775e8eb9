"""What the pages say of files, headings, variables, tests and algorithms is there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import draw_algorithms
import pytest

from mpicoll import algorithms
from mpicoll.analysis.drawing.draw import pictured
from mpicoll.analysis.proof.cases import prove
from mpicoll.errors import ScheduleError

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [
    *sorted([*ROOT.glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]),
    *sorted([*DOCS.glob("*.md"), *DOCS.glob("[!_]*/**/*.md")]),  # the site may be built anew in _build meanwhile
]


def page(name: str) -> str:
    return (DOCS / name).read_text()


def prose(file: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", file.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(file: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(file), re.MULTILINE):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def is_alive(file: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (file.parent / path).resolve() if path else file
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not anchor or target.suffix != ".md" or anchor in anchors(target)


def test_relative_links_lead_to_what_is_there() -> None:
    links = [(file, link) for file in PAGES for link in re.findall(r"\]\(([^()\s]+)\)", prose(file))]
    relative = [(file, link) for file, link in links if not re.match(r"\w+:", link)]
    assert len(relative) > 50
    assert [(str(file), link) for file, link in relative if not is_alive(file, link)] == []


def test_every_variable_that_is_read_is_on_its_page() -> None:
    modules = [file.read_text() for file in (ROOT / "mpicoll").rglob("*.py")]
    scripts = [p for p in (ROOT / "slurm").rglob("*") if p.suffix in (".sh", ".sbatch", ".env")]
    templates = [p.read_text() for p in scripts if p.parent.name != "sites"]  # a site's file has those of MPI and NCCL
    texts = [*modules, *(p.read_text() for p in scripts)]
    own = {name for text in texts for name in re.findall(r"\bMPICOLL_[A-Z_]+\b", text)}
    looked_up = r'environ(?:\.get\(|\.setdefault\(|\[)"([A-Z]\w*)"|"([A-Z]\w*)" (?:not )?in os\.environ'
    others = {name for text in modules for found in re.findall(looked_up, text) for name in found if name}
    taken = {name for text in templates for name in re.findall(r"^(\w+)=\$\{\1:-", text, re.MULTILINE)}
    named = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", page("reference/environment.md")))
    assert {"MPICOLL_ALGORITHM", "RANK", "PROGRAM"} <= own | others | taken
    assert (own | others | taken) - named == set()
    assert {name for name in named if name.startswith("MPICOLL_")} - own == set()


@pytest.mark.parametrize(
    ("name", "tests"), [("explanation/reliability.md", "tests"), ("reference/torch_table.md", "tests/ranks/torch")]
)
def test_every_row_names_a_test(name: str, tests: str) -> None:
    """Of the table of failures, which it provokes, and of that of torch's functions."""
    rows = re.findall(r"^\| (?!what|function|---)(.*) \|$", page(name), re.MULTILINE)
    assert len(rows) >= 20
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row.rpartition(" | ")[2])
        assert named, row
        for file, test in named:
            text = (ROOT / tests / file).read_text()
            assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), (file, test)


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "reference/algorithms.md").read_text() == draw_algorithms.text(), (
        "run `make docs` and commit what it writes"
    )


@pytest.mark.usefixtures("registry")
def test_the_example_of_an_own_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "how-to/own_algorithm.md").read_text()
    whole, corrected, call, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {"__name__": "star"}
    file = tmp_path / "star.py"
    file.write_text(whole)
    with pytest.raises(ScheduleError) as caught:
        exec(compile(whole, str(file), "exec"), names)
    assert f"\nmpicoll.errors.ScheduleError: {caught.value}\n" in page
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
