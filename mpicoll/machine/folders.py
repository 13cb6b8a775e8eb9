"""Where the user's files are. A container may run as a user whom the system does not know, who has no home then."""

from __future__ import annotations

import os
from pathlib import Path

_BELOW_HOME = {"XDG_CACHE_HOME": ".cache", "XDG_CONFIG_HOME": ".config", "XDG_DATA_HOME": ".local/share"}


def home() -> Path | None:
    """The user's home: HOME, or what the system's list of users says. None if there is neither."""
    found = os.path.expanduser("~")
    return Path(found) if os.path.isabs(found) else None


def user_folder(variable: str) -> Path | None:
    """What one of the XDG Base Directory Specification's variables names, or else its folder in the user's home. None
    if there is none. As the specification has it, a folder that is not absolute does not count."""
    named, at_home = os.environ.get(variable, ""), home()
    if os.path.isabs(named):
        return Path(named)
    return at_home and at_home / _BELOW_HOME[variable]
