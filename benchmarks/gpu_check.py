"""Run the CUDA tests and some benchmarks on this machine's GPUs, and record the results.

    python benchmarks/gpu_check.py [--wheels DIR] [--out DIR] [--ranks 2]

The benchmarks are mpicoll's routes side by side, steps of DistributedDataParallel, and a short form of the study of MPI
and NCCL. This needs a Python that has torch, mpi4py, an MPI wheel and pytest. Or give ``--wheels``, a directory of
wheels. They are installed beside what this Python has, in an environment that is removed at the end. Nothing is
downloaded. If there is libucx-cu13 beside the wheel of Open MPI, the MPI passes messages of GPU memory. On a machine
without a GPU, the program says so and ends with exit code 0. Each step has a deadline and its own process group, so a
step that hangs counts as failed. All steps together take a quarter of an hour at most.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
STUDY = REPOSITORY / "benchmarks" / "mpi_vs_nccl" / "study.py"
DDP = REPOSITORY / "benchmarks" / "ddp_step.py"
COLLECTIVES = "allreduce,allgather,reduce_scatter,bcast,alltoall"
TESTED = 3
"""Ranks of the tests: by this number, division is not exact."""
PROBE = """
import json, torch
found = {"gpu": None}
if torch.cuda.is_available():
    found = {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(), "torch": torch.__version__,
             "cuda": torch.version.cuda}
    if torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(found))
"""


@dataclass
class Step:
    """One command: its output, and how it ended."""

    name: str
    code: int
    seconds: float
    output: str

    @property
    def verdict(self) -> str:
        if self.code == 0:
            return "passed"
        return "no end within its deadline" if self.code == 124 else f"failed with exit code {self.code}"


def run(name: str, words: list[str], deadline: float) -> Step:
    """Run a command in its own process group, and end it at the deadline (seconds)."""
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = time.monotonic()
    process = subprocess.Popen(
        words, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=deadline)
        code = process.returncode
    except subprocess.TimeoutExpired:
        code, output = 124, _ended(process)
    step = Step(name, code, time.monotonic() - start, output)
    print(f"{name}: {step.verdict}, {step.seconds:.0f} s", flush=True)
    return step


def _ended(process: subprocess.Popen[str]) -> str:
    """End the group, and give the launcher time to end its ranks. Return the output so far."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            return process.communicate(timeout=5)[0]
        except (subprocess.TimeoutExpired, ProcessLookupError):
            continue
    return ""


def probe() -> dict[str, object]:
    """What torch says about the GPU, or {"gpu": None, "reason": ...} if it sees none."""
    step = run("probe", [sys.executable, "-c", PROBE], 120)
    if step.code:
        lines = step.output.strip().splitlines()
        return {"gpu": None, "reason": lines[-1] if lines else step.verdict}
    found: dict[str, object] = json.loads(step.output.strip().splitlines()[-1])
    return found if found["gpu"] else {"gpu": None, "reason": "torch finds no GPU here"}


def environment(wheels: Path | None, where: Path) -> str:
    """A Python that has the wheels and all that this Python has. Without wheels it is this Python."""
    if wheels is None:
        return sys.executable
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", where], check=True, timeout=60)
    python = where / "bin" / "python"
    install = ["install", "-q", "--no-index", "--no-deps", "--no-compile", *map(str, sorted(wheels.glob("*.whl")))]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True, timeout=120)
    own = next(where.glob("lib/python*/site-packages"))
    outer = [p for p in [*site.getsitepackages(), site.getusersitepackages()] if os.path.isdir(p)]
    (own / "outer.pth").write_text("\n".join(outer) + "\n")
    return str(python)


