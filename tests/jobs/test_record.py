"""mpicoll.record and mpicoll report, as programs use them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from mpicoll.profile.costs import costs
from mpicoll.profile.recording import ASYNCHRONOUS, load
from tests.jobs.jobs import NEEDS_TORCH, python, run, script

OURS = """
    import sys, time
    import numpy as np
    import mpicoll
    from mpi4py import MPI

    comm, x = mpicoll.Communicator(), np.ones(1000, np.float32)
    other = 1 - comm.rank
    comm.allreduce(x)
    with mpicoll.record(sys.argv[1]):
        for step in range(3):
            if comm.rank == 0:
                MPI.COMM_WORLD.send(None, 1)  # which is not recorded
            else:
                MPI.COMM_WORLD.recv(source=0)
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
    print(open(sys.argv[1]).read(12))
"""
MPI4PY = """
    import os, sys, time
    import numpy as np
    import mpicoll
    from mpi4py import MPI

    comm, x = MPI.COMM_WORLD, np.ones(1000)
    other = 1 - comm.rank
    with mpicoll.record(sys.argv[1]):
        if comm.rank == 0:
            open(sys.argv[1] + ".begun", "w").close()
        while not os.path.exists(sys.argv[1] + ".begun"):
            time.sleep(0.001)
        time.sleep(0.02 * (comm.rank == 1))
        comm.Allreduce(MPI.IN_PLACE, x)
        comm.Iallreduce(MPI.IN_PLACE, x).Wait()
        comm.Sendrecv(x, other, recvbuf=x.copy(), source=other)
        MPI.Request.Waitall([comm.Isend(x, other, tag=3), comm.Irecv(x.copy(), other, tag=3)])
        request = comm.Ibarrier()
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


def said_of(file: Path) -> None:
    """The report of a recording in which rank 1 comes late, with all that it can write."""
    picture = file.with_name("step.png")
    plot = ["--plot", str(picture)] if find_spec("matplotlib") else []
    said = python("-m", "mpicoll", "report", str(file), *plot)
    assert said.code == 0, said.output
    assert " of 2 ranks on 1 node in " in said.output
    assert "llreduce" in said.output
    assert "that came late" in said.output
    assert not plot or picture.read_bytes().startswith(b"\x89PNG")


