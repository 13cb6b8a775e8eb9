"""docs/reference/environment.md has every variable that mpicoll and its job scripts read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/environment.md").read_text()
NAMED = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", PAGE))
SOURCES = sorted((ROOT / "mpicoll").rglob("*.py"))
SCRIPTS = sorted(p for p in (ROOT / "slurm").rglob("*") if p.suffix in (".sh", ".sbatch", ".env"))


def read_by(source: Path) -> Iterator[str]:
    """The names that a module looks up in ``os.environ``."""
    for node in ast.walk(ast.parse(source.read_text())):
        match node:
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
                yield name
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[ast.Attribute(attr="environ")]):
                yield name
            case ast.Call(
                func=ast.Attribute(attr="get" | "setdefault", value=ast.Attribute(attr="environ")),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def test_mpicolls_own() -> None:
    found = {name for file in (*SOURCES, *SCRIPTS) for name in re.findall(r"\bMPICOLL_[A-Z_]+\b", file.read_text())}
    assert "MPICOLL_ALGORITHM" in found
    assert found - NAMED == set()
    assert {name for name in NAMED if name.startswith("MPICOLL_")} - found == set()


def test_what_the_package_looks_up() -> None:
    found = {name for source in SOURCES for name in read_by(source) if not name.startswith("_")}
    assert {"RANK", "MASTER_ADDR"} <= found
    assert found - NAMED == set()


def test_what_the_templates_take() -> None:
    """Of templates/, and of what they share; presets name the variables of MPI and NCCL instead."""
    templates = [file for file in SCRIPTS if file.parent.name != "sites"]
    found = {name for file in templates for name in re.findall(r"^(\w+)=\$\{\1:-", file.read_text(), re.MULTILINE)}
    assert {"PROGRAM", "SITE"} <= found
    assert found - NAMED == set()
