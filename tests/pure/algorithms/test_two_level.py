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
from mpicoll.analysis.proof.cases import prove
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


class Crossing:
    """What goes between nodes: as parts of the vector, what each node sends and receives, and each message's ranks."""

    def __init__(self, collective: str, nodes: Nodes, root: int = 0) -> None:
        sends, receives, blocks = Counter[int](), Counter[int](), 1
        self.messages: list[tuple[int, int]] = []
        for rank in range(nodes.size):
            found = known(collective, "two_level").schedule(rank, nodes.size, root, 1, nodes)
            blocks = found.blocks
            for action in (a for step in found.steps for a in step if isinstance(a, Send)):
                if (here := nodes.of[rank]) != (there := nodes.of[action.peer]):
                    sends[here] += sum(map(len, action.blocks))
                    receives[there] += sum(map(len, action.blocks))
                    self.messages.append((rank, action.peer))
        self.sends, self.receives = ([by[n] / blocks for n in range(len(nodes.ranks))] for by in (sends, receives))


@settings(max_examples=100, deadline=None)
@given(nodes=anywhere, data=st.data())
def test_no_more_goes_between_nodes_than_must(nodes: Nodes, data: st.DataObject) -> None:
    k, p = len(nodes.ranks), nodes.size
    root = data.draw(st.integers(0, p - 1))
    home = nodes.of[root]
    parts = [len(ranks) / p for ranks in nodes.ranks]
    others = pytest.approx([1 - part for part in parts])
    away = [float(i != home) for i in range(k)]
    found = Crossing("allreduce", nodes)
    assert found.sends == found.receives == pytest.approx([2 * (k - 1) / k] * k)
    assert Crossing("allgather", nodes).receives == others
    assert Crossing("reduce_scatter", nodes).sends == others
    bcast, reduced = Crossing("bcast", nodes, root), Crossing("reduce", nodes, root)
    assert bcast.receives == reduced.sends == away  # the vector enters or leaves a node once
    assert max(bcast.sends) == max(reduced.receives) == (k > 1)
    # The root and each other node have one message, with the blocks of the node.
    gather, scatter = Crossing("gather", nodes, root), Crossing("scatter", nodes, root)
    assert gather.sends == scatter.receives == pytest.approx([a * part for a, part in zip(away, parts, strict=True)])
    assert (
        gather.receives == scatter.sends == pytest.approx([(1 - a) * (1 - x) for a, x in zip(away, parts, strict=True)])
    )
    assert {peer for _, peer in gather.messages} | {rank for rank, _ in scatter.messages} <= {root}
    ends = [nodes.of[rank] for rank, _ in gather.messages], [nodes.of[peer] for _, peer in scatter.messages]
    assert sorted(ends[0]) == sorted(ends[1]) == [i for i in range(k) if i != home]
    # In an all-to-all, a rank has one message for each other node.
    alltoall = Crossing("alltoall", nodes)
    assert alltoall.sends == alltoall.receives == pytest.approx([p * x * (1 - x) for x in parts])
    for rank in range(p):
        to = sorted(nodes.of[peer] for sender, peer in alltoall.messages if sender == rank)
        assert to == [i for i in range(k) if i != nodes.of[rank]]
    for ranks in nodes.ranks:
        taken = [sum(peer == rank for _, peer in alltoall.messages) for rank in ranks]
        assert max(taken) - min(taken) <= 1


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
