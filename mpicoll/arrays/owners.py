"""Who owns an address that does not lie in the host's memory.

CUDA owns it, unless a device that is listed here says that it does.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakValueDictionary


class Owner(Protocol):
    """A device with memory of its own. ``name`` says which one, as in ``cuda:0``."""

    name: str

    def owns(self, address: int) -> bool:
        """Whether the address lies in the device's memory."""


owners: WeakValueDictionary[str, Owner] = WeakValueDictionary()
"""Owners by name, as long as anybody holds them. They list themselves."""


def owner_of(address: int) -> Owner | None:
    """The listed owner of an address; None if it has none."""
    listed = (ref() for ref in owners.valuerefs())  # a list of its own: another thread may add an owner meanwhile
    return next((owner for owner in listed if owner is not None and owner.owns(address)), None)
