"""Jobs on emulated nodes, in the environment that runs the tests."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.jobs.jobs import done
from tests.nodes.nodes import Nodes
from tests.nodes.wire import Link

PROGRAMS = Path(__file__).parent / "programs"
PLACEMENTS = {
    "block": (0, 0, 1, 1),
    "cyclic": (0, 1, 0, 1),
    "uneven": (0, 1, 1, 1, 2, 2),
    "four nodes": (0, 0, 1, 1, 2, 2, 3, 3),
}
"""The node of each rank."""


def run(ranks: Sequence[int], program: str, *arguments: str, link: Link | None = None) -> Any:
    """What the program's ranks print on the nodes, which is a line of JSON."""
    with Nodes(max(ranks) + 1, ranks, link) as nodes:
        launch = [sys.executable, "-m", "mpicoll", "run", "-n", str(len(ranks)), str(PROGRAMS / program), *arguments]
        result = done(*nodes.command(*launch))
    assert result.code == 0, result.output
    (said,) = re.findall(r"^\{.*\}$", result.output, re.MULTILINE)
    return json.loads(said)
