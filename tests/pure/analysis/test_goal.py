"""GOAL text: read back by the grammar of LogGOPSim's txt2bin, and carried out."""

from __future__ import annotations

import io
import re
from collections import defaultdict, deque
from dataclasses import dataclass, field

import pytest

from mpicoll import algorithms
from mpicoll.analysis.cost import goal
from mpicoll.analysis.cost.machines import Level, Machine
from tests.known import known

MACHINE = Machine(
    name="m", source="a test", reduction=1e-9, copy=(2e-9, 5e-9), caches=(1000,),
    levels=(Level(name="all", ranks=None, latency=1e-6, gap=1e-10, overhead=0.0, ports=1),),
)  # fmt: skip
OPERATION = re.compile(r"(l\d+): (?:(send|recv) (\d+)b (to|from) (\d+) tag (\d+)|calc (\d+))")
REQUIREMENT = re.compile(r"(l\d+) requires (l\d+)")


@dataclass
class Operation:
    kind: str
    amount: int
    peer: int = -1
    tag: int = -1
    requires: list[str] = field(default_factory=list)


def parsed(text: str) -> list[dict[str, Operation]]:
    """Each rank's operations by label."""
    lines = deque(line for line in text.splitlines() if line)
    size = int(lines.popleft().removeprefix("num_ranks "))
    ranks: list[dict[str, Operation]] = []
    while lines:
        assert lines.popleft() == f"rank {len(ranks)} {{"
        found: dict[str, Operation] = {}
        while (line := lines.popleft()) != "}":
            requirement, operation = REQUIREMENT.fullmatch(line), OPERATION.fullmatch(line)
            if requirement:  # both labels must be known by then
                assert requirement[2] in found
                found[requirement[1]].requires.append(requirement[2])
                continue
            assert operation, line
            label, kind, size_, way, peer, tag, work = operation.groups()
            assert label not in found
            assert kind is None or way == {"send": "to", "recv": "from"}[kind]
            found[label] = (
                Operation("calc", int(work)) if kind is None else Operation(kind, int(size_), int(peer), int(tag))
            )
        ranks.append(found)
    assert len(ranks) == size
    return ranks


def carried_out(ranks: list[dict[str, Operation]]) -> None:
    """Every operation happens, and every message meets the receive of its tag and size; raises AssertionError."""
    done: list[set[str]] = [set() for _ in ranks]
    under_way: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    moved = True
    while moved:
        moved = False
        for r, operations in enumerate(ranks):
            for label, each in operations.items():
                if label in done[r] or not done[r].issuperset(each.requires):
                    continue
                if each.kind == "send":
                    under_way[r, each.peer, each.tag].append(each.amount)
                elif each.kind == "recv":
                    waiting = under_way[each.peer, r, each.tag]
                    if not waiting:
                        continue
                    assert waiting.pop(0) == each.amount
                done[r].add(label)
                moved = True
    assert all(len(d) == len(operations) for d, operations in zip(done, ranks, strict=True))
    assert not any(under_way.values())


def text_of(each: algorithms.Algorithm, p: int, nbytes: int, segments: int = 1) -> str:
    file = io.StringIO()
    goal.write(file, lambda r: each.schedule(r, p, 0, segments), p, nbytes, MACHINE)
    return file.getvalue()


@pytest.mark.parametrize("each", [pytest.param(a, id=f"{a.collective}-{a.name}") for a in algorithms.algorithms()])
def test_every_algorithm_can_be_carried_out(each: algorithms.Algorithm) -> None:
    for p in (1, 2, 5, 8):
        if each.declines(p, 0):
            continue
        for segments in (1, 3) if each.pipelined else (1,):
            ranks = parsed(text_of(each, p, 1 << 12, segments))
            carried_out(ranks)
            sends = sum(o.kind == "send" for operations in ranks for o in operations.values())
            steps = [s for r in range(p) for s in each.schedule(r, p, 0, segments).steps]
            assert sends == sum(type(a).__name__ == "Send" for s in steps for a in s)


def test_what_is_written() -> None:
    first = text_of(known("allreduce", "ring"), 2, 1000).split("rank 1")[0]
    assert first == (
        "num_ranks 2\n\nrank 0 {\n"
        "l1: send 500b to 1 tag 0\nl2: recv 500b from 1 tag 0\nl3: calc 500\nl3 requires l2\n"
        "l4: calc 0\nl4 requires l1\nl4 requires l3\n"
        "l5: send 500b to 1 tag 1\nl5 requires l4\nl6: recv 500b from 1 tag 1\nl6 requires l4\n"
        "}\n\n"
    )


def test_copies_and_signals() -> None:
    gathers, barrier = known("allgather", "ring"), known("barrier", "dissemination")
    assert "l1: calc 1000\n" in text_of(gathers, 2, 1000)
    assert "l1: calc 5000\n" in text_of(gathers, 2, 2000)  # beyond the caches
    assert "send 1b to 1 tag 0" in text_of(barrier, 2, 0)
