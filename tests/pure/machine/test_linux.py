"""What takes the part of what only Linux has. Whole jobs without it are in tests/jobs/test_elsewhere.py."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from mpicoll.machine import linux


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The temporary folder of a system without files in memory."""
    monkeypatch.delattr("os.memfd_create", raising=False)
    monkeypatch.delattr("socket.SO_PEERCRED", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_no_other_user_enters_the_folder(elsewhere: Path) -> None:
    linux.folder().chmod(0o755)
    with pytest.raises(PermissionError, match="other users can enter it"):
        linux.folder()


def test_the_cpu_and_programs_have_names(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no /proc, two commands say them that a Mac has."""
    for command, words in (("ps", "/opt/bin/prterun"), ("sysctl", "Apple M3")):
        (elsewhere / command).write_text(f"#!/bin/sh\necho '{words}'\n")
        (elsewhere / command).chmod(0o700)
    monkeypatch.setenv("PATH", str(elsewhere), prepend=os.pathsep)

    def missing(self: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert linux.cpu_name() == "Apple M3"
    assert linux.name_of(1) == "prterun"
    monkeypatch.setenv("PATH", "")
    assert linux.cpu_name() == linux.name_of(1) == ""
