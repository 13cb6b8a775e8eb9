"""Runs each test where it can fail, and counts.

    python3 -m tests.matrix [--quick | --all] .venv/openmpi .venv/mpich [-- pytest's arguments, such as -k name]

The folder says what a test is. It runs on the first MPI, and again on the last:

    pure      it calls no MPI: once               ranks    all ranks of one job run it: at 2, and at 3
    jobs      it starts jobs of its own           cluster  it submits jobs to Slurm: `make slurm-test` runs it
    nodes     its ranks are on emulated nodes: `make nodes-test` runs it

Markers in the files say what is different: `sizes`, `any_mpi`, `first_mpi`, `last_mpi` (pyproject.toml explains them).
One MPI alone is the first and the last. Each number of ranks on each MPI is one launch. A launch in which no test
begins or ends for long hangs, and is ended as failed; a slow one only takes longer. Needs only the standard library,
because what the tests need lies in the environments."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from tests.processes import Job, job, plain_environment

HERE = Path(__file__).parent
SILENCE = 900.0
"""Seconds. A test that starts jobs of its own may wait for several; on a busy machine each takes minutes."""

Where = int | str
"""A number of ranks, or one of these:"""
JOBS = "jobs of their own"
PURE = "no MPI"

FIRST, LAST = 2, 3
"""Ranks on the first MPI and on the last one, where a file's marker `sizes` says nothing else."""
ALL = {1, 2, 3, 4}, {1, 2, 3}
"""Ranks on both with --all, of files that have the marker. No line or branch of mpicoll/ is executed there that others
do not execute, too. MPICH is slow where there are more ranks than cores."""
FOLDERS: dict[str, tuple[int, ...]] = {
    "tests/ranks/devices": (2,),
    "tests/ranks/torch": (2,),
    "tests/ranks/torch/programs": (2, 4),  # they have meshes of two by two, and uneven shards
}
"""The marker `sizes` of all files of a folder."""
AGAIN = ("async", "collectives", "inference_mode", "messages", "nn", "profiler")
THROUGH_TORCH = [f"tests/ranks/torch/test_{name}.py" for name in AGAIN]
"""Tests of mpicoll.torch that are run once more, with torch.distributed itself in its place, at so many ranks:"""
RANKS_THROUGH_TORCH = 3
IN_THREADS = [f"tests/ranks/torch/test_{name}.py" for name in (*AGAIN, "groups", "scenarios")]
IN_THREADS.append("tests/ranks/test_random.py")
"""Tests of ranks that are run once more with threads as ranks."""
QUICK = ["-m", "not slow"]
"""Of two ranks on the first MPI, and of what knows no MPI: for every day."""
PLAIN = ["-p", "no:hypothesispytest"]
"""Without the plugin of Hypothesis, which every process would import. Its tests know no MPI."""
WORKERS: dict[Where, list[str]] = {
    JOBS: [*PLAIN, "-n", "8", "--dist", "loadgroup"],
    PURE: ["-n", "2", "--dist", "worksteal"],
}
"""What is not ranks of one job is run by several processes. Jobs wait more than they compute. A group is what shares a
fixture."""
MEANWHILE = ["nice", "-n", "19"]
"""What knows no MPI runs beside what comes after it, and has the cores only while that waits: 3 threads leave 40 % of 2
cores, and 3 ranks on MPICH 23 %. Beside the jobs on Open MPI, too, a rank once did not answer in time."""
ELSEWHERE = ["env", f"PYTHONPATH={HERE / 'startup'}"] if "MPICOLL_TESTS_ELSEWHERE" in os.environ else []
"""As on a system that is not Linux: tests/startup/elsewhere.py. Tests that start jobs tell it to these jobs alone."""
YIELDS = ["env", "OMPI_MCA_mpi_yield_when_idle=1", "MPIR_CVAR_ENABLE_HEAVY_YIELD=1"]
"""Where more ranks run than there are cores, those that wait let others run."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
"""A rank has one core. And torch asks for the name of each address that it connects to. Where the answer is lost, ranks
would wait for five seconds, again and again."""
TAIL = 100
FRAMES = re.compile(r'  File ".*(/_pytest/|/pytest/|/pluggy/|/mpi4py/run|<frozen runpy>)')  # around every test


def files() -> list[str]:
    return sorted(str(path.relative_to(HERE.parent)) for path in HERE.rglob("test_*.py"))


def markers(file: str) -> dict[str, tuple[int, ...]]:
    """The markers that `pytestmark` gives a file, and their numbers; `sizes` may be its folder's."""
    path = PurePath(file)
    sizes = [FOLDERS[str(folder)] for folder in path.parents if str(folder) in FOLDERS]
    found = {"sizes": sizes[0]} if sizes else {}
    for node in ast.parse((HERE.parent / file).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            for each in ast.walk(node.value):
                match each:
                    case ast.Call(func=ast.Attribute(attr="sizes"), args=numbers):
                        found["sizes"] = tuple(ast.literal_eval(number) for number in numbers)
                    case ast.Attribute(attr="any_mpi" | "first_mpi" | "last_mpi" as name):
                        found[name] = ()
    return found


def places(file: str, everywhere: bool) -> tuple[set[Where], set[Where]]:
    """Where a file runs on the first MPI and on the last one; with --all ``everywhere``."""
    marks = markers(file)
    first: set[Where]
    last: set[Where]
    match PurePath(file).parts[1]:
        case "pure":
            return {PURE}, set()
        case "jobs":
            first, last = {JOBS}, {JOBS}
        case "ranks":
            first, last = {*marks.get("sizes", (FIRST,))}, {LAST}
            if everywhere and "sizes" in marks:
                first, last = first | ALL[0], last | ALL[1]
        case _:
            return set(), set()
    one_is_enough = "any_mpi" in marks or ("first_mpi" in marks and not everywhere)
    return set() if "last_mpi" in marks else first, set() if one_is_enough else last


def placed(columns: tuple[int, ...], everywhere: bool) -> dict[Where, list[str]]:
    """The files that run at each place on the first MPI, on the last one, or on both."""
    found: dict[Where, list[str]] = {}
    for file in files():
        both = places(file, everywhere)
        for where in set().union(*(both[column] for column in columns)):
            found.setdefault(where, []).append(file)
    return dict(sorted(found.items(), key=lambda it: (isinstance(it[0], str), it[0])))


def outcomes(folder: Path) -> Counter[str]:
    """What rank 0 counted, and that a test failed if it failed elsewhere."""
    found: Counter[str] = Counter()
    for file in sorted(folder.iterdir()):
        lines = [line.split()[0] for line in file.read_text().splitlines()]
        if file.name == "0":
            found.update(lines)
        elif "failed" in lines and not found["failed"]:
            found["failed"] += 1
    return found


def standing(folder: Path) -> str:
    """Where each rank was last seen."""
    notes = {file.name: file.read_text().splitlines() for file in sorted(folder.iterdir())}
    return "\n".join(f"rank {rank}: {lines[-1] if lines else 'before its first test'}" for rank, lines in notes.items())


def wait(process: subprocess.Popen[str], notes: Path) -> int | None:
    """The exit code, or None when the ranks have noted nothing for SILENCE seconds."""
    noted, since = -1, 0.0
    while True:
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            now = sum(file.stat().st_size for file in notes.iterdir())
            if now != noted:
                noted, since = now, time.monotonic()
            elif time.monotonic() - since > SILENCE:
                return None


@dataclass
class Launch:
    """A command that runs tests."""

    job: Job
    output: Path
    notes: Path
    """Where each rank notes what became of its tests."""

    def ended(self, title: str, selected: bool) -> Counter[str]:
        """Wait for it; returns its counts of passed, failed and skipped."""
        print(f"{title}: ", end="", flush=True)
        code = wait(self.job.process, self.notes)
        seconds = self.job.seconds()
        counts = outcomes(self.notes)
        nothing = counts["passed"] + counts["failed"] == 0
        if code == 5 and nothing and selected:  # pytest's code for no tests
            print("nothing selected")
            return counts
        if counts["failed"] == 0 and (code != 0 or (nothing and not selected)):
            counts["failed"] = 1
        print(", ".join(f"{counts[k]} {k}" for k in ("passed", "failed", "skipped")), f"in {seconds:.0f} s")
        if counts["failed"]:
            lines = self.output.read_text(errors="replace").splitlines()
            print("\n".join([line for line in lines if not FRAMES.match(line)][-TAIL:]))
            how = f"was killed: no test began or ended for {SILENCE:.0f} s" if code is None else f"ended with {code}"
            print(f"{title} {how}. Last seen:\n{standing(self.notes)}", flush=True)
        return counts


@contextlib.contextmanager
def begun(argv: list[str]) -> Iterator[Launch]:
    """Start such a command; leaving kills what is left of it."""
    with tempfile.TemporaryDirectory(prefix="mpicoll-tests-") as name:
        output, notes = Path(name, "output"), Path(name, "ranks")
        notes.mkdir()
        env = {**ENVIRONMENT, **plain_environment(), "MPICOLL_OUTCOMES": str(notes)}
        with job(argv, output, env, HERE.parent) as started:
            yield Launch(started, output, notes)


def launch(title: str, argv: list[str], selected: bool) -> Counter[str]:
    """Run such a command; returns its counts."""
    with begun(argv) as it:
        return it.ended(title, selected)


def ranks(python: str, n: int, tests: list[str]) -> list[str]:
    """How to start the tests as ``n`` ranks. What is written to the file of stderr, as by the watcher that ends a job,
    is shown."""
    words = ["-m", "mpicoll", "run", "-n", str(n), "-m", "pytest", *PLAIN, "--capture=sys", "--with-mpi", *tests]
    return [*(YIELDS if n > len(os.sched_getaffinity(0)) else []), *ELSEWHERE, python, *words]


def launches(environments: list[str], quick: bool, everywhere: bool) -> Iterator[tuple[str, list[str]]]:
    """The title and the command line of each."""
    columns = ((0,), (1,)) if len(environments) > 1 else ((0, 1),)
    for i, environment in enumerate(environments):
        python = str(Path(environment, "bin", "python").absolute())
        mpi = Path(environment).name
        found = placed(columns[i % 2], everywhere)
        pure = [*MEANWHILE, *ELSEWHERE, python, "-m", "pytest", *WORKERS[PURE], *found.get(PURE, [])]
        if i == 0 and quick:
            yield PURE, pure
        for n in (where for where in found if isinstance(where, int)):
            if n == 2 or not quick:
                yield f"{mpi}, {n} rank{'s' * (n > 1)}", ranks(python, n, found[n])
        if everywhere or (i == 0 and not quick):
            through_torch = ranks(python, RANKS_THROUGH_TORCH, ["--api", "torch", *THROUGH_TORCH])
            yield f"{mpi}, {RANKS_THROUGH_TORCH} ranks, torch's API", through_torch
        if not quick:
            yield f"{mpi}, {JOBS}", [*YIELDS, python, "-m", "pytest", *WORKERS[JOBS], *found[JOBS]]
        if i == 0 and not quick:
            yield PURE, pure
            yield "3 threads", [python, "-m", "pytest", *PLAIN, "--threads", "3", *IN_THREADS]


def main() -> int:
    argv = sys.argv[1:]
    cut = argv.index("--") if "--" in argv else len(argv)
    environments, chosen = argv[:cut], argv[cut + 1 :]
    quick, everywhere = (option in environments for option in ("--quick", "--all"))
    environments = [each for each in environments if not each.startswith("--")]
    if quick:
        chosen = [*QUICK, *chosen]
    # A test that takes this long prints where every thread of its rank is.
    options = ["-q", "--color=no", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={SILENCE / 3:.0f}", *chosen]
    total: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for title, command in launches(environments, quick, everywhere):
            if title == PURE:
                meanwhile = stack.enter_context(begun([*command, *options]))
            else:
                total += launch(title, [*command, *options], bool(chosen))
        total += meanwhile.ended(PURE, bool(chosen))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
