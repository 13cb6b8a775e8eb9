"""What the MPI library of this process does with the memory of a device: kept from before, or tried now."""

from __future__ import annotations

from collections.abc import Mapping

from mpicoll.calls.choice import PATHS
from mpicoll.devices.device import Device
from mpicoll.launch.launcher import of_no_rank
from mpicoll.machine.gpu import ucx_version
from mpicoll.machine.library import library
from mpicoll.machine.vendors import SETTINGS
from mpicoll.probe.device_job import tried
from mpicoll.probe.kept import NOT_TRIED, Key, keep, kept

_known: dict[Key, Mapping[str, str]] = {}


def key_of(device: Device) -> Key:
    """What an answer on this device holds for."""
    settings = {k: v for k, v in sorted(of_no_rank().items()) if SETTINGS.fullmatch(k)}
    return Key(library(), ucx_version(), device.model, settings)


def seen(device: Device) -> Mapping[str, str]:
    """By path, what is wrong with it: nothing if the MPI library takes the device's memory there.

    A library that says no is believed. To find out the rest, this starts jobs of two ranks, and waits for them. What
    could not be tried counts as not working in this process, and the next one tries again."""
    if not device.known_to_mpi():
        return dict.fromkeys(PATHS, "the MPI library says that it takes no such memory")
    key = key_of(device)
    found = _known.get(key) or kept(key) or {}
    if len(found) < len(PATHS):
        now = tried(device)
        shown = {**found, **{path: why for path, why in now.items() if not why.startswith(NOT_TRIED)}}
        if shown:
            keep(key, shown)
        found = {**now, **shown}
    _known[key] = found
    return found


def known(device: Device) -> Mapping[str, str]:
    """The same, but nothing is tried: what nobody has tried counts as not working."""
    found: Mapping[str, str] = {}
    if device.known_to_mpi():
        key = key_of(device)
        found = _known.get(key) or kept(key) or {}
    return {**dict.fromkeys(PATHS, "nobody has tried"), **found}
