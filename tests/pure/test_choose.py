"""Which algorithm carries out a call: the one named, the environment's, the kernel, or the MPI's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

import mpicoll
from mpicoll import Algorithm, algorithms
from mpicoll.algorithms.collectives import COLLECTIVES, METHODS, Collective
from mpicoll.algorithms.steps import Nodes
from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import DTYPES, Reduction, reduction
from mpicoll.calls import choose
from mpicoll.calls.call import Call
from mpicoll.calls.choose import EXCHANGE, IPC, NATIVE, NODE, STAGED, WIDE, CommInfo, DeviceInfo
from mpicoll.calls.settings import Settings
from mpicoll.errors import ArgumentError

APART = CommInfo(Nodes.one(2), "Open MPI")
"""Ranks of a node that share no memory."""
TOGETHER = replace(APART, shares_memory=True)
THREADS = CommInfo(Nodes.one(4), "")
SUM = reduction("sum", DTYPES["float32"], "allreduce")
MAX = reduction("max", DTYPES["float32"], "allreduce")
BF16 = reduction("sum", DTYPES["bfloat16"], "allreduce")


def call_of(operation: str, what: Reduction | None, nbytes: int) -> Call:
    """A call whose longest vector has so many bytes. It has no memory."""
    table, uneven = METHODS[operation]
    dtype = DTYPES["uint8"] if what is None else what.dtype
    shape = (nbytes // dtype.itemsize,)
    memory = Buffer(None, 0, shape, (dtype.itemsize,), dtype, "cpu", True, True) if table.moves else None
    return Call(table, memory, memory, reduction=what, uneven=uneven)


def chosen(operation: str, what: Reduction | None, nbytes: int, info: CommInfo, algorithm: str | None = None) -> str:
    return choose.choose(call_of(operation, what, nbytes), algorithm, info).name


def preferring(text: str) -> CommInfo:
    return replace(APART, settings=Settings(text))


NO_KERNEL = r"\(the ranks share no memory, or mpicoll has no kernel here: `mpicoll doctor`\); given 'node'"
RANG = r"expected None or one of native, exchange, .*ring.*; given 'rang'"


@pytest.mark.parametrize(
    ("what", "algorithm", "info", "device", "words"),
    [
        (SUM, "rang", APART, None, RANG),
        (BF16, "native", APART, None, r"sum of bfloat16, which MPI libraries do not.*exchange.*ring"),
        (SUM, "native", THREADS, None, r"expected None or one of (?!native)"),
        (SUM, "node", APART, None, NO_KERNEL),
        (SUM, "node", THREADS, None, r"expected None or one of [\w, ]+; given 'node'"),
        *((SUM, f"{on}rang", APART, DeviceInfo(True), "expected None or one of") for on in ("", "device:", "staged:")),
    ],
)
def test_names_that_are_refused(
    what: Reduction, algorithm: str, info: CommInfo, device: DeviceInfo | None, words: str
) -> None:
    with pytest.raises(ArgumentError, match=f"allreduce: algorithm: .*{words}"):
        choose.choose(call_of("allreduce", what, 8), algorithm, info, device)


ALL, LONG = frozenset(choose.PATHS), choose.IPC_FROM
TWO_NODES = CommInfo(Nodes((0, 1)), "Open MPI")
NAMED = preferring("all_reduce:ring, bcast : native, ")
ORDERLY = Settings(reproducible=True)
PAIRS = CommInfo(Nodes.block(8, 4), "Open MPI")


def on(nodes: Nodes) -> CommInfo:
    return replace(PAIRS, nodes=nodes)


@pytest.mark.parametrize(
    ("operation", "what", "nbytes", "algorithm", "info", "device", "expected"),
    [
        # The one named in the call, or in the environment. Reproducible reductions are in rank order.
        ("allreduce", SUM, 8, "ring", APART, None, "ring"),
        ("allreduce", SUM, 8, None, NAMED, None, "ring"),
        ("allreduce", SUM, 8, "exchange", NAMED, None, "exchange"),
        ("bcast", None, 1 << 30, None, NAMED, None, "native"),
        ("reduce", SUM, 8, None, NAMED, None, "native"),
        ("allreduce", BF16, 8, None, preferring("allreduce:native"), None, "exchange"),  # which cannot serve
        ("allreduce", SUM, 8, None, replace(TOGETHER, settings=ORDERLY), None, NODE),
        ("allreduce", SUM, 8, None, replace(APART, settings=ORDERLY), None, EXCHANGE),
        ("allreduce", SUM, 8, EXCHANGE, replace(TOGETHER, settings=ORDERLY), None, EXCHANGE),
        # On several nodes, long reductions that MPI lacks are two-level.
        ("allreduce", MAX, 1 << 20, None, PAIRS, None, "two_level"),
        ("reduce", MAX, 1 << 20, None, PAIRS, None, "two_level"),
        ("reduce_scatterv", MAX, 1 << 20, None, PAIRS, None, "two_level"),
        ("allreduce", BF16, 1 << 20, None, PAIRS, None, "wide"),
        ("allreduce", BF16, 1 << 20, None, on(Nodes.block(4, 2)), None, "exchange"),
        ("allreduce", MAX, 1 << 20, None, on(Nodes.block(4, 2)), None, "two_level"),
        ("allreduce", MAX, (1 << 20) - 1, None, PAIRS, None, "exchange"),
        ("allreduce", MAX, 1 << 20, None, on(Nodes.named(r % 3 for r in range(8))), None, "two_level"),
        ("allreduce", MAX, 1 << 20, None, on(Nodes((0, 0, 1))), None, "exchange"),  # a node of one rank sends no less
        ("allreduce", MAX, 1 << 20, None, on(Nodes.one(8)), None, "exchange"),
        ("scan", MAX, 1 << 20, None, PAIRS, None, "exchange"),
        ("allreduce", SUM, 1 << 20, None, PAIRS, None, "native"),
        ("bcast", None, 1 << 20, None, PAIRS, None, "native"),
        ("alltoall", None, 1 << 20, None, PAIRS, None, "native"),  # there is a two-level one, which sends as many bytes
        # Memory of a device.
        ("allreduce", SUM, 8, None, APART, DeviceInfo(True, ALL), NATIVE),
        ("allreduce", SUM, 8, None, TOGETHER, DeviceInfo(True, ALL), NATIVE),
        ("allreduce", SUM, 8, None, APART, DeviceInfo(True, ALL - {"reductions"}), STAGED),
        ("bcast", None, 8, None, APART, DeviceInfo(True, ALL - {"reductions"}), NATIVE),
        ("allreduce", BF16, 8, None, APART, DeviceInfo(True, ALL), STAGED),
        ("reduce_scatter", SUM, 8, None, APART, DeviceInfo(True, ALL), STAGED),  # it may be in place on some ranks
        ("allreduce", SUM, 8, None, preferring("allreduce:ring"), DeviceInfo(True, ALL), STAGED),
        ("allreduce", SUM, LONG, None, APART, DeviceInfo(True, one_device=True), IPC),
        ("allreduce", SUM, LONG - 4, None, APART, DeviceInfo(True, one_device=True), STAGED),
        ("allreduce", SUM, LONG, None, APART, DeviceInfo(True), STAGED),
        ("allreduce", SUM, LONG, None, TWO_NODES, DeviceInfo(True, one_device=True), STAGED),
        ("allreduce", SUM, LONG, None, THREADS, DeviceInfo(True, one_device=True), STAGED),
        ("allreduce", SUM, 8, "native", APART, DeviceInfo(True, ALL), NATIVE),
        ("allreduce", SUM, 8, "native", APART, DeviceInfo(True), STAGED),
        ("allreduce", SUM, 8, "device:ring", APART, DeviceInfo(True, ALL), "device:ring"),
        ("allreduce", SUM, 8, "device:ring", APART, DeviceInfo(True), STAGED),
        ("allreduce", SUM, 8, "device:ring", APART, DeviceInfo(False, ALL), STAGED),
        ("allreduce", SUM, 8, "ipc", APART, DeviceInfo(True), IPC),
        ("allreduce", SUM, 8, "ipc", APART, DeviceInfo(False), STAGED),
        ("scan", SUM, 8, "ipc", APART, DeviceInfo(True), STAGED),
        ("alltoallv", None, 8, "ipc", APART, DeviceInfo(True), STAGED),
        ("allreduce", SUM, 8, "staged:ring", APART, DeviceInfo(True, ALL), STAGED),
        ("allreduce", SUM, 8, "ring", APART, DeviceInfo(True, ALL), STAGED),
    ],
)
def test_what_is_chosen(
    operation: str,
    what: Reduction | None,
    nbytes: int,
    algorithm: str | None,
    info: CommInfo,
    device: DeviceInfo | None,
    expected: str,
) -> None:
    assert choose.choose(call_of(operation, what, nbytes), algorithm, info, device).name == expected


@pytest.mark.parametrize(
    "text",
    ["allreduce", "allreduce:rang", "reduce_all:ring", "allreduce=ring", "bcast:ring,allreduce:ring,all_reduce:ring"],
)
def test_an_environment_that_is_wrong(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"MPICOLL_ALGORITHM: expected (collective:algorithm|for allreduce one of)"):
        chosen("allreduce", SUM, 8, preferring(text))


@pytest.mark.parametrize(
    ("operation", "what", "nbytes", "expected"),
    [
        ("allreduce", SUM, 8, NODE),
        ("allreduce", SUM, 1 << 30, NODE),
        ("reduce_scatterv", BF16, 1 << 30, NODE),
        ("scan", MAX, 8, NODE),
        ("barrier", None, 0, NODE),
        ("bcast", None, choose.LONG_MOVES - 1, NODE),
        ("bcast", None, choose.LONG_MOVES, NATIVE),
        ("allgatherv", None, choose.LONG_MOVES, NATIVE),
        ("alltoallv", None, 0, NODE),
        ("alltoallv", None, 1 << 30, NODE),  # no rank knows how long the others' part is
    ],
)
def test_ranks_of_one_node_have_the_kernel(operation: str, what: Reduction | None, nbytes: int, expected: str) -> None:
    """For all but long moves. Where there is none, calls are the MPI library's, or mpicoll reduces what that cannot."""
    assert chosen(operation, what, nbytes, TOGETHER) == expected
    without = EXCHANGE if what is not None and not what.mpi else NATIVE
    assert chosen(operation, what, nbytes, APART) == without
    alone = replace(TOGETHER, nodes=Nodes.one(1))
    assert chosen(operation, what, nbytes, alone) == (without if nbytes > choose.LONGEST_ALONE else expected)


