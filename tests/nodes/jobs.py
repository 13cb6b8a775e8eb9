"""Jobs on emulated nodes, in the environment that runs the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.nodes.nodes import Nodes
from tests.nodes.wire import Link

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
PLACEMENTS = {
    "block": (0, 0, 1, 1),
    "cyclic": (0, 1, 0, 1),
    "uneven": (0, 1, 1, 1, 2, 2),
    "four nodes": (0, 0, 1, 1, 2, 2, 3, 3),
}
"""The node of each rank."""
SECONDS = 300.0
"""Until a job is ended. Each takes seconds on a quiet machine."""


def run(ranks: Sequence[int], program: str, *arguments: str, link: Link | None = None) -> Any:
    """What the program's ranks print on the nodes, which is JSON."""
    with Nodes(max(ranks) + 1, ranks, link) as nodes:
        launch = [sys.executable, "-m", "mpicoll", "run", "-n", str(len(ranks)), str(PROGRAMS / program), *arguments]
        ended = nodes.run(
            "env", f"PYTHONPATH={REPOSITORY}", *launch, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SECONDS
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)