def test_all_doors_of_a_communicator(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    result = run(2, script(tmp_path, OURS), str(file))
    assert result.code == 0, result.output
    assert result.output.split() == ['{"traceEvent'] * 2, "the file is there when all ranks have left the part"
    recording = load(file)
    assert (recording.size, [*recording.spans]) == (2, [0, 1])
    for rank in (0, 1):
        mine = [call for call in recording.calls if call.rank == rank]
        names = ["allreduce", "iallreduce", "isend", "irecv", "sendrecv", "bcast_object"]
        assert [call.operation for call in mine] == names * 3
        assert [call.nbytes for call in mine][:5] == [4000] * 5
        assert all(call.is_over and call.issued <= call.complete for call in mine)
        assert all(call.site.startswith("script.py:") for call in mine)
        assert [call.blocks for call in mine][:6] == [True, False, False, False, True, True]
        assert all(call.waits for call in mine if call.operation in ("iallreduce", "irecv"))
    assert costs(recording).ranks[0].late > 3 * 15_000
    said_of(file)


def test_calls_of_mpi4py(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    assert run(2, "--watch", script(tmp_path, MPI4PY), str(file)).code == 0
    for rank in (0, 1):
        mine = [call for call in load(file).calls if call.rank == rank]
        assert [call.operation for call in mine][:2] == ["allreduce", "allreduce"]
        assert {call.kind for call in mine if call.number is None} == {
            "Sendrecv of 8000 bytes", "Isend of 8000 bytes", "Irecv of 8000 bytes",
        }  # fmt: skip
        assert all(call.is_over for call in mine)
    said_of(file)


@NEEDS_TORCH
@pytest.mark.first_mpi
@pytest.mark.parametrize("backend", ["mpicoll", "gloo"])
def test_a_step_of_ddp(backend: str, tmp_path: Path) -> None:
    """The waits of its reducer are counted, though nobody sees them."""
    file = tmp_path / "step.json"
    env = {"MPICOLL_WATCH": "1", "MPICOLL_DDP_OVERLAP": "1"}
    result = run(2, script(tmp_path, DDP), str(file), backend, env=env)
    assert result.code == 0, result.output
    for rank in (0, 1):
        *buckets, last, message, scattered = [call for call in load(file).calls if call.rank == rank]
        assert [call.nbytes for call in buckets] == [361_200] * 2
        assert buckets[0].backward != buckets[1].backward
        assert None not in (buckets[0].backward, buckets[1].backward)
        assert all(call.waits for call in buckets)
        assert (last.operation, last.nbytes, last.backward) == ("allreduce", 12, None)
        assert scattered.operation == "reduce_scatter"
        assert (message.nbytes, message.blocks) == (20, True)
        assert backend == "gloo" or buckets[0].thread == ASYNCHRONOUS


def test_messages_that_are_tested_again_and_again(tmp_path: Path) -> None:
    """Each of them is in the file once."""
    program = """
        import sys
        import numpy as np
        import mpicoll

        comm = mpicoll.Communicator()
        other = 1 - comm.rank
        with mpicoll.record(sys.argv[1]):
            requests = [comm.irecv(np.empty(4), other, tag=tag) for tag in (0, 1)]
            comm.send(np.ones(4), other, tag=1)
            while not requests[1].test():
                pass
            for _ in range(5):
                requests[1].test()
            comm.send(np.ones(4), other, tag=0)
            while not all([request.test() for request in requests]):
                pass
    """
    file = tmp_path / "step.json"
    assert run(2, script(tmp_path, program), str(file)).code == 0
    for mine in load(file).by_rank.values():
        assert [call.operation for call in mine] == ["irecv", "irecv", "send", "send"]


def test_one_rank_may_record_alone(tmp_path: Path) -> None:
    program = """
        import sys
        import numpy as np
        import mpicoll

        comm, x = mpicoll.Communicator(), np.ones(4)
        if comm.rank == 1:
            with mpicoll.record(sys.argv[1]), mpicoll.record(sys.argv[1] + ".too"):
                comm.allreduce(x)
            print(open(sys.argv[1]).read(12))
        else:
            comm.allreduce(x)
    """
    file = tmp_path / "step.json"
    result = run(2, script(tmp_path, program), str(file))
    assert (result.code, result.output.strip()) == (0, '{"traceEvent')
    for each in (file, file.with_name("step.json.too")):
        recording = load(each)
        assert ([*recording.spans], recording.size, len(recording.calls)) == ([1], 2, 1)


def test_a_trace_of_the_whole_job_has_the_same(tmp_path: Path) -> None:
    step, whole = tmp_path / "step.json", tmp_path / "whole.json"
    result = run(2, script(tmp_path, OURS), str(step), env={"MPICOLL_TRACE": str(whole)})
    assert result.code == 0, result.output
    assert len(load(whole).calls) == len(load(step).calls) + 2 * 3


def test_a_program_of_one_rank(tmp_path: Path) -> None:
    program = """
        import sys
        import numpy as np
        import mpicoll

        with mpicoll.record(sys.argv[1]):
            mpicoll.Communicator().allreduce(np.ones(4))
    """
    file = tmp_path / "step.json"
    assert run(1, script(tmp_path, program), str(file)).code == 0
    said = python("-m", "mpicoll", "report", str(file))
    assert "Not recorded are communicators of one rank" in said.output


def test_one_file_several_times(tmp_path: Path) -> None:
    """The last recording counts, also if it is shorter. A forked child that ends within it writes none."""
    program = """
        import os, sys
        import numpy as np
        import mpicoll

        comm, x = mpicoll.Communicator(), np.ones(4)
        for calls in (5, 1):
            with mpicoll.record(sys.argv[1]):
                for _ in range(calls):
                    comm.allreduce(x)
                if comm.rank == 0 and (child := os.fork()) == 0:
                    sys.exit()
                comm.rank or os.waitpid(child, 0)
                print("written early" if calls == 5 and os.path.exists(sys.argv[1]) else "")
                comm.barrier()
            comm.barrier()
    """
    file = tmp_path / "step.json"
    result = run(2, script(tmp_path, program), str(file))
    assert result.code == 0, result.output
    assert "written early" not in result.output
    assert len(load(file).calls) == 2 * 2


def test_a_rank_that_comes_late_to_its_end_delays_nobody(tmp_path: Path) -> None:
    """It answers nobody meanwhile: it computes in a long call of C that holds Python's lock."""
    program = """
        import ctypes, sys, time
        import mpicoll

        comm = mpicoll.Communicator()
        comm.barrier()
        with mpicoll.record(sys.argv[1]):
            comm.barrier()
            if comm.rank == 1:
                ctypes.PyDLL(None).usleep(8_000_000)
                came = time.monotonic()
        if comm.rank == 0:
            came = time.monotonic()
        zero, one = comm.allgather_object(came)  # both ranks have one clock
        assert zero < one, (zero, one)
    """
    file = tmp_path / "step.json"
    result = run(2, script(tmp_path, program), str(file))
    assert result.code == 0, result.output
    assert len(load(file).spans) == 2


def test_parts_of_the_job_first(tmp_path: Path) -> None:
    """Their ranks have met without rank 0 at first. There is one file nevertheless."""
    program = """
        import sys
        from mpi4py import MPI
        import mpicoll

        pair = mpicoll.Communicator(MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank > 0))
        comm = mpicoll.Communicator()
        with mpicoll.record(sys.argv[1]):
            pair.barrier()
            comm.barrier()
    """
    file = tmp_path / "step.json"
    result = run(3, script(tmp_path, program), str(file))
    assert result.code == 0, result.output
    recording = load(file)
    assert ([*recording.spans], recording.size, len(recording.calls)) == ([0, 1, 2], 3, 5)


@pytest.mark.first_mpi
def test_parts_of_the_job_that_never_meet(tmp_path: Path) -> None:
    program = """
        import sys
        from mpi4py import MPI
        import mpicoll

        pair = mpicoll.Communicator(MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank // 2))
        with mpicoll.record(sys.argv[1]):
            pair.barrier()
    """
    file = tmp_path / "step.json"
    result = run(4, script(tmp_path, program), str(file))
    assert result.code == 0, result.output
    assert [*load(file).spans] == [0, 1]
    assert [*load(file.with_stem("step-from-rank-2")).spans] == [2, 3]


@pytest.mark.first_mpi
def test_mpi_ends_within_the_part(tmp_path: Path) -> None:
    program = """
        import sys
        from mpi4py import MPI
        import mpicoll

        comm = mpicoll.Communicator()
        with mpicoll.record(sys.argv[1]):
            comm.barrier()
            MPI.Finalize()
    """
    result = run(2, script(tmp_path, program), str(tmp_path / "step.json"))
    assert result.code != 0
    assert "the part that is recorded must end before MPI is finalised" in result.output


@pytest.mark.parametrize("given", ["nowhere/step.json", "."])
def test_a_file_that_cannot_be_written(given: str, tmp_path: Path) -> None:
    program = """
        import sys
        import mpicoll

        comm = mpicoll.Communicator()
        with mpicoll.record(sys.argv[1]):
            comm.barrier()
    """
    result = run(2, script(tmp_path, program), str(tmp_path / given))
    assert result.code != 0
    expected = "expected the name of a file" if given == "." else "could not be written: [Errno 2] No such file"
    assert expected in result.output
