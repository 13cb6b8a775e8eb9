"""Several processes: each result with its name, and none left when one of them fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing import active_children

import pytest

from mpicoll.analysis.cost.comparison import in_processes
from mpicoll.errors import ArgumentError, MpicollError


def late(name: str) -> tuple[str, int]:
    time.sleep(0.2 if name == "a" else 0.0)
    return name.upper(), os.getpid()


def refuses(name: str) -> None:
    if name == "b":
        raise ArgumentError("simulate", "b", "nothing", name)
    time.sleep(1000)


def dies(name: str) -> None:
    if name == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)


def interrupts(name: str) -> None:
    """It does not hear Ctrl-C itself."""
    os.kill(os.getpid(), signal.SIGINT)
    if name == "b":
        os.kill(os.getppid(), signal.SIGINT)
    time.sleep(1000)


def test_each_result_has_its_name() -> None:
    found = dict(in_processes(late, ["a", "b", "c", "d"], 2))
    assert {name: upper for name, (upper, _) in found.items()} == {"a": "A", "b": "B", "c": "C", "d": "D"}
    assert os.getpid() not in {pid for _, pid in found.values()}
    assert not active_children()


@pytest.mark.parametrize(
    ("work", "raised", "said"),
    [
        (refuses, ArgumentError, "simulate: b: expected nothing; given b"),
        (dies, MpicollError, "a process that costed an algorithm ended early"),
        (interrupts, KeyboardInterrupt, "^$"),
    ],
)
def test_what_fails_ends_all(work: Callable[[str], None], raised: type[BaseException], said: str) -> None:
    with pytest.raises(raised, match=said):
        dict(in_processes(work, ["a", "b", "c"], 3))
    assert not active_children()
