"""Networks: messages that share a link wait for it, and a network with enough links changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from mpicoll import algorithms
from mpicoll.algorithms.steps import INPUT, OUTPUT, Recv, Schedule, Send, one
from mpicoll.analysis.cost.machines import Dragonfly, FatTree, Level, Machine, Network, Torus
from mpicoll.analysis.cost.presets import MACHINES
from mpicoll.analysis.cost.simulation import Structure, costs, simulated

A, B = 2e-6, 1e-10
N = 1e6


def joined(network: Network | None, node: int = 1, ports: int = 1) -> Machine:
    """Nodes of so many ranks and ports, joined by the network. Within a node messages take no time."""
    inner = Level(name="node", ranks=node, latency=0.0, gap=0.0, overhead=0.0, ports=1)
    outer = Level(name="all", ranks=None, latency=A, gap=B, overhead=0.0, ports=ports, network=network)
    return Machine(name="joined", source="a test", levels=(inner, outer), reduction=0.0, copy=0.0)


def schedules(messages: Iterable[tuple[int, int]], size: int) -> list[Schedule]:
    """Each rank names all its messages in one step."""
    known = list(messages)
    sends = [tuple(Send(b, one(0), INPUT) for a, b in known if a == rank) for rank in range(size)]
    receives = [tuple(Recv(a, one(0), OUTPUT) for a, b in known if b == rank) for rank in range(size)]
    return [Schedule("alltoall", "made up", 1, ((*s, *r),)) for s, r in zip(sends, receives, strict=True)]


def seconds(machine: Machine, messages: Iterable[tuple[int, int]], size: int) -> float:
    return float(simulated(schedules(messages, size).__getitem__, size, machine, np.array([N]))[0])


def shift(by: int, size: int) -> list[tuple[int, int]]:
    return [(rank, (rank + by) % size) for rank in range(size)]


@pytest.mark.parametrize(("uplinks", "at_once"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_the_nodes_of_a_switch_share_its_links(uplinks: int, at_once: int) -> None:
    machine = joined(FatTree(units=(4,), uplinks=(uplinks,)))
    assert seconds(machine, [(i, i + 4) for i in range(4)], 8) == pytest.approx(A + at_once * N * B)
    all_alike = shift(4, 16)  # which one rank would represent if they shared no link
    assert seconds(machine, all_alike, 16) == pytest.approx(A + at_once * N * B)
    assert seconds(machine, [(i, i ^ 1) for i in range(8)], 8) == pytest.approx(A + N * B)


def test_a_fat_tree_of_two_stages() -> None:
    """Two leaves of two nodes are a pod, which has one link."""
    machine = joined(FatTree(units=(2, 4), uplinks=(2, 1)))
    assert seconds(machine, [(0, 2), (1, 3)], 8) == pytest.approx(A + N * B)
    assert seconds(machine, [(0, 4), (1, 5)], 8) == pytest.approx(A + 2 * N * B)
    assert seconds(machine, [(0, 4), (2, 7)], 8) == pytest.approx(A + 2 * N * B)
    assert seconds(machine, [(0, 4), (4, 0)], 8) == pytest.approx(A + N * B)


@pytest.mark.parametrize(("links", "at_once"), [(1, 4), (2, 2), (4, 1)])
def test_groups_of_a_dragonfly_exchange_over_their_links(links: int, at_once: int) -> None:
    machine = joined(Dragonfly(units=4, links=links))
    exchange = [(i, i ^ 4) for i in range(8)]
    assert seconds(machine, exchange, 12) == pytest.approx(A + at_once * N * B)
    assert seconds(machine, [(0, 4), (1, 8)], 12) == pytest.approx(A + N * B)  # each pair of groups has its own links
    assert seconds(machine, [(0, 1), (2, 3)], 12) == pytest.approx(A + N * B)


def test_a_torus_routes_one_dimension_after_the_other() -> None:
    """Unit 5 is the first one of the second row. A message from 0 to 6 goes by 5, and not by 1."""
    machine = joined(Torus(dims=(5, 5)))
    assert seconds(machine, [(0, 6), (5, 7)], 25) == pytest.approx(A + 2 * N * B)
    assert seconds(machine, [(0, 6), (1, 11)], 25) == pytest.approx(A + N * B)
    rows = [(i * 5 + j, i * 5 + (j + 2) % 5) for i in range(5) for j in range(5)]
    assert seconds(machine, rows, 25) == pytest.approx(A + 2 * N * B)


@pytest.mark.parametrize(
    ("network", "target", "links"),
    [
        (FatTree(units=(2, 4), uplinks=(2, 4), hop=1e-5), 1, 0),
        (FatTree(units=(2, 4), uplinks=(2, 4), hop=1e-5), 3, 2),
        (FatTree(units=(2, 4), uplinks=(2, 4), hop=1e-5), 7, 4),
        (Dragonfly(units=4, links=1, hop=1e-5), 3, 0),
        (Dragonfly(units=4, links=1, hop=1e-5), 4, 1),
        (Torus(dims=(2, 4), hop=1e-5), 6, 3),
        (Torus(dims=(2, 4), hop=1e-5), 3, 1),
    ],
)
def test_each_link_adds_to_the_latency(network: Network, target: int, links: int) -> None:
    machine = joined(network)
    assert seconds(machine, [(0, target)], 8) == pytest.approx(A + links * 1e-5 + N * B)
    asked = seconds(replace(machine, eager=0), [(0, target)], 8)
    assert asked == pytest.approx(3 * (A + links * 1e-5) + N * B)


def test_each_port_of_a_node_has_its_own_way() -> None:
    """Two nodes of four ranks are a switch. Its links are chosen by ports, of which each node has as many as ranks."""
    tree = FatTree(units=(2,), uplinks=(8,))
    assert seconds(joined(tree, node=4, ports=4), shift(8, 16), 16) == pytest.approx(A + N * B)
    half = replace(tree, uplinks=(4,))
    assert seconds(joined(half, node=4, ports=4), shift(8, 16), 16) == pytest.approx(A + 2 * N * B)


def test_an_all_to_all_is_bounded_by_the_links_between_the_halves() -> None:
    """Each switch of 8 nodes sends what the other 24 nodes get from it over its links."""
    n, p, units = 1 << 22, 32, 8
    least = {uplinks: units * (p - units) * n / p * B / uplinks for uplinks in (1, 2, 4, 8)}
    for uplinks, bound in least.items():
        machine = joined(FatTree(units=(units,), uplinks=(uplinks,)))
        for name in ("linear", "pairwise"):
            found = costs("alltoall", name, p, machine, [n]).seconds[0]
            assert found >= bound
            if uplinks < units:
                assert found < 1.5 * bound + p * A


# -- a network that is large enough -----------------------------------------------------------------------------------

EVERY = [pytest.param(a, id=f"{a.collective}-{a.name}") for a in algorithms.algorithms()]
SIZE = 24
ENOUGH = {"a fat tree": FatTree(units=(2, 6), uplinks=(SIZE, SIZE)), "a dragonfly": Dragonfly(units=3, links=SIZE)}


@pytest.mark.slow
@pytest.mark.parametrize("network", ENOUGH.values(), ids=ENOUGH)
@pytest.mark.parametrize("each", EVERY)
def test_enough_links_change_nothing(each: algorithms.Algorithm, network: Network) -> None:
    if each.declines(SIZE, 0):
        pytest.skip(f"does not serve {SIZE} ranks")
    node, cluster = MACHINES["ethernet"].levels
    every = [each.schedule(rank, SIZE) for rank in range(SIZE)]
    all_ranks = Structure(every.__getitem__, SIZE)

    def times(outer: Level) -> list[float]:
        machine = replace(MACHINES["ethernet"], levels=(replace(node, ranks=2), outer), eager=1 << 14)
        sizes = np.array([64.0, 1e5, 1e7])
        found: list[float] = all_ranks.seconds(machine, sizes).tolist()
        return found

    assert times(replace(cluster, network=network)) == pytest.approx(times(cluster), rel=1e-12)
