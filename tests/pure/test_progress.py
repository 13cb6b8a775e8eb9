"""The queue of the thread that carries out collectives."""

from __future__ import annotations

import threading

import pytest

from mpicoll.communicator.engine.progress import _Calls


def test_calls_come_in_order_and_none_is_lost() -> None:
    calls, came = _Calls(), []
    sent: list[bool | None] = [i % 3 == 0 for i in range(20_000)]

    def send() -> None:
        for each in [*sent, None]:
            calls.put(each)

    sender = threading.Thread(target=send)
    sender.start()
    while True:
        try:
            call = calls.get(1e-6)
        except IndexError:
            continue
        if call is None:
            break
        came.append(call)
    sender.join()
    assert came == sent


def test_no_call_has_come() -> None:
    calls = _Calls()
    calls.put(True)
    assert calls.get(-1) is True
    for _ in range(3):  # also where it was woken for what has been taken
        with pytest.raises(IndexError):
            calls.get(1e-3)