def test_every_collective_has_one_without_mpi() -> None:
    assert "bruck" not in choose.names("alltoallv")
    for collective in COLLECTIVES:
        assert chosen(collective, None, 8, THREADS) in choose.names(collective, THREADS)
        for uneven in ("gatherv", "allgatherv", "scatterv", "reduce_scatterv", "alltoallv"):
            assert chosen(uneven, None, 8, THREADS) in choose.names(uneven, THREADS)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("collective", "name"), [("scan", "mine"), ("reduce_scatter", "linear"), ("bcast", "pairwise")]
)
def test_an_algorithm_of_ones_own_is_not_the_one_between_threads(collective: str, name: str) -> None:
    before = chosen(collective, None, 8, THREADS)
    algorithms.add(Algorithm(collective, name, lambda at: iter(())))
    assert chosen(collective, None, 8, THREADS) == before


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("algorithm", [None, "ipc"])
def test_ipc_serves_no_collective_that_mpi_lacks(algorithm: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Collective("shift", None, "1", "1", None, False, 0, mpi=False)
    monkeypatch.setitem(COLLECTIVES, "shift", table)
    monkeypatch.setitem(METHODS, "shift", (table, False))
    algorithms.add(Algorithm("shift", "mine", lambda at: iter(())))
    on = DeviceInfo(True, one_device=True)
    assert choose.choose(call_of("shift", None, LONG), algorithm, APART, on).name == STAGED


def test_threads_keep_what_their_job_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:ring")
    with mpicoll.threads(2) as ranks:
        monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:swing")
        assert ranks.run(lambda comm: chosen("allreduce", SUM, 8, comm._engine.info)) == ["ring", "ring"]


@pytest.mark.parametrize(
    ("nbytes", "info", "expected"),
    [
        (8, TOGETHER, (NODE, "the ranks share a node")),
        (8, APART, (NATIVE, "the ranks share no memory in which mpicoll's kernel works")),
        (8, replace(APART, nodes=Nodes((0, 1))), (NATIVE, "the ranks share no memory in which mpicoll's kernel works")),
        (choose.LONGEST_ALONE, replace(TOGETHER, nodes=Nodes.one(1)), (NODE, "the ranks share a node")),
        (choose.LONGEST_ALONE + 4, replace(TOGETHER, nodes=Nodes.one(1)), (NATIVE, "there is one rank")),
        (8, replace(APART, nodes=Nodes.one(1)), (NATIVE, "there is one rank")),
        (8, preferring("allreduce:ring"), ("ring", "MPICOLL_ALGORITHM names it")),
    ],
)
def test_why(nbytes: int, info: CommInfo, expected: tuple[str, str]) -> None:
    choice = choose.choose(call_of("allreduce", SUM, nbytes), None, info)
    assert (choice.name, choice.why) == expected


def test_wide_floats_are_reduced_by_the_mpi_or_between_nodes_in_two_levels() -> None:
    f16 = reduction("sum", DTYPES["float16"], "allreduce")
    call = call_of("allreduce", f16, 16)
    for nodes, schedule in ((Nodes.one(4), None), (Nodes.block(4, 2), "two_level")):
        choice = choose.choose(call, "wide", replace(APART, nodes=nodes))
        assert (choice.name, choice.route, choice.schedule) == (WIDE, WIDE, schedule)
