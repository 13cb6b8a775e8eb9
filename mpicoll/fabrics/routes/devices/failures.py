"""What ranks tell each other about devices that failed: a rank that goes on sends what is not its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpicoll.devices.device import Event
from mpicoll.errors import DeviceFailure

Tell = Callable[[Any], list[Any]]
"""Tells all ranks something, and returns what all ranks told."""


def failure_before(event: Event) -> str | None:
    """Wait for the event. Returns what has failed before it, None if nothing has."""
    try:
        event.wait()
    except DeviceFailure as e:
        return str(e)
    return None


def raise_any(operation: str, told: Sequence[str | None]) -> None:
    """Raise DeviceFailure, on every rank alike, if a rank has told of a failure."""
    failed = [f"rank {rank}: {failure}" for rank, failure in enumerate(told) if failure is not None]
    if failed:
        raise DeviceFailure(f"{operation}: {'; '.join(failed)}")
