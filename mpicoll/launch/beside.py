"""Threads beside the main one of ``mpicoll run``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any


def beside(do: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Start a thread that gets no signals. Python handles them in the main thread alone, and that one does not wake up
    for a signal that another thread got. ``timeout`` sends two at once, and then another thread often gets one."""
    thread = threading.Thread(target=do, args=arguments, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
