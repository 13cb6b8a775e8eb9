"""Two-level algorithms on several nodes: what they compute, and what each node sends and receives for it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.jobs import done
from tests.nodes.nodes import Nodes

PROGRAM = Path(__file__).parent / "programs" / "two_level.py"
PLACEMENTS = {
    "block": (0, 0, 1, 1),
    "cyclic": (0, 1, 0, 1),
    "uneven": (0, 1, 1, 1, 2, 2),
    "four nodes": (0, 0, 1, 1, 2, 2, 3, 3),
}
"""The node of each rank."""
HEADERS = 1.05
"""What the heads of packets add at most, and the barriers around the calls."""


def printed(ranks: Sequence[int]) -> Any:
    """The line of JSON that the program's ranks print on their nodes."""
    with Nodes(max(ranks) + 1, ranks) as nodes:
        result = done(*nodes.command(sys.executable, "-m", "mpicoll", "run", "-n", str(len(ranks)), str(PROGRAM)))
    (said,) = re.findall(r"^\{.*\}$", result.good().output, re.MULTILINE)
    return json.loads(said)


@pytest.mark.parametrize(
    "placement",
    ["cyclic", "uneven", *(pytest.param(name, marks=pytest.mark.any_mpi) for name in ("block", "four nodes"))],
)
def test_each_result_is_right_and_no_node_sends_or_receives_more_than_it_must(placement: str) -> None:
    ranks = PLACEMENTS[placement]
    found = printed(ranks)
    several = all(ranks.count(node) > 1 for node in ranks)
    wide = "wide" if several and max(ranks) > 1 else "exchange"
    assert found["defaults"] == [wide, "two_level" if several else "exchange", "native"]
    p, nodes = len(ranks), max(ranks) + 1
    for rank, node in enumerate(ranks):
        others = (p - ranks.count(node)) / p  # what other ranks give or get, if each has a block
        own = ranks.count(node) / p
        at_root = others if node == ranks[0] else own  # what passes through the node of rank 0, the root, or another
        most = {
            "bcast": (1.0, 1.0),
            "reduce": (1.0, 1.0),
            "allreduce": (2 * (nodes - 1) / nodes,) * 2,
            "gather": (own, at_root),
            "scatter": (at_root, own),
            "alltoall": (ranks.count(node) * others,) * 2,
            "allgather": (max((p - ranks.count(n)) / p for n in set(ranks)), others),
            "reduce_scatter": (others, max((p - ranks.count(n)) / p for n in set(ranks))),
        }
        assert set(found["parts"]) == set(most)
        for collective, parts in found["parts"].items():
            for way, part, limit in zip(("sends", "receives"), parts[rank], most[collective], strict=True):
                assert part <= limit * HEADERS, f"{collective}: node {node} {way} {part:.3f} of the vector, not {limit}"
