"""``mpicoll simulate``, ``algorithms`` and ``verify``, and where --nodes says that ranks are."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mpicoll import algorithms
from mpicoll.algorithms import find
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import Place, Steps
from mpicoll.analysis.cost.presets import MACHINES
from mpicoll.calls import choose
from mpicoll.cli import main

Capture = pytest.CaptureFixture[str]


def simulated(capsys: Capture, words: str) -> str:
    """What ``mpicoll simulate`` prints."""
    assert main(["simulate", *words.split()]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_fastest_is_marked(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    shown = simulated(capsys, f"all_reduce -n 64 --machine ib-h100 --sizes 1K:1G --json {file}")
    found = json.loads(file.read_text())
    assert found["sizes"] == [1 << k for k in range(10, 31)]
    assert list(found["seconds"]) == [a.name for a in algorithms.algorithms("allreduce") if not a.declines(64, 0)]
    assert found["machine"] == json.loads(json.dumps(MACHINES["ib-h100"].as_dict()))
    for i, row in enumerate(shown.splitlines()[2 : 2 + 21]):
        times = {name: t[i] for name, t in found["seconds"].items()}
        cells = re.findall(r"\d\S* (?:us|ms|s)\*?", row)
        (marked,) = [name for name, cell in zip(times, cells, strict=True) if cell.endswith("*")]
        assert times[marked] == min(times.values())
        (fastest,) = [f["algorithm"] for f in found["fastest"] if f["first"] <= found["sizes"][i] <= f["last"]]
        assert fastest == marked
    assert all(f"{f['algorithm']}" in shown for f in found["fastest"])
    assert len({f["algorithm"] for f in found["fastest"]}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_chart(suffix: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"crossover.{suffix}"
    simulated(capsys, f"allreduce -n 16 --sizes 1K:1M --plot {file}")
    assert file.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])


def test_a_machine_from_a_file(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "mine.json"
    level = {"name": "all", "ranks": 8, "latency": 1.0, "gap": 0.0, "overhead": 0.0, "ports": 1}
    machine = {"name": "mine", "source": "a test", "levels": [level], "reduction": 0.0, "copy": 0.0}
    file.write_text(json.dumps(machine))
    assert "3 s*" in simulated(capsys, f"bcast -n 8 --machine {file} --sizes 8 --algorithms binomial_tree")
    assert main(["simulate", "bcast", "-n", "9", "--machine", str(file)]) == 2
    assert "-n: expected at most the 8 ranks of mine; given 9" in capsys.readouterr().err
    file.write_text(json.dumps({**machine, "levels": [{**level, "latency": -1.0}]}))
    assert main(["simulate", "bcast", "-n", "8", "--machine", str(file)]) == 2
    assert "machine.levels[0].latency: expected seconds, at least 0; given -1.0" in capsys.readouterr().err


def test_draw_says_where_the_ranks_are(tmp_path: Path) -> None:
    file = tmp_path / "drawn.svg"
    for options, nodes in ((), "0 1 | 2 3"), (("--nodes", "0,1,0,1"), "0 2 | 1 3"):
        assert main(["draw", "bcast", "two_level", "-n", "4", "-o", str(file), *options]) == 0
        assert f"nodes {nodes}" in file.read_text()


def test_simulate_places_the_ranks_on_the_machine(tmp_path: Path) -> None:
    """Where the ranks are dealt out, each message of a ring goes between nodes, and two-level algorithms win."""
    record, described, fastest = tmp_path / "record", tmp_path / "machine.json", {}
    options = ["-n", "8", "--algorithms", "two_level,ring", "--sizes", "16M", "--json", str(record), "--machine"]
    assert main(["simulate", "allreduce", *options, "ethernet", "--nodes", "2"]) == 0
    machine = json.loads(record.read_text())["machine"]
    assert (machine["levels"][0]["ranks"], machine["placement"]) == (4, "block")
    for how in ("block", "round-robin"):
        described.write_text(json.dumps(machine | {"placement": how}))
        assert main(["simulate", "allreduce", *options, str(described)]) == 0
        fastest[how] = json.loads(record.read_text())["seconds"]
    ring, two_level = ({how: seconds[name][0] for how, seconds in fastest.items()} for name in ("ring", "two_level"))
    assert two_level["block"] == pytest.approx(two_level["round-robin"], rel=0.01)
    assert ring["round-robin"] > 1.5 * two_level["round-robin"]
    assert ring["round-robin"] > 1.5 * ring["block"]


def output(capsys: Capture, *argv: str, code: int = 0) -> str:
    assert main(argv) == code
    return capsys.readouterr().out


def test_the_list_has_the_names_that_algorithm_takes(capsys: Capture) -> None:
    found = dict(re.findall(r"^(\w+ \w+)\n((?:    .*\n)+)", output(capsys, "algorithms"), re.MULTILINE))
    assert [*found] == [f"{c} {name}" for c in COLLECTIVES for name in choose.names(c)]
    assert output(capsys, "algorithms", "all_reduce").startswith("allreduce native\n")
    uneven = {name for name, said in found.items() if f"{name.split()[0]}v" in said}
    assert {"allgather native", "allgather ring", "reduce_scatter exchange"} <= uneven
    assert not uneven & {"alltoall bruck", "allreduce native", "bcast binomial_tree"}
    for name, said in found.items():
        assert said.splitlines()[0].endswith(".")
        assert ("    source  " in said) == ("    cost    " in said) == (find(*name.split()) is not None)
    assert "    cost    2(p-1) a" in found["allreduce ring"]
    assert "Patarasuk" in found["allreduce ring"]
    assert "pipelined in segments of 1024 KiB" in found["allreduce segmented_ring"]


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
