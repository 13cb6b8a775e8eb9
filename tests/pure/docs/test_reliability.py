"""docs/explanation/reliability.md names for each failure a test that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROWS = re.findall(r"^\| (?!what|---)(.*) \|$", (ROOT / "docs/explanation/reliability.md").read_text(), re.MULTILINE)


def test_every_failure_is_provoked() -> None:
    assert len(ROWS) >= 20
    for row in ROWS:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row.rpartition(" | ")[2])
        assert named, row
        for file, test in named:
            tree = ast.parse((ROOT / "tests" / file).read_text())
            assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (file, test)
