"""Which algorithm carries out a call: the one named, the environment's, the kernel, or the MPI's own."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

import mpicoll
from mpicoll import Algorithm, algorithms
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import Nodes, Schedule
from mpicoll.arrays.dtypes import DTYPES, OPS, OpName, Reduction, reduction
from mpicoll.calls import select
from mpicoll.calls.call import checked
from mpicoll.calls.choice import DEVICE, EXCHANGE, IPC, NATIVE, NODE, STAGED, WIDE, AlgorithmName, Wide, algorithm_of
from mpicoll.calls.rules import Rules
from mpicoll.calls.select import Traits
from mpicoll.errors import ArgumentError

APART = Traits(Nodes.one(2), "Open MPI")
"""Ranks of a node that share no memory."""
TOGETHER = replace(APART, kernel=True)
THREADS = Traits(Nodes.one(4), "")
SUM = reduction("sum", DTYPES["float32"], "allreduce")
MAX = reduction("max", DTYPES["float32"], "allreduce")
BF16 = reduction("sum", DTYPES["bfloat16"], "allreduce")


def preferring(text: str) -> Traits:
    return replace(APART, rules=Rules(text))


def test_the_one_named() -> None:
    assert select.select("allreduce", SUM, 8, APART, algorithm="ring") == "ring"


def test_an_unknown_name() -> None:
    expected = r"allreduce: algorithm: expected None or one of native, exchange, .*ring.*; given"
    with pytest.raises(ArgumentError, match=rf"{expected} 'rang' \(did you mean 'ring'\?\)"):
        select.select("allreduce", SUM, 8, APART, algorithm="rang")


def test_one_that_cannot_serve_the_dtype() -> None:
    with pytest.raises(ArgumentError, match=r"sum of bfloat16, which MPI libraries do not.*exchange.*ring"):
        select.select("allreduce", BF16, 8, APART, algorithm="native")


def test_threads_have_no_mpi() -> None:
    with pytest.raises(ArgumentError, match=r"algorithm: expected None or one of (?!native)"):
        select.select("allreduce", SUM, 8, THREADS, algorithm="native")


@pytest.mark.parametrize("collective", ["allgatherv", "alltoallv"])
def test_uneven_blocks_have_fewer(collective: str) -> None:
    assert set(select.names(collective)) <= set(select.names(collective.removesuffix("v")))
    assert "ring" in select.names("allgatherv")
    assert "bruck" not in select.names("alltoallv")


def test_the_environment() -> None:
    traits = preferring("all_reduce:ring, bcast : native, ")
    assert select.select("allreduce", SUM, 8, traits) == "ring"
    assert select.select("allreduce", SUM, 8, traits, algorithm="exchange") == "exchange"
    assert select.select("bcast", None, 1 << 30, traits) == "native"
    assert select.select("reduce", SUM, 8, traits) == "native"


def test_the_environment_where_it_cannot_serve() -> None:
    assert select.select("allreduce", BF16, 8, preferring("allreduce:native")) == "exchange"


@pytest.mark.parametrize(
    "text",
    ["allreduce", "allreduce:rang", "reduce_all:ring", "allreduce=ring", "bcast:ring,allreduce:ring,all_reduce:ring"],
)
def test_an_environment_that_is_wrong(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"MPICOLL_ALGORITHM: expected (collective:algorithm|for allreduce one of)"):
        select.select("allreduce", SUM, 8, preferring(text))


@pytest.mark.parametrize(
    ("operation", "what", "nbytes", "expected"),
    [
        ("allreduce", SUM, 8, NODE),
        ("allreduce", SUM, 1 << 30, NODE),
        ("reduce_scatterv", BF16, 1 << 30, NODE),
        ("scan", MAX, 8, NODE),
        ("barrier", None, 0, NODE),
        ("bcast", None, select.LONG_MOVES - 1, NODE),
        ("bcast", None, select.LONG_MOVES, NATIVE),
        ("allgatherv", None, select.LONG_MOVES, NATIVE),
        ("alltoallv", None, 0, NODE),
        ("alltoallv", None, 1 << 30, NODE),  # no rank knows how long the others' part is
    ],
)
def test_ranks_of_one_node_have_the_kernel(operation: str, what: Reduction | None, nbytes: int, expected: str) -> None:
    """For all but long moves. Where there is none, calls are the MPI library's, or mpicoll reduces what that cannot."""
    assert select.select(operation, what, nbytes, TOGETHER) == expected
    without = EXCHANGE if what is not None and not what.mpi else NATIVE
    assert select.select(operation, what, nbytes, APART) == without
    assert select.select(operation, what, nbytes, replace(TOGETHER, nodes=Nodes.one(1))) == without


def test_the_kernel_where_there_is_none() -> None:
    why = r"\(the ranks share no memory, or mpicoll has no kernel here: `mpicoll doctor`\); given 'node'"
    with pytest.raises(ArgumentError, match=why):
        select.select("allreduce", SUM, 8, APART, algorithm="node")
    with pytest.raises(ArgumentError, match=r"expected None or one of [\w, ]+; given 'node'"):
        select.select("allreduce", SUM, 8, THREADS, algorithm="node")


