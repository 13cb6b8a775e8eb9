"""``mpicoll doctor``: what it says of invented facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mpicoll import doctor
from mpicoll.cli import main
from mpicoll.doctor.facts import SIZES, Facts, Machine, Start, World
from mpicoll.doctor.gpu import Gpu
from mpicoll.doctor.report import Report
from mpicoll.doctor.rules import judge

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

MIB, GIB = 1 << 20, 1 << 30
START = Start("Open MPI's mpirun", "PMIx", 0, 2, None)
ALONE = Start(None, None, None, 1, None)
WORLD = World(0, 2, "Open MPI 5.0.11", "MULTIPLE", True, True, tuple((n, "ring", "a reason") for n in SIZES))
MACHINE = Machine(
    node="node1", linux=True, cpu="a CPU", cores=(0,), overload="", omp_threads=1, shm_size=GIB,
    shm_free=GIB, locked=None, rdma=False, kernel="",
    versions={"mpicoll": "1", "torch": "2"}, variables={},
)  # fmt: skip
WITH_GPU = Gpu("13.0", ("H200", "H200"), 0, "12.8", True, "2.30", True)
RDMA: dict[str, Any] = {"rdma": True, "locked": 8 * MIB}
APART, NEWER, NO_TORCH = {"shares": False}, {"versions": {"mpicoll": "2", "torch": "2"}}, {"versions": {"mpicoll": "1"}}
UNTRIED = "could not be tried: no mpirun"


def job(ranks: int = 2, nodes: int = 1, **of_machines: Any) -> list[Facts]:
    """The facts of a job that is in order: each rank has a core. All machines are alike."""
    per_node = ranks // nodes
    return [
        Facts(
            replace(START, number=rank, together=ranks),
            replace(MACHINE, **{"node": f"node{rank // per_node + 1}", "cores": (rank % per_node,), **of_machines}),
            Gpu(),
            replace(WORLD, rank=rank, size=ranks),
        )
        for rank in range(ranks)
    ]


def alone(**of_start: Any) -> list[Facts]:
    """The facts of a process that nothing has started."""
    world = replace(WORLD, size=1)
    return [Facts(replace(ALONE, **of_start), replace(MACHINE, cores=(0, 1)), Gpu(), world)]


def of_rank(rank: int, facts: list[Facts] | None = None, **parts: Any) -> list[Facts]:
    """The facts, of two ranks if none are given, with another machine, world or GPU of one rank:
    ``machine={"cores": (0,)}``."""
    facts = facts or job()
    given = {part: replace(getattr(facts[rank], part), **fields) for part, fields in parts.items()}
    return [*facts[:rank], replace(facts[rank], **given), *facts[rank + 1 :]]


def with_gpu(**of_gpu: Any) -> list[Facts]:
    return of_rank(0, alone(), gpu={**vars(WITH_GPU), **of_gpu})


def findings(report: Report) -> list[str]:
    """Each finding that is not in order, as the report has it, without its remedy."""
    lines = [line for line in report.text().splitlines() if line.startswith(("problem", "warning"))]
    return [" ".join(line.split()) for line in lines]


@pytest.mark.parametrize(
    "facts",
    [
        alone(),
        job(),
        job(4, nodes=2),
        job(1),
        job(cores=(0, 1)),  # not bound, and enough cores
        job(locked=64 << 10),  # no card needs locked memory
        job(rdma=True, locked=GIB),
        of_rank(0, alone(), machine={"omp_threads": None}),
        alone(tasks=1),
        job(4, omp_threads=1, cores=(0, 1, 2, 3)),
        with_gpu(),
        with_gpu(paths=(("messages", ""), ("reductions", ""))),
        of_rank(0, alone(), gpu={"driver": "13.0"}),  # a driver, and no GPU
    ],
)
def test_in_order(facts: list[Facts]) -> None:
    report = judge(facts)
    assert findings(report) == []
    assert (report.problems, report.warnings) == (0, 0)
    assert {f.topic for f in report.findings} >= {"launcher", "MPI", "cores", "/dev/shm", "GPU", "algorithm"}


def test_a_system_that_is_not_linux() -> None:
    """What it has not is no fault of it."""
    facts = job(linux=False, shm_size=None, shm_free=None)
    for rank in range(2):
        facts = of_rank(rank, facts, world={"shares": False, "shares_memory": False})
    report = judge(facts)
    assert findings(report) == []
    assert "shared memory  mpicoll needs Linux (memfd_create) for it" in report.text()
    assert "/dev/shm" not in {f.topic for f in report.findings}


# What is not in order, and how the only line that says so begins. Each has a remedy.
OUT_OF_ORDER = [
    (alone(tasks=4), "warning launcher this is one process, but Slurm has allocated the job for 4 ranks"),
    (job(4, cores=(0, 1)), "problem cores 4 ranks take turns on 2 cores: 0-1 | 0-1 | 0-1 | 0-1"),
    (job(2, cores=(0,)), "problem cores 2 ranks take turns on 1 core: 0 | 0"),
    (of_rank(2, job(3), machine={"cores": (1,)}), "problem cores ranks 1-2: 2 ranks take turns on 1 core: 1 | 1"),
    (of_rank(3, job(4, nodes=2), machine={"cores": (0,)}), "problem cores ranks 2-3 on node2: 2 ranks take turns on 1"),
    (job(cores=(0, 1), omp_threads=None), "warning cores 2 ranks with 4 threads together (OMP_NUM_THREADS is not set)"),
    (job(cores=(0, 1), omp_threads=2), "problem cores 2 ranks with 4 threads together (OMP_NUM_THREADS) on 2 cores"),
    (job(overload="9 programs compute on 2 cores"), "warning cores the machine is overloaded: 9 programs compute on 2"),
    (of_rank(1, machine={"omp_threads": 8}), "problem cores rank 1: 1 rank with 8 threads together (OMP_NUM_THREADS)"),
    (of_rank(1, machine={"kernel": "no kernel"}), "warning kernel rank 1: no kernel: collectives of a node"),
    (of_rank(0, of_rank(1, world=APART), world=APART), "warning shared memory the ranks of a node do not share memory"),
    (job(shm_size=64 * MIB, shm_free=8 * MIB), "warning /dev/shm 64 MiB, of which 8 MiB are free: expected 16 MiB"),
    (job(shm_size=64 * MIB, shm_free=4096), "problem /dev/shm 64 MiB, of which 4 KiB are free: an MPI library that"),
    (job(shm_size=None, shm_free=None), "warning /dev/shm there is none"),
    (job(nodes=2, **RDMA), "problem locked memory at most 8 MiB (ulimit -l), too little for the node's InfiniBand"),
    (job(**RDMA), "warning locked memory at most 8 MiB (ulimit -l), too little for the node's InfiniBand"),
    (of_rank(3, job(4, nodes=2), machine={"kernel": "none"}), "warning kernel rank 3 on node2: none: collectives"),
    (with_gpu(error=803), "problem GPU the driver does not work: CUDA error 803"),
    (with_gpu(torch_works=False), "problem GPU torch cannot use the GPUs: it was built for CUDA 12.8, the driver is"),
    (with_gpu(torch_works=False, torch_cuda=None), "warning GPU torch is a build for CPUs, and leaves the GPUs alone"),
    (with_gpu(mpi_takes=False), "warning GPU the MPI library takes no GPU memory: arrays go through host memory"),
    (with_gpu(paths=(("messages", ""), ("reductions", "it crashes"))), "warning GPU MPI's reductions fail on GPU"),
    (with_gpu(paths=tuple((p, UNTRIED) for p in "ab")), f"warning GPU MPI's a, b on GPU memory {UNTRIED}"),
    (with_gpu(failed=("paths", "late")), "warning GPU To try what MPI does with GPU memory fails in a test process"),
    (with_gpu(torch_works=None, failed=("torch", "late")), "problem GPU To ask torch for GPUs fails in a test"),
    (with_gpu(mpi_takes=None, failed=("mpi", "late")), "warning GPU To ask MPI whether it supports GPU memory"),
    (of_rank(1, world={"library": "B"}), "problem versions MPI differs: Open MPI 5.0.11 (rank 0); B (rank 1)"),
    (of_rank(2, job(3), machine=NEWER), "problem versions mpicoll differs: 1 (ranks 0-1); 2 (rank 2)"),
    (of_rank(1, machine=NO_TORCH), "warning versions torch differs: 2 (rank 0); none (rank 1)"),
    (of_rank(1, machine={"variables": {"MPICOLL_X": "y"}}), "warning settings MPICOLL_X differs: none (rank 0); y"),
    (of_rank(1, machine={"cpu": "another"}), "warning CPU CPU differs: a CPU (rank 0); another (rank 1)"),
    (of_rank(1, world={"threads": "SINGLE"}), "warning threads rank 1: MPI_THREAD_SINGLE instead of MPI_THREAD_MULT"),
    (of_rank(0, world={"chosen": (), "refused": "a variable is wrong"}), "problem settings a variable is wrong"),
]


@pytest.mark.parametrize(("given", "expected"), OUT_OF_ORDER, ids=[expected for _, expected in OUT_OF_ORDER])
def test_out_of_order(given: list[Facts], expected: str) -> None:
    report = judge(given)
    [found] = findings(report)
    assert found.startswith(expected)
    assert all(f.remedy for f in report.findings if f.level != "ok")
    assert (report.problems, report.warnings) == ((1, 0) if expected.startswith("problem") else (0, 1))


@pytest.mark.parametrize(("facts", "code"), [(job(), 0), (job(overload="much"), 0), (job(4, cores=(0,)), 1)])
def test_the_exit_code(monkeypatch: Patch, capsys: Capture, facts: list[Facts], code: int) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: judge(facts))
    assert main(["doctor"]) == code
    assert capsys.readouterr().out == judge(facts).text()


def test_the_short_report_says_where_the_ranks_are() -> None:
    facts = job(4)
    for rank in range(4):
        facts = of_rank(rank, facts, gpu={"visible": "0,1,2,3"})
    said = judge(facts).text(short=True)
    assert "GPU            the ranks see GPUs 0,1,2,3 | 0,1,2,3 | 0,1,2,3 | 0,1,2,3\n" in said
    assert "cores          4 ranks a node, on cores 0 | 1 | 2 | 3, OMP_NUM_THREADS=1\n" in said
    assert "locked memory" not in said


@pytest.mark.parametrize(
    ("order", "where"),
    [("1122", "ranks 0-1 on node1, ranks 2-3 on node2"), ("1212", "ranks 0, 2 on node1, ranks 1, 3 on node2")],
)
def test_the_cores_of_several_nodes_say_where_each_rank_is(order: str, where: str) -> None:
    facts = job(4)
    for rank, node in enumerate(order):
        cores = (order[:rank].count(node),)
        facts = of_rank(rank, facts, machine={"node": f"node{node}", "cores": cores})
    report = judge(facts)
    assert f"ok       cores          {where}: 2 ranks a node, on cores 0 | 1, OMP_NUM_THREADS=1\n" in report.text(
        short=True
    )
    assert f" {where}: " not in report.text().replace(f"cores          {where}: ", "")
