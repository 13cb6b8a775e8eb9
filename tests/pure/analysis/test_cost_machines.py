"""Machines: what their descriptions mean, and what is refused, with the field named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpicoll.analysis.cost.machines import Dragonfly, FatTree, Machine, Torus
from mpicoll.analysis.cost.presets import MACHINES, from_dict, read
from mpicoll.errors import ArgumentError


def described(**changes: Any) -> dict[str, Any]:
    """A machine of nodes of 4 ranks, in pods of 8, with one thing changed."""
    level = {"latency": 1e-6, "gap": 1e-10, "overhead": 0.0, "ports": 1}
    levels = [{"name": name, "ranks": ranks, **level} for name, ranks in (("node", 4), ("pod", 8), ("all", None))]
    return {"name": "m", "source": "a test", "levels": levels, "reduction": 0.0, "copy": 0.0, **changes}


NETWORKS = (
    FatTree(units=(16, 64), uplinks=(8, 32), hop=1e-7),
    Dragonfly(units=8, links=2),
    Torus(dims=(4, 4, 2), hop=5e-8),
)
OUTER = from_dict(described()).levels[-1]
JOINED = [replace(from_dict(described()), levels=(replace(OUTER, network=network),)) for network in NETWORKS]


@pytest.mark.parametrize("machine", [*MACHINES.values(), *JOINED])
def test_a_file_gives_the_machine_again(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(machine.as_dict()))
    assert read(file) == machine


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(
        'name = "two"\nsource = "here"\nreduction = 1e-10\ncopy = [1e-10, 3e-10]\ncaches = [1048576]\n'
        '[[levels]]\nname = "node"\nranks = 2\nlatency = 1e-6\ngap = 1e-10\noverhead = 0\nports = 1\n'
        '[[levels]]\nname = "all"\nranks = 64\nlatency = 2e-6\ngap = 1e-9\noverhead = 0\nports = 1\n'
        'network = {kind = "torus", dims = [4, 8]}\n'
    )
    machine = read(file)
    assert machine.levels[1].network == Torus(dims=(4, 8))
    assert (machine.copy, machine.levels[1].ranks, machine.period) == ((1e-10, 3e-10), 64, 2)
    with pytest.raises(ArgumentError, match="-n: expected at most the 64 ranks of two; given 65"):
        machine.positions(65)


def level(i: int, **changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda machine: machine["levels"][i].update(changes)


def fat_tree(units: list[int], uplinks: list[int]) -> dict[str, Any]:
    return {"kind": "fat-tree", "units": units, "uplinks": uplinks}


WRONG: list[tuple[str, str, Callable[[dict[str, Any]], object]]] = [
    ("machine.levels[1].latency", "-1", level(1, latency=-1)),
    ("machine.levels[0].gap", "inf", lambda m: (m.update(caches=[8]), level(0, gap=[1e-9, float("inf")])(m))),
    ("machine.levels[0].gap", "[1e-09, 1e-09]", level(0, gap=[1e-9, 1e-9])),
    ("machine.levels[0].ports", "1.5", level(0, ports=1.5)),
    ("machine.levels[0].ranks", "None", level(0, ranks=None)),
    ("machine.levels[1].ranks", "6", level(1, ranks=6)),
    ("machine.levels[1].speed", "3", level(1, speed=3)),
    ("machine.levels[2].latency", "nothing", lambda m: m["levels"][2].pop("latency")),
    ("machine.levels[2].network", "3", level(2, network=3)),
    ("machine.levels[2].network.kind", "None", level(2, network={})),
    ("machine.levels[2].network.dims", "8", level(2, network={"kind": "torus", "dims": 8})),
    ("machine.levels[2].network.dims", "1", level(2, network={"kind": "torus", "dims": [4, 1]})),
    ("machine.levels[2].network.units", "2", level(2, network={"kind": "torus", "dims": [4], "units": 2})),
    ("machine.levels[1].ranks", "16", level(1, network={"kind": "torus", "dims": [3]}, ranks=16)),
    ("machine.levels[2].network.links", "0", level(2, network={"kind": "dragonfly", "units": 4, "links": 0})),
    ("machine.levels[2].network.units", "[4, 6]", level(2, network=fat_tree([4, 6], [1, 1]))),
    ("machine.levels[2].network.uplinks", "[1]", level(2, network=fat_tree([4, 8], [1]))),
    ("machine.levels", "[]", lambda m: m.update(levels=[])),
    ("machine.reduction", "True", lambda m: m.update(reduction=True)),
    ("machine.eager", "-5", lambda m: m.update(eager=-5)),
    ("machine.caches", "1048576", lambda m: m.update(caches=1048576)),
    ("machine.caches", "'1M'", lambda m: m.update(caches=["1M"])),
    ("machine.caches", "[8, 4]", lambda m: m.update(caches=[8, 4])),
    ("machine.copy", "[1e-09, 2e-09]", lambda m: m.update(copy=[1e-9, 2e-9])),
    ("machine.placement", "'random'", lambda m: m.update(placement="random")),
    ("machine.colour", "'red'", lambda m: m.update(colour="red")),
]


@pytest.mark.parametrize(("field", "given", "spoil"), WRONG)
def test_impossible_machines(field: str, given: str, spoil: Callable[[dict[str, Any]], object]) -> None:
    machine = described()
    from_dict(machine)
    spoil(machine)
    with pytest.raises(ArgumentError) as e:
        from_dict(machine)
    assert (e.value.operation, e.value.argument, e.value.given) == ("simulate", field, given)


@pytest.mark.parametrize("text", ["{", "3", "[]"])
def test_what_is_no_description(text: str, tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text(text)
    with pytest.raises(ArgumentError, match="machine"):
        read(file)


def test_places() -> None:
    machine = from_dict(described())
    assert machine.positions(5).tolist() == [0, 1, 2, 3, 4]
    assert machine.level(np.array([0, 0, 0, 0]), np.array([3, 4, 7, 8])).tolist() == [0, 1, 1, 2]
    dealt = replace(machine, placement="round-robin").positions(16)
    assert dealt.tolist() == [0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15]
    assert len(set(replace(machine, placement="round-robin").positions(21).tolist())) == 21
