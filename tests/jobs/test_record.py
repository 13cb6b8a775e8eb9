"""mpicoll.record, MPICOLL_TRACE and mpicoll report, as programs use them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

from mpicoll.profile.costs import costs
from mpicoll.profile.recording import ASYNCHRONOUS, Recording, load
from tests.jobs.jobs import NEEDS_TORCH, python, run, script

BEGIN = """
import ctypes, os, sys, time
import numpy as np
import mpicoll
from mpi4py import MPI

file, world, x = sys.argv[1], MPI.COMM_WORLD, np.ones(1000, np.float32)
other = 1 - world.rank
"""
OURS = """
comm = mpicoll.Communicator()
comm.allreduce(x)
with mpicoll.record(file):
    for step in range(3):
        if comm.rank == 0:
            world.send(None, 1)  # which is not recorded
        else:
            world.recv(source=0)
            time.sleep(0.02)
        comm.allreduce(x, out=x)
        request = comm.iallreduce(x, out=x)
        request.wait()
        messages = [comm.isend(x, other, tag=3), comm.irecv(x.copy(), other, tag=3)]
        for each in messages:
            each.wait()
        comm.sendrecv(x, other, source=other, out=x.copy())
        comm.bcast_object(step)
comm.allreduce(x)
comm.barrier()
print(open(file).read(12))
"""
MPI4PY = """
with mpicoll.record(file):
    if world.rank == 0:
        open(file + ".begun", "w").close()
    while not os.path.exists(file + ".begun"):
        time.sleep(0.001)
    time.sleep(0.02 * (world.rank == 1))
    world.Allreduce(MPI.IN_PLACE, x)
    world.Iallreduce(MPI.IN_PLACE, x).Wait()
    world.Sendrecv(x, other, recvbuf=x.copy(), source=other)
    MPI.Request.Waitall([world.Isend(x, other, tag=3), world.Irecv(x.copy(), other, tag=3)])
    request = world.Ibarrier()
    while not request.Test():
        pass
"""
DDP = """
    import sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import mpicoll

    dist.init_process_group(sys.argv[2])
    model = DistributedDataParallel(torch.nn.Linear(300, 300))
    for step in range(3):
        model(torch.ones(2, 300)).sum().backward()
    with mpicoll.record(sys.argv[1]):
        for step in range(2):
            model(torch.ones(2, 300)).sum().backward()
        dist.all_reduce(torch.ones(3), async_op=True).wait()
        dist.batch_isend_irecv([dist.P2POp(dist.isend if dist.get_rank() == 0 else dist.irecv, torch.ones(5),
                                           1 - dist.get_rank())])[0].wait()
        dist.reduce_scatter_tensor(torch.ones(2), torch.ones(4))
    dist.destroy_process_group()
