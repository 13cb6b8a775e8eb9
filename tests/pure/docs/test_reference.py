"""The pages of the reference have everything that is public, and name the versions that the tests name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mpicoll
from mpicoll.torch_versions import NEWEST, OLDEST

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs/reference"


def documented(page: str) -> set[str]:
    """What autodoc is asked for."""
    return set(re.findall(r"^\.\. auto\w+:: ([\w.]+)", (REFERENCE / page).read_text(), re.MULTILINE))


def test_every_method_of_a_communicator() -> None:
    kind = mpicoll.Communicator
    public = {name for name in dir(kind) if not name.startswith("_") and hasattr(kind, name)}  # no hint at another name
    assert {f"mpicoll.Communicator.{name}" for name in public} <= documented("api.rst")


def test_every_name_of_the_package() -> None:
    assert {f"mpicoll.{name}" for name in mpicoll.__all__ if name != "__version__"} <= documented("api.rst")


def test_every_name_of_the_package_for_torch() -> None:
    torch = pytest.importorskip("mpicoll.torch")
    text = (REFERENCE / "api_torch.rst").read_text()
    of_torch = {"GroupMember", "ProcessGroup", "ReduceOp", "group"}  # objects, which torch's own manual explains
    assert {name for name in torch.__all__ if name not in text} <= of_torch


def test_the_version_that_is_cited() -> None:
    assert f"\nversion: {mpicoll.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_versions() -> None:
    page = (REFERENCE / "versions.md").read_text()
    (row,) = re.findall(r"^\| torch \|.*$", page, re.MULTILINE)
    assert f"| torch | {OLDEST.rpartition('.')[0]} and newer;" in row
    makefile = (ROOT / "Makefile").read_text()
    on_openmpi, on_mpich = re.findall(r"^\$\((?:OPENMPI|MPICH)\)/\.ready: TORCH := (.*)$", makefile, re.MULTILINE)
    assert on_mpich == OLDEST
    assert f"{on_openmpi} on Open MPI and {OLDEST} on MPICH with all tests; {NEWEST} with some" in row
    config = (ROOT / "setup.cfg").read_text()
    for what, pattern in (
        ("Python", r"python_requires = >=(.*)"),
        ("NumPy", r"numpy >= (.*)"),
        ("mpi4py", r"mpi4py >= (.*)"),
    ):
        (least,) = re.findall(pattern, config)
        assert f"| {what} | {least} and newer |" in page
    for pinned in ("openmpi", "mpich"):
        (version,) = re.findall(rf"^{pinned}==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
        assert version in page, pinned


def test_the_glossary_is_in_order() -> None:
    terms = re.findall(r"^\*\*(.*)\*\*$", (REFERENCE / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) > 20
    assert terms == sorted(set(terms))
