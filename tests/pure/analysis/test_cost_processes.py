"""Several processes: each result in its place, and none left when one of them fails."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import active_children

import pytest

from mpicoll.analysis.cost.comparison import in_processes
from mpicoll.errors import ArgumentError, MpicollError


def late(name: str) -> tuple[str, int]:
    time.sleep(0.2 if name == "a" else 0.0)
    return name.upper(), os.getpid()


def test_results_are_in_the_order_of_the_names() -> None:
    """The first one comes last."""
    found = in_processes(late, ["a", "b", "c", "d"], 2)
    assert [upper for upper, _ in found] == ["A", "B", "C", "D"]
    assert os.getpid() not in {pid for _, pid in found}
    assert not active_children()


def refuse(name: str) -> None:
    if name == "b":
        raise ArgumentError("simulate", "b", "nothing", name)
    time.sleep(1000)


def die(name: str) -> None:
    if name == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)


def test_an_error_of_one_ends_all() -> None:
    with pytest.raises(ArgumentError, match="simulate: b: expected nothing; given b"):
        in_processes(refuse, ["a", "b", "c"], 3)
    assert not active_children()


def test_a_process_that_is_killed_ends_all() -> None:
    with pytest.raises(MpicollError, match="a process that costed an algorithm ended early"):
        in_processes(die, ["a", "b", "c"], 3)
    assert not active_children()


def test_ctrl_c_is_heard_here_alone() -> None:
    """The child has not ended by itself when this process is interrupted, and is gone after."""

    def interrupts(name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(1000)

    with pytest.raises(KeyboardInterrupt):
        in_processes(interrupts, ["a"], 1)
    assert not active_children()