"""


def recorded(folder: Path, text: str, *options: str, n: int = 2, env: dict[str, str] | None = None) -> Recording:
    """The recording of a program of ``n`` ranks. It prints what the file begins with, if it prints anything."""
    result = run(n, *options, script(folder, BEGIN + dedent(text)), str(folder / "step.json"), env=env).good()
    lines = {line for line in result.output.splitlines() if not line.startswith("mpicoll: the trace")}
    assert lines <= {'{"traceEvent'}, "the file is there when all ranks have left the part"
    return load(folder / "step.json")


def check_report(file: Path) -> None:
    """The report of a recording in which rank 1 comes late, with all that it can write."""
    picture = file.with_name("step.png")
    plot = ["--plot", str(picture)] if find_spec("matplotlib") else []
    said = python("-m", "mpicoll", "report", str(file), *plot).good()
    for words in (" of 2 ranks on 1 node in ", "llreduce", "that came late"):
        assert words in said.output
    assert not plot or picture.read_bytes().startswith(b"\x89PNG")


def test_all_doors_of_a_communicator(tmp_path: Path) -> None:
    """A trace of the whole job has the same calls, and those around them."""
    recording = recorded(tmp_path, OURS, env={"MPICOLL_TRACE": str(tmp_path / "whole.json")})
    assert (recording.size, [*recording.spans]) == (2, [0, 1])
    for mine in recording.by_rank.values():
        names = ["allreduce", "iallreduce", "isend", "irecv", "sendrecv", "bcast_object"]
        assert [call.operation for call in mine] == names * 3
        assert [call.nbytes for call in mine][:5] == [4000] * 5
        assert all(call.is_over and call.issued <= call.complete for call in mine)
        assert all(call.site.startswith("script.py:") for call in mine)
        assert [bool(call.waits) for call in mine][:6] == [False, True, True, True, False, False]
        assert all(call.waits for call in mine if call.operation in ("iallreduce", "irecv"))
    assert costs(recording).ranks[0].late > 3 * 15_000
    check_report(tmp_path / "step.json")
    whole = load(tmp_path / "whole.json")
    assert len(whole.calls) == len(recording.calls) + 2 * 3
    sums = ([call for call in each if call.operation == "allreduce"] for each in whole.by_rank.values())
    for zero, one in zip(*sums, strict=True):
        assert max(zero.issued, one.issued) < min(zero.complete, one.complete), "both ranks are on one clock"
    rows = json.loads((tmp_path / "whole.json").read_text())["traceEvents"]
    assert all(row["args"]["algorithm"] for row in rows if row.get("cat") == "allreduce")


def test_a_job_that_fails_leaves_a_trace(tmp_path: Path) -> None:
    program = f"{BEGIN}comm = mpicoll.Communicator()\ncomm.allreduce(x)\n"
    wrong = "comm.barrier() if comm.rank == 2 else comm.allreduce(x)\ncomm.barrier()\n"
    file = tmp_path / "trace.json"
    result = run(3, script(tmp_path, program + wrong), str(file), env={"MPICOLL_TRACE": str(file)})
    result.bad(f"mpicoll: the trace of 3 ranks is in {file}")
    for rank, (_, *mine) in load(file).by_rank.items():
        assert mine[0].operation == ("barrier" if rank == 2 else "allreduce")
        assert rank == 2 or not mine[-1].is_over


def test_calls_of_mpi4py(tmp_path: Path) -> None:
    for mine in recorded(tmp_path, MPI4PY, "--watch").by_rank.values():
        assert [call.operation for call in mine][:2] == ["allreduce", "allreduce"]
        kinds = {call.kind for call in mine if call.number is None}
        assert kinds == {f"{name} of 4000 bytes" for name in ("Sendrecv", "Isend", "Irecv")}
        assert all(call.is_over for call in mine)
    check_report(tmp_path / "step.json")


@NEEDS_TORCH
@pytest.mark.parametrize("backend", ["mpicoll", "gloo"])
def test_a_step_of_ddp(backend: str, tmp_path: Path) -> None:
    """The waits of its reducer are counted, though nobody sees them."""
    file = tmp_path / "step.json"
    env = {"MPICOLL_WATCH": "1", "MPICOLL_DDP_OVERLAP": "1"}
    run(2, script(tmp_path, DDP), str(file), backend, env=env).good()
    for mine in load(file).by_rank.values():
        *buckets, last, message, scattered = mine
        assert [call.nbytes for call in buckets] == [361_200] * 2
        assert buckets[0].backward != buckets[1].backward
        assert None not in (buckets[0].backward, buckets[1].backward)
        assert all(call.waits for call in buckets)
        assert (last.operation, last.nbytes, last.backward) == ("allreduce", 12, None)
        assert scattered.operation == "reduce_scatter"
        assert (message.nbytes, message.waits) == (20, ())
        assert backend == "gloo" or buckets[0].thread == ASYNCHRONOUS


def test_one_file_several_times(tmp_path: Path) -> None:
    """The last recording counts, also if it is shorter. A forked child that ends within it writes none. A message that
    is tested again and again is in the file once. A rank may record alone, and in two files."""
    program = """
        comm = mpicoll.Communicator()
        for calls in (5, 1):
            with mpicoll.record(file):
                for _ in range(calls):
                    comm.allreduce(x)
                if comm.rank == 0 and (child := os.fork()) == 0:
                    sys.exit()
                comm.rank or os.waitpid(child, 0)
                assert calls == 1 or not os.path.exists(file)
                requests = [comm.irecv(x, other, tag=tag) for tag in (0, 1)]
                comm.send(x, other, tag=1)
                while not requests[1].test():
                    pass
                for _ in range(5):
                    requests[1].test()
                comm.send(x, other, tag=0)
                while not all([request.test() for request in requests]):
                    pass
            comm.barrier()
        if comm.rank == 1:
            with mpicoll.record(file + ".alone"), mpicoll.record(file + ".too"):
                comm.allreduce(x)
            print(open(file + ".alone").read(12))
        else:
            comm.allreduce(x)
    """
    for mine in recorded(tmp_path, program).by_rank.values():
        assert [call.operation for call in mine] == ["allreduce", "irecv", "irecv", "send", "send"]
    for name in ("alone", "too"):
        recording = load(tmp_path / f"step.json.{name}")
        assert ([*recording.spans], recording.size, len(recording.calls)) == ([1], 2, 1)


def test_a_program_of_one_rank(tmp_path: Path) -> None:
    recorded(tmp_path, "with mpicoll.record(file):\n    mpicoll.Communicator().allreduce(x)", n=1)
    said = python("-m", "mpicoll", "report", str(tmp_path / "step.json"))
    assert "Not recorded are communicators of one rank" in said.output


def test_a_rank_that_comes_late_to_its_end_delays_nobody(tmp_path: Path) -> None:
    """It answers nobody meanwhile: it computes in a long call of C that holds Python's lock."""
    program = """
        comm = mpicoll.Communicator()
        comm.barrier()
        with mpicoll.record(file):
            comm.barrier()
            if comm.rank == 1:
                ctypes.PyDLL(None).usleep(8_000_000)
                came = time.monotonic()
        if comm.rank == 0:
            came = time.monotonic()
        zero, one = comm.allgather_object(came)  # both ranks have one clock
        assert zero < one, (zero, one)
    """
    assert len(recorded(tmp_path, program).spans) == 2


