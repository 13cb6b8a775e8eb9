"""Where a call was made: the program's frame, whatever lies between it and mpicoll."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from mpicoll.supervise.sites import handled, is_program, place_of


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/me/train.py", True),
        (threading.__file__, False),
        ("<frozen runpy>", False),
        (str(Path(place_of.__code__.co_filename)), False),
        ("<stdin>", True),
        ("/venv/lib/python3.11/site-packages/typing_extensions.py", False),  # torch decorates functions with it
    ],
)
def test_whose_file(file: str, expected: bool) -> None:
    assert is_program(file) is expected


COLLECTS = """
import gc, threading
from mpicoll.supervise.sites import frames_now

class Cycle:
    def __init__(self):
        self.me, self.local = self, threading.local()
        self.local.x = 1

go = threading.Event()
for _ in range(20):
    threading.Thread(target=go.wait, daemon=True).start()
gc.disable()
kept = [Cycle() for _ in range(10)]
gc.collect(0)  # into the next generation, which is collected while the frames of the threads are made
del kept
gc.set_threshold(1, 1, 1000)
gc.enable()
assert len(frames_now()) == 21
assert gc.isenabled()
"""


def test_garbage_is_not_collected_meanwhile() -> None:
    """CPython 3.11 would wait for itself."""
    subprocess.run([sys.executable, "-c", COLLECTS], check=True)


def test_what_a_library_handles() -> None:
    def of_library() -> str:
        try:
            raise ValueError
        except ValueError:
            return handled()

    named = of_library.__code__.replace(co_filename=json.__file__)
    assert types.FunctionType(named, globals())() == ""
