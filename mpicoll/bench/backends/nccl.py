"""NCCL, called through ``torch.distributed``: what it is told, and what it says of the ways that its messages take.

It writes its log to a file. A line of it that tells of a connection has one of these forms, which NCCL's user guide
shows (Troubleshooting, Logging). They were read in public logs, and not on a GPU of this project's::

    NODE:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
    NODE:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
    NODE:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/3/GDRDMA
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from mpicoll.bench.backends import Unavailable
from mpicoll.bench.backends.torchlike import TIMEOUT, Torchlike, distributed, torch_itself
from mpicoll.bench.session import Session

_SUBSYSTEMS = "INIT,P2P,SHM,NET"
_FEW_BLOCKS = "8"
"""CTAs a rank. Kernels of all ranks must find room on their GPU at the same time, because they wait for each other."""


class Nccl(Torchlike):
    """NCCL's collectives on a group of torch's."""

    def __init__(self, module: Any, log: Log) -> None:
        super().__init__(module, log.route, module.new_group(backend="nccl", timeout=TIMEOUT))
        self._log = log

    def close(self) -> None:
        super().close()
        self._log.remove()


def open_nccl(session: Session) -> Nccl:
    torch = torch_itself()
    if not session.on_gpu:
        gpu = "NCCL works on GPU memory only (--device cuda)"
        raise Unavailable(gpu if torch.cuda.is_available() else "there is no GPU")
    if not torch.distributed.is_nccl_available():
        raise Unavailable("this torch was built without NCCL")
    log = Log.asked_for(os.environ)
    if session.sharing > 1:
        for name, value in settings_for_sharing(torch.cuda.nccl.version(), session.world.rank).items():
            os.environ.setdefault(name, value)
    return Nccl(distributed(), log)


def settings_for_sharing(version: tuple[int, ...], rank: int) -> dict[str, str]:
    """What lets NCCL of this version have several ranks on one GPU. By default it refuses them."""
    if version >= (2, 30):
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": _FEW_BLOCKS}
    # It takes each rank for one on a host of its own, and does not see that they share a GPU. They meet over sockets.
    return {"NCCL_HOSTID": f"mpicoll-bench-{rank}"}


class Log:
    """What NCCL writes in this process. ``file`` is None if the program has asked for a log of its own."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    @classmethod
    def asked_for(cls, environment: MutableMapping[str, str]) -> Log:
        """Ask NCCL for a log of its connections, unless its log goes elsewhere already."""
        if "NCCL_DEBUG" in environment or "NCCL_DEBUG_FILE" in environment:
            return cls(None)
        handle, name = tempfile.mkstemp(prefix="mpicoll-nccl-")
        os.close(handle)
        environment.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS=_SUBSYSTEMS, NCCL_DEBUG_FILE=name)
        return cls(Path(name))

    def route(self) -> str:
        """``nccl``, and the transports of all connections so far: it makes them at the first call that needs them."""
        if self._file is None:
            return "nccl, transport unknown: NCCL_DEBUG is set"
        return " over ".join(filter(None, ["nccl", " and ".join(transports(self._file.read_text(errors="replace")))]))

    def remove(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def transports(log: str) -> list[str]:
    """The transports of the connections in a log, each once: ``P2P/CUMEM``, ``SHM/direct``, ``NET/IB/GDRDMA``."""
    found = re.findall(
        r"\bChannel \d+(?:/\d+)? ?: .* via ((?:P2P|SHM|NET|COLLNET)/.+?)(?: comm 0x.*)?$", log, re.MULTILINE
    )
    return list(dict.fromkeys(_transport(name.strip().split("/")) for name in found))


def _transport(parts: list[str]) -> str:
    """Its kind and the way, without the number of a network card. Direct memory access of a card to GPUs counts."""
    return "/".join(parts[:2] + ["GDRDMA"] * ("GDRDMA" in parts[2:]))