def test_parts_of_the_job_first(tmp_path: Path) -> None:
    """Their ranks have met without rank 0 at first. There is one file nevertheless."""
    program = """
        pair = mpicoll.Communicator(world.Split(world.rank > 0))
        comm = mpicoll.Communicator()
        with mpicoll.record(file):
            pair.barrier()
            comm.barrier()
    """
    recording = recorded(tmp_path, program, n=3)
    assert ([*recording.spans], recording.size, len(recording.calls)) == ([0, 1, 2], 3, 5)


def test_parts_of_the_job_that_never_meet(tmp_path: Path) -> None:
    program = """
        pair = mpicoll.Communicator(world.Split(world.rank // 2))
        with mpicoll.record(file):
            pair.barrier()
    """
    assert [*recorded(tmp_path, program, n=4).spans] == [0, 1]
    assert [*load(tmp_path / "step-from-rank-2.json").spans] == [2, 3]


@pytest.mark.parametrize(
    ("file", "ends", "says"),
    [
        ("step.json", "MPI.Finalize()", "the part that is recorded must end before MPI is finalised"),
        ("nowhere/step.json", "pass", "could not be written: [Errno 2] No such file"),
        (".", "pass", "expected the name of a file"),
    ],
)
def test_what_cannot_be_written(file: str, ends: str, says: str, tmp_path: Path) -> None:
    program = f"{BEGIN}comm = mpicoll.Communicator()\nwith mpicoll.record(file):\n    comm.barrier()\n    {ends}\n"
    run(2, script(tmp_path, program), str(tmp_path / file)).bad(says)