def test_reproducible_reductions_are_in_rank_order() -> None:
    orderly = Rules(reproducible=True)
    for traits, expected in ((TOGETHER, NODE), (APART, EXCHANGE)):
        assert select.select("allreduce", SUM, 8, replace(traits, rules=orderly)) == expected
        assert select.select("allreduce", SUM, 8, replace(traits, rules=orderly), algorithm=EXCHANGE) == EXCHANGE


def test_every_collective_has_one_without_mpi() -> None:
    for collective in COLLECTIVES:
        assert select.select(collective, None, 8, THREADS) in select.names(collective, THREADS)
        for uneven in ("gatherv", "allgatherv", "scatterv", "reduce_scatterv", "alltoallv"):
            assert select.select(uneven, None, 8, THREADS) in select.names(uneven, THREADS)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("collective", "name"), [("scan", "mine"), ("reduce_scatter", "linear"), ("bcast", "pairwise")]
)
def test_an_algorithm_of_ones_own_is_not_the_one_between_threads(collective: str, name: str) -> None:
    before = select.select(collective, None, 8, THREADS)
    algorithms.add(Algorithm(collective, name, lambda at: iter(())))
    assert select.select(collective, None, 8, THREADS) == before


def test_threads_keep_what_their_job_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:ring")
    with mpicoll.threads(2) as ranks:
        monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:swing")
        assert ranks.run(lambda comm: select.select("allreduce", SUM, 8, comm._engine.binding.traits)) == [
            "ring",
            "ring",
        ]


@pytest.mark.parametrize(
    ("nbytes", "traits", "expected"),
    [
        (8, TOGETHER, (NODE, "the ranks share a node")),
        (8, APART, (NATIVE, "the ranks share no memory in which mpicoll's kernel works")),
        (8, replace(APART, nodes=Nodes((0, 1))), (NATIVE, "the ranks share no memory in which mpicoll's kernel works")),
        (8, replace(TOGETHER, nodes=Nodes.one(1)), (NATIVE, "there is one rank")),
        (8, preferring("allreduce:ring"), ("ring", "MPICOLL_ALGORITHM names it")),
    ],
)
def test_why(nbytes: int, traits: Traits, expected: tuple[str, str]) -> None:
    assert select.explained("allreduce", SUM, nbytes, traits) == expected


def test_editors_complete_the_names_that_exist() -> None:
    known = {a.name for a in algorithms.algorithms()} | {NATIVE, EXCHANGE, NODE, WIDE, STAGED, DEVICE, IPC}
    assert set(get_args(AlgorithmName)) == known
    assert set(get_args(OpName)) == set(OPS) - {"premul_sum"}


PAIRS = Traits(Nodes.block(8, 4), "Open MPI")


@pytest.mark.parametrize(
    ("operation", "what", "nbytes", "nodes", "expected"),
    [
        ("allreduce", MAX, 1 << 20, PAIRS.nodes, "two_level"),
        ("reduce", MAX, 1 << 20, PAIRS.nodes, "two_level"),
        ("reduce_scatterv", MAX, 1 << 20, PAIRS.nodes, "two_level"),
        ("allreduce", BF16, 1 << 20, PAIRS.nodes, "wide"),
        ("allreduce", BF16, 1 << 20, Nodes.block(4, 2), "exchange"),
        ("allreduce", MAX, 1 << 20, Nodes.block(4, 2), "two_level"),
        ("allreduce", MAX, (1 << 20) - 1, PAIRS.nodes, "exchange"),
        ("allreduce", MAX, 1 << 20, Nodes.cyclic(8, 3), "two_level"),
        ("allreduce", MAX, 1 << 20, Nodes((0, 0, 1)), "exchange"),  # a node of one rank sends as much in any case
        ("allreduce", MAX, 1 << 20, Nodes.one(8), "exchange"),
        ("scan", MAX, 1 << 20, PAIRS.nodes, "exchange"),
        ("allreduce", SUM, 1 << 20, PAIRS.nodes, "native"),
        ("bcast", None, 1 << 20, PAIRS.nodes, "native"),
        ("alltoall", None, 1 << 20, PAIRS.nodes, "native"),  # there is a two-level one, which sends as many bytes
    ],
)
def test_on_several_nodes_long_reductions_that_mpi_lacks_are_two_level(
    operation: str, what: Reduction | None, nbytes: int, nodes: Nodes, expected: str
) -> None:
    assert select.select(operation, what, nbytes, replace(PAIRS, nodes=nodes)) == expected


def test_wide_floats_are_reduced_by_the_mpi_or_between_nodes_in_two_levels() -> None:
    x = np.ones(8, np.float16)
    call = checked("allreduce", 0, 4, x, np.empty_like(x), "sum", 0)
    assert select.choice_of("wide", call, 0, Nodes.one(4)) == Wide(NATIVE)
    found = select.choice_of("wide", call, 0, Nodes.block(4, 2))
    assert isinstance(found, Wide)
    assert isinstance(found.of_floats, Schedule)
    assert found.of_floats.algorithm == "two_level"
    assert algorithm_of(found) == "wide"
