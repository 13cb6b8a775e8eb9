"""Which algorithm carries out a call: the one named, the environment's, the table's, or the MPI's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpicoll import select
from mpicoll.dtypes import DTYPES, reduction
from mpicoll.errors import ArgumentError
from mpicoll.select import Ranks

NODE = Ranks(2, True, "Open MPI")
THREADS = Ranks(4, True, "")
SUM = reduction("sum", DTYPES["float32"], "allreduce")
MAX = reduction("max", DTYPES["float32"], "allreduce")
BF16 = reduction("sum", DTYPES["bfloat16"], "allreduce")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No environment but the test's."""
    monkeypatch.delenv("MPICOLL_ALGORITHM", raising=False)
    select._preferences.cache_clear()
    yield
    select._preferences.cache_clear()


def test_the_one_named() -> None:
    assert select.select("allreduce", SUM, 8, NODE, algorithm="ring") == "ring"


def test_an_unknown_name() -> None:
    with pytest.raises(
        ArgumentError, match=r"allreduce: algorithm: expected None or one of native, exchange, .*ring.*; given 'rang'"
    ):
        select.select("allreduce", SUM, 8, NODE, algorithm="rang")


def test_one_that_cannot_serve_the_dtype() -> None:
    with pytest.raises(ArgumentError, match=r"sum of bfloat16, which MPI libraries do not.*exchange.*ring"):
        select.select("allreduce", BF16, 8, NODE, algorithm="native")


def test_threads_have_no_mpi() -> None:
    with pytest.raises(ArgumentError, match=r"algorithm: expected None or one of (?!native)"):
        select.select("allreduce", SUM, 8, THREADS, algorithm="native")


@pytest.mark.parametrize("collective", ["allgatherv", "alltoallv"])
def test_uneven_blocks_have_fewer(collective: str) -> None:
    assert set(select.algorithms(collective)) <= set(select.algorithms(collective.removesuffix("v")))
    assert "ring" in select.algorithms("allgatherv")
    assert "bruck" not in select.algorithms("alltoallv")


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_ALGORITHM", "all_reduce:ring, bcast : native, ")
    assert select.select("allreduce", SUM, 8, NODE) == "ring"
    assert select.select("allreduce", SUM, 8, NODE, algorithm="exchange") == "exchange"
    assert select.select("bcast", None, 1 << 30, NODE) == "native"
    assert select.select("reduce", SUM, 8, NODE) == "native"


def test_the_environment_where_it_cannot_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:native")
    assert select.select("allreduce", BF16, 8, NODE) == "exchange"


@pytest.mark.parametrize(
    "text",
    ["allreduce", "allreduce:rang", "reduce_all:ring", "allreduce=ring", "bcast:ring,allreduce:ring,all_reduce:ring"],
)
def test_an_environment_that_is_wrong(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MPICOLL_ALGORITHM", text)
    with pytest.raises(ArgumentError, match=r"MPICOLL_ALGORITHM: expected (collective:algorithm|for allreduce one of)"):
        select.select("allreduce", SUM, 8, NODE)


def test_the_table_is_of_what_there_is() -> None:
    """Every row names an algorithm that serves its ranks, of a library that was measured."""
    rows = [(key, row) for key, rows in select._table().items() for row in rows]
    assert rows
    for (library, shares, collective, ours), row in rows:
        assert library in ("Open MPI", "MPICH")
        for size in range(row.fewest, row.most + 1):
            ranks = Ranks(size, True, library, shares)
            how = (MAX if ours else SUM) if select.COLLECTIVES[collective].reduces else None
            assert select.select(collective, how, row.from_bytes, ranks) == row.algorithm
            assert select.select(collective, how, row.from_bytes, ranks, algorithm=row.algorithm) == row.algorithm


def test_16_bit_sums_are_rounded_once() -> None:
    """Among two ranks any algorithm does; among more only the exchange."""
    for size in (3, 4):
        for library in ("Open MPI", "MPICH"):
            assert select.select("allreduce", BF16, 1 << 28, Ranks(size, True, library)) == "exchange"
            average = reduction("avg", DTYPES["float16"], "allreduce")
            assert select.select("allreduce", average, 1 << 28, Ranks(2, True, library)) == "exchange"


def test_beyond_what_was_measured_it_is_the_mpis_own() -> None:
    for ranks in (Ranks(2, False, "Open MPI"), Ranks(2, True, "Intel MPI"), Ranks(4096, True, "MPICH")):
        assert select.select("allreduce", SUM, 1 << 30, ranks) == "native"


def test_every_collective_has_one_without_mpi() -> None:
    for collective in select.COLLECTIVES:
        assert select.select(collective, None, 8, THREADS) in select.algorithms(collective, THREADS)
        for uneven in ("gatherv", "allgatherv", "scatterv", "reduce_scatterv", "alltoallv"):
            assert select.select(uneven, None, 8, THREADS) in select.algorithms(uneven, THREADS)


@pytest.mark.parametrize("library", ["Open MPI", "MPICH"])
@pytest.mark.parametrize("shares", [True, False])
def test_long_reductions_take_schedules(library: str, shares: bool) -> None:
    """The tables hold rows for nodes whose ranks share memory, and for others."""
    ranks = Ranks(2, True, library, shares)
    assert select.select("reduce_scatter", SUM, 1 << 20, ranks) not in ("native", "exchange")
    assert select.select("allreduce", SUM, 64 << 20, ranks) not in ("native", "exchange")
    assert select.select("allreduce", SUM, 64 << 20, Ranks(2, False, library, False)) == "native"
