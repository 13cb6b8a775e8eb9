"""``mpicoll algorithms`` and ``mpicoll verify``."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from mpicoll import algorithms
from mpicoll.algorithms import find
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import Place, Steps
from mpicoll.calls import choose
from mpicoll.cli import main

Capture = pytest.CaptureFixture[str]


def output(capsys: Capture, *argv: str, code: int = 0) -> str:
    assert main(argv) == code
    return capsys.readouterr().out


def test_json_lists_the_names_that_algorithm_takes(capsys: Capture) -> None:
    found = json.loads(output(capsys, "algorithms", "--json"))
    names = [(each["collective"], each["name"]) for each in found]
    assert names == [(c, name) for c in COLLECTIVES for name in choose.names(c)]
    by_name = dict(zip(names, found, strict=True))
    assert by_name["allreduce", "native"]["cost"] is None
    assert by_name["allreduce", "ring"]["cost"].startswith("2(p-1) a")
    assert "Patarasuk" in by_name["allreduce", "ring"]["source"]
    assert by_name["allreduce", "segmented_ring"]["segment"] == 1 << 20
    uneven = {name for name, each in by_name.items() if f"{each['collective']}v" in each["constraints"]}
    assert {("allgather", "native"), ("allgather", "ring"), ("reduce_scatter", "exchange")} <= uneven
    assert not uneven & {("alltoall", "bruck"), ("allreduce", "native"), ("bcast", "binomial_tree")}
    for each in found:
        assert each["summary"].endswith(".")
        assert (each["source"] is None) == (find(each["collective"], each["name"]) is None)


def test_one_algorithm_is_proved(capsys: Capture) -> None:
    head, line = output(capsys, "verify", "all_reduce", "ring", "-n", "1:9").splitlines()
    assert head.split() == ["collective", "algorithm", "ranks", "roots", "messages", "depth", "seconds"]
    assert head.index("ranks") + len("ranks") == line.index("1:9") + len("1:9")
    assert line.split()[:-1] == ["allreduce", "ring", "1:9", "-", str(2 * 9 * 8), "8"]
    assert re.fullmatch(r"\d+\.\d\d", line.split()[-1])
    line = output(capsys, "verify", "reduce", "binomial_tree", "-n", "20").splitlines()[1]
    assert line.split()[:-1] == ["reduce", "binomial_tree", "20", "every", "to", "16", "19", "5"]


def test_all_are_proved(capsys: Capture) -> None:
    lines = output(capsys, "verify", "--all", "-n", "1:4").splitlines()[1:]
    assert [tuple(line.split()[:2]) for line in lines] == [(a.collective, a.name) for a in algorithms.algorithms()]
    lines = output(capsys, "verify", "bcast", "-n", "2:3").splitlines()[1:]
    assert [line.split()[1] for line in lines] == [a.name for a in algorithms.algorithms("bcast")]


@pytest.mark.usefixtures("registry")
def test_a_failure_is_said_and_ends_with_1(capsys: Capture) -> None:
    right = find("reduce", "binomial_tree")
    assert right is not None

    def silent(at: Place) -> Steps:
        return iter(()) if at.rank == 2 else right.steps(at)

    algorithms.add(replace(right, name="silent", steps=silent))
    assert main(["verify", "reduce", "-n", "1:4"]) == 1
    captured = capsys.readouterr()
    problem = "rank 0, step 1, block 0: waits forever for a message from rank 2"
    first, *_, last = captured.err.splitlines()
    assert first == f"mpicoll: reduce silent of 3 ranks, root 0: {problem}"
    assert last == "  rank 2: has no message left that it sends to rank 0"
    others = [["reduce", a.name] for a in algorithms.algorithms("reduce") if a.name != "silent"]
    assert [line.split()[:2] for line in captured.out.splitlines()[1:]] == others
