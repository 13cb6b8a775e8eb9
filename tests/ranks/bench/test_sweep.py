"""A whole benchmark among the ranks of the test: right results pass, wrong ones are counted, refusals are noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from time import sleep
from typing import Any

import pytest
from mpi4py import MPI

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.bench import sweep
from mpicoll.bench.backends import Unavailable, open_backend
from mpicoll.bench.memory import Arena, Buffers
from mpicoll.bench.options import Options, read
from mpicoll.bench.records import Report
from mpicoll.bench.session import Session, open_session
from mpicoll.bench.timing import Runner, _orders, measure
from mpicoll.errors import ArgumentError
from tests.ranks.bench.test_output import ENVIRONMENT
from tests.sharing import SHARED

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(1, 2), pytest.mark.first_mpi]


def options(collective: str, **typed: str | None) -> Options:
    size = MPI.COMM_WORLD.size
    given: dict[str, str | None] = dict.fromkeys(("algorithms", "json", "plot"))
    given |= {"n": str(size), "backends": "mpi", "min": "16", "max": "64K", "factor": "4096", "dtype": "float32"}
    given |= {"op": "sum", "root": str(size - 1), "device": "cpu", "seconds": "0.001"}
    return read(given | typed | {"collective": collective})


@pytest.fixture(scope="module")
def session() -> Session:
    return open_session(MPI.COMM_WORLD, "cpu")


def swept(session: Session, opts: Options, backends: dict[str, Any]) -> Report:
    report = Report("", "", {}, ENVIRONMENT)
    sweep.Sweep(opts, session, backends, report).run()
    return report


class Fake:
    """A backend whose calls this function makes of their buffers."""

    new = None

    def __init__(self, bind: Callable[[Buffers], Callable[[], object]]) -> None:
        self.bind = bind

    def route(self) -> str:
        return "fake"

    def close(self) -> None:
        pass


def spoiled(session: Session, where: int) -> Fake:
    """mpi4py, but on one rank an element of each result is changed."""
    right = open_backend("mpi", session)

    def bind(buffers: Buffers) -> Callable[[], object]:
        call = right.bind(buffers)

        def run() -> None:
            call()
            if session.world.rank == buffers.case.root and buffers.out is not None:
                buffers.result()[where] ^= 1

        return run

    return Fake(bind)


@pytest.mark.parametrize(
    ("backend", "device"), [("mpi", "cpu"), ("mpicoll", "cpu"), pytest.param("mpicoll", "cuda", marks=pytest.mark.cuda)]
)
def test_right_results_are_found_right(backend: str, device: str) -> None:
    if device == "cuda" and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("torch finds no GPU here")
    session = open_session(MPI.COMM_WORLD, device)
    opened = open_backend(backend, session)
    report = swept(session, options("all", device=device), {backend: opened})
    assert backend == "mpi" or report.notes == []
    assert report.wrong == 0
    assert {row.collective for row in report.rows} == set(COLLECTIVES)
    assert all(len(row.times_us) >= 5 and min(row.times_us) > 0 for row in report.rows)
    opened.close()


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c not in ("barrier", "exscan")])
@pytest.mark.parametrize("where", [0, -1])
def test_one_wrong_element_is_counted(session: Session, collective: str, where: int) -> None:
    """It is on one rank, at the start or the end, and in every check."""
    report = swept(session, options(collective), {"spoiled": spoiled(session, where)})
    assert report.rows
    for row in report.rows:
        assert row.wrong in (6, 8, 10), row  # one in each round, whose number is even


def test_a_call_that_does_nothing_is_wrong(session: Session) -> None:
    # exscan's first rank and a lone rank's in-place reductions have nothing to do.
    idle = Fake(lambda buffers: lambda: None)
    names = "gather,allgather,alltoall,scatter" if session.world.size == 1 else "allreduce,bcast,alltoall,gather,scan"
    for row in swept(session, options(names), {"idle": idle}).rows:
        if session.world.size > 1 or row.placement != "in-place":
            assert row.wrong > 0, row


@pytest.mark.parametrize("on_rank", [None, 0])
def test_a_refusal_is_noted_and_the_rest_goes_on(session: Session, on_rank: int | None) -> None:
    """Even if only one rank refuses, no rank waits for it."""

    def run() -> None:
        if on_rank in (None, session.world.rank):
            raise RuntimeError("not today (in /some/place/file.cpp)\nwhich matters little")

    opened = open_backend("mpi", session)
    report = swept(session, options("allreduce"), {"refusing": Fake(lambda buffers: run), "mpi": opened})
    assert {row.backend for row in report.rows} == {"mpi"}
    assert {(n.backend, n.reason) for n in report.notes} == {("refusing", "not today (in file.cpp)")}
    assert report.wrong == 0
    assert all(row.ratio is None for row in report.rows)  # its first backend was not measured
    opened.close()


def test_what_cannot_be_measured_says_why(session: Session) -> None:
    backends, notes = sweep.open_backends(["nccl", "mpi"], session)
    assert list(backends) == ["mpi"]
    assert [(n.backend, n.collective) for n in notes] == [("nccl", None)]
    assert notes[0].reason in ("there is no GPU", "torch is not installed") or "--device cuda" in notes[0].reason
    report = swept(session, options("allreduce,bcast", dtype="bfloat16"), backends)
    assert {row.collective for row in report.rows} == {"bcast"}
    assert {n.reason for n in report.notes} == {"MPI has no datatype for bfloat16"}
    with pytest.raises(ArgumentError, match="--max: expected buffers of"):
        swept(session, replace(options("allreduce"), max=1 << 50), {})
    backends["mpi"].close()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint64", "bool", "complex128"])
def test_every_dtype(session: Session, dtype: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("torch")
    opened = open_backend("mpicoll", session)
    report = swept(session, options("allreduce,reduce_scatter,bcast", dtype=dtype), {"mpicoll": opened})
    assert report.notes == []
    assert report.wrong == 0
    opened.close()


def test_arrays_in_shared_memory(session: Session) -> None:
    if not SHARED:
        with pytest.raises(Unavailable, match="the ranks cannot share arrays"):
            open_backend("mpicoll:shared", session)
        return
    opened = open_backend("mpicoll:shared", session)
    names = "allreduce,reduce_scatter,bcast,gather,alltoall"
    for dtype in ("bfloat16", "float64"):
        chosen = options(names, dtype=dtype, min="1M", max="1M")
        report = swept(session, chosen, {"mpi": open_backend("mpi", session), "shared": opened})
        assert report.wrong == 0
        assert {row.route for row in report.rows if row.backend == "shared"} == {"shared"}
    opened.close()


def test_each_algorithm_is_a_line(session: Session) -> None:
    opts = options("allreduce,bcast", backends="mpicoll", algorithms="native,exchange")
    lines = sweep.lines_of(opts, session)
    assert lines == ["mpicoll:native", "mpicoll:exchange"]
    backends, notes = sweep.open_backends(lines, session)
    assert notes == []
    report = swept(session, opts, backends)
    assert {row.backend: row.route for row in report.rows} == {
        "mpicoll:native": "native",
        "mpicoll:exchange": "exchange",
    }
    assert {(n.backend, n.collective) for n in report.notes} == {("mpicoll:exchange", "bcast")}
    assert "bcast has no algorithm named exchange" in {n.reason for n in report.notes}


def test_the_route_is_that_of_the_call_that_ran(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not what the table of measurements would choose."""

    def by_length(operation: str, reduction: Any, nbytes: int, *rest: Any) -> tuple[str, str]:
        return "ring" if nbytes == 16 else "recursive_doubling", ""

    opened = open_backend("mpicoll", session)
    monkeypatch.setattr("mpicoll.calls.choose._best", by_length)
    report = swept(session, options("allreduce"), {"mpicoll": opened})
    assert {(row.size, row.route) for row in report.rows} == {(16, "ring"), (65536, "recursive_doubling")}
    opened.close()


def test_a_call_on_a_gpu_takes_until_that_has_done_its_work(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: sleep(0.002))
    case = sweep._case(options("barrier"), replace(session, device="cuda:0"), COLLECTIVES["barrier"], 0, "out-of-place")
    pairs = Arena().buffers(case)
    runner = Runner(pairs, [lambda: None] * len(pairs))
    measure(session.world, [runner], 0.001)
    assert len(runner.times) >= 5
    assert min(runner.times) >= 2000


# -- the turns that the compared programs take --


@pytest.mark.parametrize("runners", [1, 2, 3, 5])
def test_each_is_before_each_other_as_often_as_after_it(runners: int) -> None:
    seen = set()
    for seed in range(20):
        orders = [tuple(order) for order in islice(_orders(runners, seed), 6)]
        assert all(sorted(order) == list(range(runners)) for order in orders)
        seen |= set(orders)
        before = Counter((a, b) for order in orders for i, a in enumerate(order) for b in order[i + 1 :])
        assert set(before.values()) <= {3}
    assert len(seen) > 1 or runners == 1
