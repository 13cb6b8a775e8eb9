"""The cost model against closed forms, and itself without its shortcuts. Messages that share a link wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mpicoll import algorithms
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Copy, Recv, RecvReduce, Schedule, Send, Step, one
from mpicoll.analysis.cost import simulation
from mpicoll.analysis.cost.machines import Dragonfly, FatTree, Level, Machine, Network, Torus
from mpicoll.analysis.cost.presets import MACHINES
from mpicoll.analysis.cost.simulation import Structure, costs, simulated
from mpicoll.errors import ScheduleError

A, B, G, N = 2e-6, 1e-10, 3e-11, 1e6
"""Seconds of a message, of each byte sent and combined; and the bytes of most vectors here."""


def flat(**others: object) -> Machine:
    """One level: a message takes A + n B."""
    level = Level(name="all", ranks=None, latency=A, gap=B, overhead=0.0, ports=1)
    return replace(Machine(name="flat", source="a test", levels=(level,), reduction=G, copy=0.0), **others)  # type: ignore[arg-type]


def joined(network: Network | None, node: int = 1, ports: int = 1) -> Machine:
    """Nodes of so many ranks and ports, joined by the network. Within a node messages take no time."""
    inner = Level(name="node", ranks=node, latency=0.0, gap=0.0, overhead=0.0, ports=1)
    outer = Level(name="all", ranks=None, latency=A, gap=B, overhead=0.0, ports=ports, network=network)
    return Machine(name="joined", source="a test", levels=(inner, outer), reduction=0.0, copy=0.0)


def seconds(machine: Machine, *steps: Sequence[Step], n: float = N, blocks: int = 1) -> float:
    schedules = [Schedule("allreduce", "made up", blocks, tuple(each)) for each in steps]
    return float(simulated(schedules.__getitem__, len(steps), machine, np.array([n]))[0])


def time_of(machine: Machine, messages: Sequence[tuple[int, int]], size: int) -> float:
    """Each rank names all its messages, from one rank to another, in one step."""

    def step(rank: int) -> Step:
        sends = (Send(b, one(0), INPUT) for a, b in messages if a == rank)
        return (*sends, *(Recv(a, one(0), OUTPUT) for a, b in messages if b == rank))

    return seconds(machine, *([step(rank)] for rank in range(size)))


@pytest.mark.parametrize("power", [1, 3, 6])
def test_closed_forms(power: int) -> None:
    p, n = 1 << power, 1 << 16
    hop, share, all_but_one = A + n * B, n / p, (p - 1) / p * n
    expected = {
        ("bcast", "binomial_tree"): power * hop,
        ("reduce", "binomial_tree"): power * (hop + n * G),
        ("scatter", "binomial_tree"): power * A + all_but_one * B,
        ("gather", "binomial_tree"): power * A + all_but_one * B,
        ("allgather", "ring"): (p - 1) * (A + share * B),
        ("allgather", "bruck"): power * A + all_but_one * B,
        ("alltoall", "pairwise"): (p - 1) * (A + share * B),
        ("reduce_scatter", "recursive_halving"): power * A + all_but_one * (B + G),
        ("allreduce", "recursive_doubling"): power * (hop + n * G),
        ("allreduce", "ring"): 2 * (p - 1) * (A + share * B) + all_but_one * G,
        ("allreduce", "rabenseifner"): 2 * power * A + 2 * all_but_one * B + all_but_one * G,
        ("barrier", "dissemination"): power * A,
    }
    found = {each: float(costs(*each, p, flat(), [n]).seconds[0]) for each in expected}
    assert found == pytest.approx(expected)


def test_overheads_steps_and_copies() -> None:
    level = replace(flat().levels[0], overhead=5e-7)
    machine = flat(levels=(level,), step=1e-6, copy=2e-10, copy_overhead=4e-7, reduction_overhead=3e-7)
    sent, taken = [(Send(1, one(0), INPUT),)], [(RecvReduce(0, one(0), INPUT, OUTPUT, True),)]
    hop = 1e-6 + 2 * 5e-7 + A + 1e6 * (B + G) + 3e-7
    assert seconds(machine, sent, taken) == pytest.approx(hop)
    assert seconds(machine, sent, [*taken, (Copy(one(0), OUTPUT, SCRATCH),)]) == pytest.approx(hop + 4e-7 + 2e-4)


def test_a_long_message_asks_first() -> None:
    late: list[Step] = [(Recv(2, one(0), OUTPUT),), (Recv(0, one(0), OUTPUT),)]
    steps: list[list[Step]] = [[(Send(1, one(0), INPUT),)], late, [(Send(1, one(0), INPUT),)]]
    assert seconds(flat(eager=10), steps[0], late[1:]) == pytest.approx(3 * A + 1e-4)
    assert seconds(flat(), *steps) == pytest.approx(A + 2e-4)  # the second waits for the port alone
    assert seconds(flat(eager=10), *steps) == pytest.approx(5 * A + 2e-4)  # it is answered late


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("rate", [B / 4, 4 * B])
def test_a_long_reduction_overlaps_its_transfer(overlap: bool, rate: float) -> None:
    n, piece = 8e6, simulation.PIECE
    machine = flat(levels=(replace(flat().levels[0], overlap=overlap),), reduction=rate)
    found = seconds(machine, [(Send(1, one(0), INPUT),)], [(RecvReduce(0, one(0), INPUT, OUTPUT, True),)], n=n)
    together = max(n * B + piece * rate, piece * B + n * rate)
    assert found == pytest.approx(A + (together if overlap else n * B + n * rate))


def test_vectors_beyond_the_caches_are_slower() -> None:
    machine = flat(levels=(replace(flat().levels[0], gap=(B, 3 * B)),), reduction=(G, 2 * G), caches=(1 << 20,))
    found = costs("allreduce", "recursive_doubling", 2, machine, [1 << 20, 1 << 21]).seconds
    assert found == pytest.approx([A + (1 << 20) * (B + G), A + (1 << 21) * 3 * B + simulation.PIECE * 2 * G])


@pytest.mark.parametrize(("ports", "at_once"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_ranks_of_a_node_share_its_ports(ports: int, at_once: int) -> None:
    assert time_of(joined(None, 4, ports), [(r, r + 4) for r in range(4)], 8) == pytest.approx(A + at_once * N * B)


def test_a_rank_with_several_ports_uses_them_at_once() -> None:
    for ports in (1, 2, 4):
        level = replace(flat().levels[0], ports=ports)
        found = time_of(flat(levels=(level,)), [(0, r) for r in range(1, 5)], 5)
        assert found == pytest.approx(A + 4 // ports * N * B)


def test_ranks_that_share_cores_take_turns() -> None:
    """Three ranks for two cores: their work takes 3/2 times as long, and what the network does does not."""
    node = Level(name="node", ranks=3, latency=A, gap=(B, 2 * B), overhead=5e-7, ports=1, overlap=False)
    cluster = Level(name="cluster", ranks=None, latency=3 * A, gap=3 * B, overhead=7e-7, ports=3)
    machine = flat(
        levels=(node, cluster), cores=2, step=1e-6, reduction=(G, 2 * G), reduction_overhead=3e-7, caches=(1 << 23,)
    )
    sends, receives = [(Send(1, one(0), INPUT),)], [(RecvReduce(0, one(0), INPUT, OUTPUT, True),)]
    within = 1e-6 + 2 * 5e-7 + 1e6 * (B + G) + 3e-7
    assert seconds(machine, sends, receives, []) == pytest.approx(A + 1.5 * within)
    assert seconds(machine, sends, receives) == pytest.approx(A + within)  # each has a core of its own
    to_3, from_0 = [(Send(3, one(0), INPUT),)], [(Recv(0, one(0), OUTPUT),)]
    assert seconds(machine, to_3, [], [], from_0) == pytest.approx(3 * A + 1e6 * 3 * B + 1.5 * (1e-6 + 2 * 7e-7))
    copying = flat(levels=(node,), cores=1, copy=2e-10, copy_overhead=4e-7)
    assert seconds(copying, [(Copy(one(0), OUTPUT, SCRATCH),)], []) == pytest.approx(2 * (4e-7 + 2e-4))


# -- every algorithm ------------------------------------------------------------------------------------------------

EVERY = [pytest.param(a, id=f"{a.collective}-{a.name}") for a in algorithms.algorithms()]
NODE, CLUSTER = MACHINES["ethernet"].levels
SHARED = replace(MACHINES["ethernet"], levels=(replace(NODE, ranks=4), replace(NODE, name="pod", ranks=8), CLUSTER))
KINDS = {"flat": flat(), "ib-h100": MACHINES["ib-h100"], "ports shared at two levels": SHARED}


@pytest.mark.slow
@pytest.mark.parametrize("machine", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("each", EVERY)
def test_symmetry_changes_nothing(each: algorithms.Algorithm, machine: Machine) -> None:
    for p in (16, 24, 48, 64):
        if each.declines(p, 0):
            continue
        sizes = np.array([64.0, 1e5, 1e7])
        schedules = [each.schedule(r, p) for r in range(p)]
        short = simulated(schedules.__getitem__, p, machine, sizes)
        full = Structure(schedules.__getitem__, p).seconds(machine, sizes)
        # Ranks that are ready at the same moment take a shared port in another order: the last may be another one.
        assert short == pytest.approx(full, rel=0.25 if machine is SHARED else 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("each", EVERY)
def test_sizes_are_costed_together_as_each_alone(each: algorithms.Algorithm) -> None:
    """A long vector is cut into more segments, whatever sizes are asked for beside it."""
    sizes = [1 << k for k in range(10, 25, 2)]
    together = costs(each.collective, each.name, 6, MACHINES["laptop"], sizes).seconds
    alone = [costs(each.collective, each.name, 6, MACHINES["laptop"], [n]).seconds[0] for n in sizes]
    assert together.tolist() == alone


# -- large and wrong ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["binomial_tree", "binary_tree"])
def test_a_hundred_thousand_ranks(name: str) -> None:
    found = costs("allreduce", name, 100_000, MACHINES["ib-h100"], [1 << 10]).seconds[0]
    least = 2 * np.log2(100_000 / 8) * 2.7e-6  # up and down a tree whose upper part crosses the network
    assert least < found < 5 * least


def test_a_wrong_schedule_is_refused() -> None:
    with pytest.raises(ScheduleError, match="does not meet a receive"):
        seconds(flat(), [(Send(1, one(0), INPUT),)], [])
    with pytest.raises(ScheduleError, match="does not meet a receive"):
        seconds(flat(), [(Send(1, one(0), INPUT),)], [(Recv(0, (range(2),), OUTPUT),)], blocks=2)
    first, then = (Recv(1, one(0), OUTPUT),), (Send(1, one(0), INPUT),)
    with pytest.raises(ScheduleError, match="waits forever"):
        seconds(flat(), [first, then], [(Recv(0, one(0), OUTPUT),), (Send(0, one(0), INPUT),)])


# -- networks -------------------------------------------------------------------------------------------------------


def shift(by: int, size: int) -> list[tuple[int, int]]:
    return [(rank, (rank + by) % size) for rank in range(size)]


@pytest.mark.parametrize(("uplinks", "at_once"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_the_nodes_of_a_switch_share_its_links(uplinks: int, at_once: int) -> None:
    machine = joined(FatTree(units=(4,), uplinks=(uplinks,)))
    assert time_of(machine, [(i, i + 4) for i in range(4)], 8) == pytest.approx(A + at_once * N * B)
    all_alike = shift(4, 16)  # which one rank would represent if they shared no link
    assert time_of(machine, all_alike, 16) == pytest.approx(A + at_once * N * B)
    assert time_of(machine, [(i, i ^ 1) for i in range(8)], 8) == pytest.approx(A + N * B)


def test_a_fat_tree_of_two_stages() -> None:
    """Two leaves of two nodes are a pod, which has one link."""
    machine = joined(FatTree(units=(2, 4), uplinks=(2, 1)))
    assert time_of(machine, [(0, 2), (1, 3)], 8) == pytest.approx(A + N * B)
    assert time_of(machine, [(0, 4), (1, 5)], 8) == pytest.approx(A + 2 * N * B)
    assert time_of(machine, [(0, 4), (2, 7)], 8) == pytest.approx(A + 2 * N * B)
    assert time_of(machine, [(0, 4), (4, 0)], 8) == pytest.approx(A + N * B)


@pytest.mark.parametrize(("links", "at_once"), [(1, 4), (2, 2), (4, 1)])
def test_groups_of_a_dragonfly_exchange_over_their_links(links: int, at_once: int) -> None:
    machine = joined(Dragonfly(units=4, links=links))
    exchange = [(i, i ^ 4) for i in range(8)]
    assert time_of(machine, exchange, 12) == pytest.approx(A + at_once * N * B)
    assert time_of(machine, [(0, 4), (1, 8)], 12) == pytest.approx(A + N * B)  # each pair of groups has its own links
    assert time_of(machine, [(0, 1), (2, 3)], 12) == pytest.approx(A + N * B)


def test_a_torus_routes_one_dimension_after_the_other() -> None:
    """Unit 5 is the first one of the second row. A message from 0 to 6 goes by 5, and not by 1."""
    machine = joined(Torus(dims=(5, 5)))
    assert time_of(machine, [(0, 6), (5, 7)], 25) == pytest.approx(A + 2 * N * B)
    assert time_of(machine, [(0, 6), (1, 11)], 25) == pytest.approx(A + N * B)
    rows = [(i * 5 + j, i * 5 + (j + 2) % 5) for i in range(5) for j in range(5)]
    assert time_of(machine, rows, 25) == pytest.approx(A + 2 * N * B)


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
    assert time_of(machine, [(0, target)], 8) == pytest.approx(A + links * 1e-5 + N * B)
    asked = time_of(replace(machine, eager=0), [(0, target)], 8)
    assert asked == pytest.approx(3 * (A + links * 1e-5) + N * B)


def test_each_port_of_a_node_has_its_own_way() -> None:
    """Two nodes of four ranks are a switch. Its links are chosen by ports, of which each node has as many as ranks."""
    tree = FatTree(units=(2,), uplinks=(8,))
    assert time_of(joined(tree, node=4, ports=4), shift(8, 16), 16) == pytest.approx(A + N * B)
    half = replace(tree, uplinks=(4,))
    assert time_of(joined(half, node=4, ports=4), shift(8, 16), 16) == pytest.approx(A + 2 * N * B)


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
