"""GOAL text: read back by the grammar of LogGOPSim's txt2bin."""

from __future__ import annotations

import io
import re

import pytest

from mpicoll import algorithms
from mpicoll.algorithms.steps import Send
from mpicoll.analysis.cost import goal
from mpicoll.analysis.cost.machines import Level, Machine
from tests.known import known

MACHINE = Machine(
    name="m", source="a test", reduction=1e-9, copy=(2e-9, 5e-9), caches=(1000,),
    levels=(Level(name="all", ranks=None, latency=1e-6, gap=1e-10, overhead=0.0, ports=1),),
)  # fmt: skip
OPERATION = re.compile(r"(l\d+): (?:(send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)|calc (\d+))")
REQUIREMENT = re.compile(r"(l\d+) requires (l\d+)")

Message = tuple[int, int, int, int]
"""From which rank, to which, its tag and its bytes."""


def messages(text: str) -> dict[str, list[Message]]:
    """What the ranks send, and what they receive. An operation may require those above it alone."""
    head, *ranks = text.split("\nrank ")
    assert head == f"num_ranks {len(ranks)}\n"
    found: dict[str, list[Message]] = {"send": [], "recv": []}
    for rank, lines in enumerate(ranks):
        first, *body, last = lines.strip().splitlines()
        assert (first, last) == (f"{rank} {{", "}")
        known: set[str] = set()
        for line in body:
            if requirement := REQUIREMENT.fullmatch(line):
                assert set(requirement.groups()) <= known
                continue
            operation = OPERATION.fullmatch(line)
            assert operation, line
            label, kind, size, peer, tag, _ = operation.groups()
            assert label not in known
            known.add(label)
            if kind is not None:
                ends = (rank, int(peer)) if kind == "send" else (int(peer), rank)
                found[kind].append((*ends, int(tag), int(size)))
    return found


def text_of(each: algorithms.Algorithm, p: int, nbytes: int, segments: int = 1) -> str:
    file = io.StringIO()
    goal.write(file, lambda r: each.schedule(r, p, 0, segments), p, nbytes, MACHINE)
    return file.getvalue()


@pytest.mark.parametrize("each", [pytest.param(a, id=f"{a.collective}-{a.name}") for a in algorithms.algorithms()])
def test_every_message_meets_the_receive_of_its_tag_and_size(each: algorithms.Algorithm) -> None:
    for p in (1, 2, 5, 8):
        if each.declines(p, 0):
            continue
        for segments in (1, 3) if each.pipelined else (1,):
            found = messages(text_of(each, p, 1 << 12, segments))
            sends = found["send"]
            assert sorted(sends) == sorted(found["recv"])
            assert len({message[:3] for message in sends}) == len(sends)
            steps = [s for r in range(p) for s in each.schedule(r, p, 0, segments).steps]
            assert len(sends) == sum(isinstance(a, Send) for s in steps for a in s)


def test_what_is_written() -> None:
    first = text_of(known("allreduce", "ring"), 2, 1000).split("rank 1")[0]
    assert first == (
        "num_ranks 2\n\nrank 0 {\n"
        "l1: send 500b to 1 tag 0\nl2: recv 500b from 1 tag 0\nl3: calc 500\nl3 requires l2\n"
        "l4: calc 0\nl4 requires l1\nl4 requires l3\n"
        "l5: send 500b to 1 tag 1\nl5 requires l4\nl6: recv 500b from 1 tag 1\nl6 requires l4\n"
        "}\n\n"
    )
