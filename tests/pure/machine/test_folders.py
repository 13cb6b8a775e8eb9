"""Where the user's files are, also where the system does not know the user."""

from __future__ import annotations

import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpicoll.jobs.launcher import of_no_rank
from mpicoll.machine.system import home, user_folder
from mpicoll.probe.device_memory import cached, file_of, keep
from mpicoll.slurm import sbatch

KEY = {"mpi": "an MPI"}


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without HOME whom the system does not know, as in containers."""

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_of_a_user_whom_the_system_does_not_know(nobody: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert home() is None
    assert file_of(KEY) is None
    keep(KEY, {"messages": ""})
    assert cached(KEY) is None
    assert sbatch.files() == [Path("/etc/mpicoll/slurm.toml")]
    assert of_no_rank()["HOME"] == "/"
    assert not [*tmp_path.iterdir()]


def test_what_the_variables_name(nobody: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/data")
    assert user_folder("XDG_CACHE_HOME") == Path("/data")
    monkeypatch.setenv("HOME", "/me")
    assert of_no_rank()["HOME"] == "/me"
    monkeypatch.delenv("HOME")  # a service of systemd has none, though the system knows its user
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_dir="/of/the/user"))
    assert of_no_rank()["HOME"] == "/of/the/user"
    monkeypatch.setenv("HOME", "/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "not absolute")
    assert user_folder("XDG_CACHE_HOME") == Path("/me/.cache")
    assert user_folder("XDG_CONFIG_HOME") == Path("/me/.config")
