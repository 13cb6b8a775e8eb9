"""What enters mpicoll/calls/select.json, and what benchmarks/select_table.py makes it of."""

from __future__ import annotations

from typing import Any

from benchmarks.select_table import TABLE, records, shown, table, winners
from mpicoll.calls import measured

K, M = 1 << 10, 1 << 20


def times(native: float, **others: float) -> dict[str, float]:
    return {"native": native} | others


def record(cpu: str, rows: list[dict[str, Any]], mpi: str = "Open MPI 5.0.11") -> dict[str, Any]:
    environments = {str(row["ranks"]): {"oversubscribed": row["ranks"] > 2, "cpu": "a CPU"} for row in rows}
    return {"fingerprint": cpu, "mpi": mpi, "environments": environments, "rows": rows}


def row(case: str, size: int, ranks: int = 2, pages: str = "huge", **medians: float) -> dict[str, Any]:
    return {"ranks": ranks, "case": case, "size": size, "pages": pages, "p50_us": medians}


def both(case: str, size: int, huge: dict[str, float], small: dict[str, float], ranks: int = 2) -> list[dict[str, Any]]:
    return [row(case, size, ranks, "huge", **huge), row(case, size, ranks, "small", **small)]


def test_a_schedule_enters_that_won_by_a_fifth_on_both_kinds_of_pages() -> None:
    assert winners("native", {M: [times(12, ring=10), times(24, ring=20)]}) == {M: "ring"}
    assert winners("native", {M: [times(12, ring=10), times(23, ring=20)]}) == {}
    assert winners("native", {M: [times(99, ring=10, bine=50), times(9, ring=9, bine=5)]}) == {M: "bine"}


def test_it_stays_while_it_is_no_slower() -> None:
    won = [times(20, ring=10)]
    assert winners("native", {16 * K: won, 64 * K: [times(10, ring=10)]}) == {16 * K: "ring"}
    lost = {16 * K: won, 64 * K: [times(10, ring=5), times(9, ring=10)]}
    assert winners("native", lost) == {16 * K: "ring", 32 * K: "native"}
    assert winners("native", lost | {M: [times(10, bine=5, ring=6)]}) == {16 * K: "ring", 32 * K: "native", M: "bine"}


def test_rows_are_of_their_cpu_mpi_and_number_of_ranks() -> None:
    won, lost = times(20, ring=10), times(10, ring=20)
    rows = [*both("allreduce", M, won, won), *both("allreduce", M, won, lost, 3), *both("allreduce", M, won, won, 4)]
    found = measured.sections(table([record("A", rows)]))
    assert [(s.cpu, s.ranks, s.oversubscribed) for s in found] == [("A", 2, False), ("A", 3, True), ("A", 4, True)]
    ring = {("native", "allreduce"): ((M, "ring"),)}
    assert [s.rows for s in found] == [ring, {}, ring]


def test_only_what_two_cpus_have_in_common_holds_on_others() -> None:
    won = times(20, ring=10, bine=10)
    here = [*both("allreduce", M, won, won), *both("allreduce", 4 * M, won, won)]
    there = [*both("allreduce", M, won, won), *both("allreduce", 4 * M, won, times(11, ring=10, bine=20))]
    found = measured.sections(table([record("A", here), record("B", there), record("A", here, "MPICH 5.0.2")]))
    common = [s for s in found if s.cpu is None]
    assert [(s.mpi, s.ranks, s.oversubscribed) for s in common] == [("Open MPI 5.0.11", 2, False)]
    assert len(found) == 4
    assert common[0].rows == {("native", "allreduce"): ((M, "ring"),)}
    assert found[0].rows == {("native", "allreduce"): ((M, "ring"),)}


def test_a_size_that_one_of_two_cpus_lacks_holds_on_no_other() -> None:
    won = times(20, chain=10)
    made = [record("A", both("bcast", M, won, won)), record("B", both("bcast", 4 * M, won, won))]
    common = [s.rows for s in measured.sections(table(made)) if s.cpu is None]
    assert common[0] == {}


def test_a_size_of_which_one_kind_of_pages_is_missing_is_not_used() -> None:
    won = times(20, chain=10)
    found = measured.sections(table([record("A", [*both("bcast", M, won, won)[:1], *both("bcast", 4 * M, won, won)])]))
    assert found[0].rows == {("native", "bcast"): ((4 * M, "chain"),)}


def test_what_mpicoll_computes_itself_is_compared_with_exchange() -> None:
    won = {"exchange": 20.0, "ring": 10.0}
    (found,) = measured.sections(table([record("A", both("reduce_scatter:max", M, won, won))]))
    assert found.rows == {("exchange", "reduce_scatter"): ((M, "ring"),)}


def test_what_the_page_shows_is_the_gain_on_the_worse_pages() -> None:
    rows = both("reduce:max", M, {"exchange": 20.0, "chain": 10.0}, {"exchange": 30.0, "chain": 20.0})
    lines = list(shown([record("A", rows)]))
    assert lines[0].startswith("### Open MPI 5.0.11, a CPU (A)")
    assert "| reduce of max | 2 | 1.50 chain |" in lines


def test_the_packaged_table_is_what_the_records_say() -> None:
    assert TABLE.read_text() == table(records())