def check(python: str, ranks: int, out: Path) -> Iterator[Step]:
    """Run the tests and the benchmarks. If the study fails, its missing parts run again without NCCL."""
    asked = [python, "-c", "from mpicoll.jobs.launcher import gpu_exports; print(gpu_exports())"]
    gpu = bool(subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, timeout=60).stdout.strip())
    started = [python, "-m", "mpicoll", "run", *(["--gpu"] if gpu else [])]
    tests = ["-m", "pytest", "tests/ranks", "-m", "cuda", "--with-mpi", "-q", "-rs", "--disable-warnings"]
    yield run("tests", [*started, f"-n{TESTED}", *tests, "-p", "no:cacheprovider"], 200)
    watched = ["-m", "pytest", "tests/jobs/test_hangs.py", "-k", "torch and not gloo", "-q"]
    yield run("watched programs over NCCL", [python, *watched, "-p", "no:cacheprovider"], 120)
    routes = "staged,staged:native,ipc,device" if gpu else "staged,staged:native,ipc"
    bench = ["-m", "mpicoll", "bench", "allreduce,allgather", "--device=cuda", "--backends=mpicoll", "-f16"]
    bench += [f"--algorithms={routes}", "-b1K", "-e64M", "--seconds=0.2", f"--json={out / 'routes.json'}"]
    yield run("routes", [*started, f"-n{ranks}", *bench], 60)
    ddp = [str(DDP), "--sizes=1,25,100", "--buckets=25", "--seconds=2", f"--json={out / 'ddp-step.json'}"]
    yield run("ddp-step", [*started, f"-n{ranks}", *ddp], 60)
    study = [python, str(STUDY), "--device=cuda", f"-n{ranks}", f"--out={out}", f"--collectives={COLLECTIVES}"]
    study += ["--dtypes=float32", "--max=64M", "--factor=8", "--seconds=0.3", "--deadline=60"]
    for backends, deadline in (("mpicoll,mpi,nccl,gloo", 190), ("mpicoll,mpi,gloo", 70)):
        last = run(f"study of {backends}", [*study, f"--backends={backends}"], deadline)
        yield last
        if last.code == 0:
            return


def write(found: dict[str, object], steps: list[Step], out: Path) -> None:
    """Write the summary, and what each step printed."""
    lines = [f"# GPU check, {datetime.date.today().isoformat()}", ""]
    lines += [f"- {key}: {value}" for key, value in found.items()]
    lines += [f"- Python: {platform.python_version()}", "", "| step | result | seconds |", "|---|---|---|"]
    lines += [f"| {s.name} | {s.verdict} | {s.seconds:.0f} |" for s in steps]
    (out / "summary.md").write_text("\n".join(lines) + "\n")
    for step in steps:
        text = step.output.replace(str(REPOSITORY), ".").replace(str(out), "OUT").replace("\0", "")
        (out / f"{step.name.partition(' ')[0]}.txt").write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="a directory of wheels to install first")
    parser.add_argument("--out", type=Path, help="where the record goes (benchmarks/records/gpu-<date>)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks, which share the GPUs if there are fewer (2)")
    args = parser.parse_args()
    found = probe()
    if found["gpu"] is None:
        print(f"No GPU check: {found['reason']}.")
        return 0
    print(f"{found['gpu']}, torch {found['torch']}, NCCL {found.get('nccl', 'none')}", flush=True)
    out = (args.out or REPOSITORY / "benchmarks" / "records" / f"gpu-{datetime.date.today().isoformat()}").resolve()
    out.mkdir(parents=True, exist_ok=True)
    found |= {"ranks of the tests": TESTED, "ranks of the benchmarks": args.ranks}
    steps: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="mpicoll-gpu-") as temporary:
        for step in check(environment(args.wheels, Path(temporary) / "venv"), args.ranks, out):
            steps.append(step)
            write(found, steps, out)  # what is there is kept if this program is ended
    print(steps[-1].output)
    print(f"The record is in {out}.")
    return 0 if all(step.code == 0 for step in [*steps[:3], steps[-1]]) else 1


if __name__ == "__main__":
    sys.exit(main())
