"""Two-level algorithms, wherever the ranks are: proved, and no more between nodes than there must be."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpicoll
from mpicoll.algorithms import Algorithm, algorithms, schedule
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import OUTPUT, Nodes, Place, Send, Steps, one, per_rank
from mpicoll.analysis.proof.cases import placements, prove
from mpicoll.calls.choose import names
from mpicoll.errors import ScheduleError
from tests.known import known

TWO_LEVEL = [a for a in algorithms() if a.name == "two_level"]
anywhere = st.lists(st.integers(0, 4), min_size=2, max_size=12).map(Nodes.named)
each = pytest.mark.parametrize("algorithm", TWO_LEVEL, ids=lambda a: a.collective)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(nodes=anywhere, segments=st.integers(1, 3), data=st.data())
@each
def test_it_is_right_wherever_the_ranks_are(
    algorithm: Algorithm, nodes: Nodes, segments: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, nodes.size - 1)) if COLLECTIVES[algorithm.collective].rooted else 0
    prove(algorithm, nodes.size, root, segments if algorithm.pipelined else 1, nodes)


def between_nodes(algorithm: Algorithm, nodes: Nodes, root: int = 0) -> tuple[list[float], list[float]]:
    """What each node sends to other nodes, and receives from them, as parts of the vector."""
    sends, receives = Counter[int](), Counter[int]()
    blocks = 1
    for rank in range(nodes.size):
        found = algorithm.schedule(rank, nodes.size, root, 1, nodes)
        blocks = found.blocks
        for action in (a for step in found.steps for a in step if isinstance(a, Send)):
            if (here := nodes.of[rank]) != (there := nodes.of[action.peer]):
                sends[here] += sum(map(len, action.blocks))
                receives[there] += sum(map(len, action.blocks))
    each_node = range(len(nodes.ranks))
    return [sends[node] / blocks for node in each_node], [receives[node] / blocks for node in each_node]


@settings(max_examples=100, deadline=None)
@given(nodes=anywhere)
def test_each_node_sends_and_receives_what_an_all_reduce_of_nodes_must(nodes: Nodes) -> None:
    k = len(nodes.ranks)
    least = [pytest.approx(2 * (k - 1) / k)] * k
    sends, receives = between_nodes(known("allreduce", "two_level"), nodes)
    assert sends == receives == least


@settings(max_examples=100, deadline=None)
@given(nodes=anywhere)
def test_each_block_crosses_between_two_nodes_once(nodes: Nodes) -> None:
    others = [pytest.approx((nodes.size - len(ranks)) / nodes.size) for ranks in nodes.ranks]
    assert between_nodes(known("allgather", "two_level"), nodes)[1] == others
    assert between_nodes(known("reduce_scatter", "two_level"), nodes)[0] == others


@settings(max_examples=100, deadline=None)
@given(nodes=anywhere, data=st.data())
def test_the_vector_enters_and_leaves_a_node_once(nodes: Nodes, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, nodes.size - 1))
    several = len(nodes.ranks) > 1
    away = [float(several and node != nodes.of[root]) for node in range(len(nodes.ranks))]
    sends, receives = between_nodes(known("bcast", "two_level"), nodes, root)
    assert receives == away
    assert max(sends) == several
    sends, receives = between_nodes(known("reduce", "two_level"), nodes, root)
    assert sends == away
    assert max(receives) == several


def messages_between_nodes(algorithm: Algorithm, nodes: Nodes, root: int = 0) -> list[tuple[int, int]]:
    """The ranks that send, and those that receive, of each message from a node to another."""
    found = []
    for rank in range(nodes.size):
        for step in algorithm.schedule(rank, nodes.size, root, 1, nodes).steps:
            sends = [action for action in step if isinstance(action, Send)]
            found += [(rank, send.peer) for send in sends if nodes.of[send.peer] != nodes.of[rank]]
    return found


@settings(max_examples=100, deadline=None)
@given(nodes=anywhere, data=st.data())
def test_the_root_and_each_other_node_have_one_message_with_the_blocks_of_the_node(
    nodes: Nodes, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, nodes.size - 1))
    home = nodes.of[root]
    away = [i for i in range(len(nodes.ranks)) if i != home]
    parts = [len(ranks) / nodes.size for ranks in nodes.ranks]
    of_nodes = pytest.approx([0.0 if i == home else part for i, part in enumerate(parts)])
    of_root = pytest.approx([1 - part if i == home else 0.0 for i, part in enumerate(parts)])
    gather, scatter = known("gather", "two_level"), known("scatter", "two_level")
    sends, receives = between_nodes(gather, nodes, root)
    assert sends == of_nodes
    assert receives == of_root
    sends, receives = between_nodes(scatter, nodes, root)
    assert sends == of_root
    assert receives == of_nodes
    to_root, from_root = messages_between_nodes(gather, nodes, root), messages_between_nodes(scatter, nodes, root)
    assert {peer for _, peer in to_root} | {rank for rank, _ in from_root} <= {root}
    assert sorted(nodes.of[rank] for rank, _ in to_root) == sorted(nodes.of[peer] for _, peer in from_root) == away


@settings(max_examples=100, deadline=None)
@given(nodes=anywhere)
def test_in_an_all_to_all_a_rank_has_one_message_for_each_other_node(nodes: Nodes) -> None:
    alltoall = known("alltoall", "two_level")
    crossing = [pytest.approx(len(ranks) * (nodes.size - len(ranks)) / nodes.size) for ranks in nodes.ranks]
    sends, receives = between_nodes(alltoall, nodes)
    assert sends == receives == crossing
    messages = messages_between_nodes(alltoall, nodes)
    for rank in range(nodes.size):
        to = sorted(nodes.of[peer] for sender, peer in messages if sender == rank)
        assert to == [i for i in range(len(nodes.ranks)) if i != nodes.of[rank]]
    for ranks in nodes.ranks:
        taken = [sum(peer == rank for _, peer in messages) for rank in ranks]
        assert max(taken) - min(taken) <= 1


def test_uneven_blocks_are_for_those_whose_ranks_know_all_lengths() -> None:
    """In an alltoallv a rank knows only the lengths of its own blocks, so that no other one can send them on."""
    assert all("two_level" in names(f"{each}v") for each in ("gather", "scatter", "allgather", "reduce_scatter"))
    assert "two_level" in names("alltoall")
    assert "two_level" not in names("alltoallv")


def test_a_barrier_has_messages_of_leaders_alone_between_nodes() -> None:
    nodes = Nodes.named(rank % 4 for rank in range(16))
    for rank in range(16):
        steps = known("barrier", "two_level").schedule(rank, 16, nodes=nodes).steps
        abroad = [a for step in steps for a in step if nodes.of[a.peer] != nodes.of[rank]]  # type: ignore[union-attr]
        assert len(abroad) == (4 if rank < 4 else 0)  # to two nodes, and from two


def test_an_own_algorithm_is_proved_for_the_nodes_of_each_communicator(registry: None) -> None:
    """It is wrong where there are three nodes of two ranks or more, which no placement of 8 ranks has among those that
    ``register`` tries."""

    def wrong_there(at: Place) -> Steps:
        if sum(len(ranks) > 1 for ranks in at.by_node) < 3 or at.size < 9:
            yield from known("allgather", "ring").steps(at)
        elif at.rank:
            yield (Send(0, one(at.rank), OUTPUT),)

    mpicoll.register(Algorithm("allgather", "own", wrong_there, per_rank, by_node=True))
    assert schedule("allgather", "own", 0, 9, 0, 8, Nodes.block(9, 2)) is not None
    with pytest.raises(ScheduleError, match="allgather own of 9 ranks"):
        schedule("allgather", "own", 0, 9, 0, 8, Nodes.block(9, 3))


def test_an_algorithm_that_does_not_go_by_nodes_is_not_told_of_them() -> None:
    seen = set[Nodes | None]()

    def tells(at: Place) -> Steps:
        seen.add(at.nodes)
        return known("allreduce", "linear").steps(at)

    for by_node in (False, True):
        Algorithm("allreduce", "tells", tells, by_node=by_node).schedule(0, 4, nodes=Nodes.block(4, 2))
    assert seen == {None, Nodes((0, 0, 1, 1))}


def test_placements() -> None:
    assert Nodes.named("cabac").of == (0, 1, 2, 1, 0)
    assert Nodes.named("cabac").ranks == ((0, 4), (1, 3), (2,))
    assert Nodes.block(5, 2).of == (0, 0, 0, 1, 1)
    assert [len(nodes.ranks) for nodes in placements(7)] == [4, 3, 3, 1, 2, 7]
    assert [len(nodes.ranks) for nodes in placements(17)] == [9, 3, 5]
    assert Nodes.one(3).alone
    assert not Nodes.block(3, 2).alone
