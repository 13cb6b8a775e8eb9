"""The queue of the thread that carries out collectives."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from mpicoll.communicator.engine.progress import _Calls


def test_calls_come_in_order_and_none_is_lost() -> None:
    """Whether the thread sleeps or naps."""
    calls = _Calls()
    came: list[bool | None] = []
    sent: list[bool | None] = [i % 3 == 0 for i in range(20_000)]

    def serve() -> None:
        while len(came) < len(sent):
            with suppress(IndexError):  # none has come yet
                came.append(calls.get([-1, 1e-6][len(came) % 2]))

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    for each in sent:
        calls.put(each)
    server.join(60)
    assert came == sent


def test_no_call_has_come() -> None:
    calls = _Calls()
    calls.put(True)
    assert calls.get(-1) is True
    for _ in range(3):  # also where it was woken for what has been taken
        with pytest.raises(IndexError):
            calls.get(1e-3)
