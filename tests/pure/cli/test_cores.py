"""How the cores of a node are shared, on machines that are only described."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpicoll.launch import cores
from mpicoll.units import ranges


def machine(folder: Path, numa: list[int], siblings: list[str]) -> list[list[int]]:
    """The cores of a machine whose CPU i is on the NUMA node ``numa[i]``."""
    for cpu, (node, shared) in enumerate(zip(numa, siblings, strict=True)):
        (folder / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu/cpu{cpu}/node{node}").mkdir()
        (folder / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(shared)
    return cores.physical(range(len(numa)))


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cores, "_SYSTEM", tmp_path)


def test_shares_are_equal_and_on_one_numa_node(tmp_path: Path) -> None:
    """CPUs 8 to 15 are the second threads of the cores 0 to 7, and cores alternate between the sockets."""
    found = machine(tmp_path, [0, 1] * 8, [f"{i},{i + 8}" for i in range(8)] * 2)
    assert len(found) == 8
    assert [ranges(sorted(cores.share(found, rank, 2))) for rank in range(2)] == [
        "0,2,4,6,8,10,12,14",
        "1,3,5,7,9,11,13,15",
    ]
    assert [sorted(cores.share(found, rank, 8)) for rank in (0, 1, 7)] == [[0, 8], [2, 10], [7, 15]]
    thirds = [cores.share(found, rank, 3) for rank in range(3)]
    assert sorted(map(len, thirds)) == [4, 6, 6]
    assert set().union(*thirds) == {*range(16)}, "no core is left out"
    assert all(cores.share(found, rank, 9) == {*range(16)} for rank in range(9))


@pytest.mark.parametrize(
    ("flags", "variables", "places"),
    [
        ([], [], False),
        (["--bind-to", "core"], [], True),
        (["-bind-to", "core"], [], True),
        (["--map-by", "slot:PE=4"], [], True),
        (["--mca", "rmaps_default_mapping_policy", "node"], [], True),
        (["-x", "NAME", "--verbose"], ["PRTE_MCA_prte_tmpdir_base"], False),
        ([], ["PRTE_MCA_hwloc_default_binding_policy"], True),
    ],
)
def test_what_the_user_says_of_places(flags: list[str], variables: list[str], places: bool) -> None:
    assert cores.places_ranks(flags, variables) == places
