"""Which algorithm carries out a call: the one named, the environment's, the table's, or the MPI's own."""

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
from mpicoll.calls.choice import (
    CICO,
    DEVICE,
    EXCHANGE,
    IPC,
    NATIVE,
    STAGED,
    WIDE,
    AlgorithmName,
    Wide,
    algorithm_of,
)
from mpicoll.calls.rules import Rules
from mpicoll.calls.select import Traits
from mpicoll.calls.tables import Held, Table
from mpicoll.errors import ArgumentError

NODE = Traits(Nodes.one(2), "Open MPI")
LABEL = "the user's table, section 1a2b"
TABLE = Table(
    {
        2: Held(
            {
                ("native", "allreduce"): ((1 << 24, "native"), (1 << 20, "bine"), (1 << 16, "recursive_doubling")),
                ("exchange", "allreduce"): ((1 << 20, "ring"),),
                ("native", "bcast"): ((1 << 20, "chain"),),
            },
            LABEL,
        ),
        4: Held({("exchange", "allreduce"): ((1 << 16, "ring"),)}),
    }
)
REFUSED = Table({2: Held(refused="the user's table is refused: it is a poem")})
MEASURED = Traits(Nodes.one(2), "Open MPI", shares=True, rules=Rules(table=TABLE))
THREADS = Traits(Nodes.one(4), "")
SUM = reduction("sum", DTYPES["float32"], "allreduce")
MAX = reduction("max", DTYPES["float32"], "allreduce")
BF16 = reduction("sum", DTYPES["bfloat16"], "allreduce")


def preferring(text: str) -> Traits:
    return replace(MEASURED, rules=Rules(text, TABLE))


def test_the_one_named() -> None:
    assert select.select("allreduce", SUM, 8, NODE, algorithm="ring") == "ring"


def test_an_unknown_name() -> None:
    expected = r"allreduce: algorithm: expected None or one of native, exchange, .*ring.*; given"
    with pytest.raises(ArgumentError, match=rf"{expected} 'rang' \(did you mean 'ring'\?\)"):
        select.select("allreduce", SUM, 8, NODE, algorithm="rang")


def test_one_that_cannot_serve_the_dtype() -> None:
    with pytest.raises(ArgumentError, match=r"sum of bfloat16, which MPI libraries do not.*exchange.*ring"):
        select.select("allreduce", BF16, 8, NODE, algorithm="native")


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


def test_the_table() -> None:
    chosen = [select.select("allreduce", SUM, n, MEASURED) for n in (1 << 16, (1 << 20) - 1, 1 << 20, 1 << 24)]
    assert chosen == ["recursive_doubling", "recursive_doubling", "bine", "native"]
    assert select.select("allreduce", SUM, (1 << 16) - 1, MEASURED) == "native"
    assert select.select("allreduce", MAX, 1 << 20, MEASURED) == "ring"
    assert select.select("allreduce", MAX, 1 << 16, MEASURED) == "exchange"
    assert select.select("allgather", None, 1 << 30, MEASURED) == "native"
    assert select.select("bcast", None, 1 << 30, MEASURED) == "chain"


def test_methods_for_uneven_blocks_have_rows_of_their_own() -> None:
    rows = {("native", "allgather"): ((0, "ring"),), ("native", "gatherv"): ((1 << 20, "linear"),)}
    traits = replace(MEASURED, rules=Rules(table=Table({2: Held(rows, LABEL)})))
    assert select.select("allgatherv", None, 1 << 20, traits) == "native"
    assert select.select("gatherv", None, 1 << 20, traits) == "linear"
    assert select.select("gatherv", None, 1 << 19, traits) == "native"


def test_an_alltoallv_of_any_length_has_one_algorithm() -> None:
    """No rank knows how long the others' part is."""
    table = Table({2: Held({("native", "alltoallv"): ((0, "linear"),)}, LABEL)})
    for nbytes in (0, 8, 1 << 20):
        short = replace(MEASURED, shares=False, rules=Rules(table=table))
        assert select.select("alltoallv", None, nbytes, short) == "linear"
        assert select.select("alltoallv", None, nbytes, replace(short, nodes=Nodes((0, 1)))) == "native"


def test_beyond_what_was_measured_it_is_the_mpis_own() -> None:
    elsewhere = [replace(MEASURED, nodes=nodes) for nodes in (Nodes.one(3), Nodes((0, 1)))]
    others = [*elsewhere, replace(MEASURED, shares=False)]
    for traits in (*others, Traits(Nodes.one(2), "Open MPI", shares=True)):
        assert select.select("allreduce", SUM, 1 << 20, traits) == "native"
        assert select.select("allreduce", MAX, 1 << 20, traits) == "exchange"


def test_16_bit_sums_are_rounded_once() -> None:
    """Among two ranks any algorithm does; among more only the exchange."""
    average = reduction("avg", DTYPES["float16"], "allreduce")
    assert select.select("allreduce", BF16, 1 << 28, MEASURED) == "ring"
    assert select.select("allreduce", average, 1 << 28, MEASURED) == "exchange"
    assert select.select("allreduce", MAX, 1 << 28, replace(MEASURED, nodes=Nodes.one(4))) == "ring"
    assert select.select("allreduce", BF16, 1 << 28, replace(MEASURED, nodes=Nodes.one(4))) == "exchange"


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
        (1 << 20, MEASURED, ("bine", f"measured to be the fastest in this setting ({LABEL})")),
        (8, MEASURED, ("native", f"no algorithm was measured to be faster in this setting ({LABEL})")),
        (
            1 << 20,
            replace(MEASURED, rules=Rules(table=REFUSED)),
            ("native", "the user's table is refused: it is a poem"),
        ),
        (8, replace(MEASURED, nodes=Nodes.one(3)), ("native", "nothing was measured in this setting")),
        (8, replace(MEASURED, shares=False), ("native", "nothing was measured for ranks that share no memory")),
        (8, replace(MEASURED, nodes=Nodes((0, 1))), ("native", "nothing was measured for ranks that share no memory")),
        (8, replace(MEASURED, nodes=Nodes.one(1)), ("native", "there is one rank")),
        (8, preferring("allreduce:ring"), ("ring", "MPICOLL_ALGORITHM names it")),
    ],
)
def test_why(nbytes: int, traits: Traits, expected: tuple[str, str]) -> None:
    assert select.explained("allreduce", SUM, nbytes, traits) == expected


def test_editors_complete_the_names_that_exist() -> None:
    known = {a.name for a in algorithms.algorithms()} | {NATIVE, EXCHANGE, CICO, WIDE, STAGED, DEVICE, IPC}
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


def test_a_fastest_one_that_does_not_serve_the_call() -> None:
    """Copy in, copy out multiplies by no factor."""
    table = Table({2: Held({("native", "allreduce"): ((1 << 10, CICO),)})})
    traits = replace(MEASURED, meets=True, rules=Rules(table=table))
    factor = reduction(mpicoll.Op.premul_sum(3), DTYPES["float32"], "allreduce")
    assert select.select("allreduce", factor, 1 << 20, traits) == NATIVE
    assert select.select("allreduce", SUM, 1 << 20, traits) == CICO
