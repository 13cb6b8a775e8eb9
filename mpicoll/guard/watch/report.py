"""What the judge says of a job that cannot go on, or that waits for long: one table of all ranks of a communicator."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress

from mpicoll.guard.recorder import BROKEN, CLOSED, FREED
from mpicoll.guard.watch.meeting import Message
from mpicoll.launch import last_calls
from mpicoll.units import named

__all__ = [
    "DIFFERENT",
    "FORGOTTEN",
    "HAS_FAILED",
    "HAS_FREED",
    "HAS_LEFT",
    "IS_GONE",
    "IS_LOST",
    "IS_SILENT",
    "MEANWHILE",
    "SLOW",
    "TIME_IS_UP",
    "files",
    "loss",
    "show",
    "text",
    "why_silent",
    "with_last_call",
]

DIFFERENT = "the ranks made different calls. The job ends"
FORGOTTEN = "the ranks made different calls, before the last ones, which are equal. The job ends"
HAS_LEFT = "a rank has come to its end, and others wait for it. The job ends"
IS_GONE = "a rank's process is gone, and others wait for it. The job ends"
IS_LOST = "a rank's process has ended before its program has. The job ends"
HAS_FAILED = "a call has failed on a rank, and others wait for it. The job ends"
HAS_FREED = "a rank has freed the communicator, and others still use it. The job ends"
IS_SILENT = "a rank does not answer, and others wait for its end. The job ends"
MEANWHILE = "ranks wait in another communicator, too"
TIME_IS_UP = "a call was not complete in time. The job ends"
SLOW = "a call has been under way for long. Nothing is wrong if a rank is still busy"

_WAITS = ": waits"
_MORE = re.compile("allreduce|reduce_scatter|allgather")
"""The calls that a program makes for each batch."""


def text(
    why: str, ranks: Sequence[int], accounts: dict[int, Message], missing: dict[int, str], latest: bool = True
) -> str:
    """The table: a line for all ranks that do the same. The accounts are of the ranks' ``latest`` calls, or else of one
    call of all."""
    lines: dict[str, list[int]] = {}
    furthest = max((account["begun"] for account in accounts.values()), default=0) if latest else 0
    for rank in sorted(ranks):
        said = missing[rank] if rank in missing else _line(accounts[rank], furthest)
        lines.setdefault(said, []).append(rank)
    who_says = {said: named(who) for said, who in lines.items()}
    width = max(map(len, who_says.values()))
    table = [f"  {who:{width}}  {said}{_since(said, lines[said], accounts)}" for said, who in who_says.items()]
    hint = _likeliest(accounts) if why == HAS_LEFT else []
    return "\n".join([f"mpicoll: {why} (communicator of {named(sorted(ranks))}):", *table, *hint])


def _likeliest(accounts: dict[int, Message]) -> list[str]:
    """What mostly is the cause where ranks have come to their ends after some calls, and others make one more."""
    ended = [rank for rank, account in sorted(accounts.items()) if account.get("leaving") and account["begun"]]
    if not ended or not any(account["waits"] and _MORE.match(account["words"] or "") for account in accounts.values()):
        return []
    ddp = ", or let DDP wait for the others: `with model.join():`" if "torch" in sys.modules else ""
    return [f"  Often {named(ended)} had fewer batches than the others: give all ranks equally many{ddp}"]


def loss(ranks: Sequence[int], accounts: dict[int, Message], lost: dict[int, str]) -> str:
    """What is known in a process of its own: the table if it is the one that tells of ``lost`` ranks, or one line."""
    table = text(IS_LOST, [*accounts, *lost], accounts, lost).splitlines()
    return "\n".join(
        [f"mpicoll: {IS_LOST} (communicator of {named(sorted(ranks))}):", *table[1:]] if lost else table[1:]
    )


def _since(said: str, ranks: list[int], accounts: dict[int, Message]) -> str:
    """How long those ranks have waited that say so. Their looks differ a little: that must not tear them apart."""
    seconds = max(accounts[rank]["seconds"] for rank in ranks) if said.endswith(_WAITS) else 0
    return f" for {seconds:.0f} s" if seconds >= 1 else ""


def _line(account: Message, furthest: int) -> str:
    number, words, site = account["number"], account["words"], account["site"]
    if account["message"] and not account["waits"] and number >= account["begun"] - 1:
        return f"{account['message']}, at {account['where']}{_WAITS}"
    if words is None and 0 <= number < account["begun"]:
        does = f"call {number}: it has made {account['begun'] - number - 1} calls since, and has forgotten this one"
    elif words is None:
        # This rank has not made the call that others speak of.
        freed = " and has freed the communicator" if account["state"] == FREED else ""
        does = "has not come" + (" and has ended its program" if account.get("leaving") else freed)
    elif account["waits"]:
        return f"call {number}: {words}, at {site}{_WAITS}"
    elif account["begun"] < furthest and number == account["begun"] - 1:
        does = f"has not come: its last call was {number}: {words}, at {site}"
    else:
        does = f"call {number}: {words}, at {site}"
        if account["state"] in (BROKEN, CLOSED):
            does += f". It cannot use the communicator any more, which is {account['state']}"
    if account.get("leaving"):
        return does
    return f"{does}. It is at {account['where']}"


def why_silent(has_come: bool, is_gone: bool) -> str:
    """Of a rank that gives no account."""
    if not has_come:
        return "has never been reached"
    return "its process has ended" if is_gone else "does not answer: it is stopped or stuck, or its node is lost"


def with_last_call(fate: str, rank: int) -> str:
    """What became of a rank's process, and what it called last, as far as that is known on this node."""
    call = last_calls.last_call(rank)
    return f"{fate}; its last collective: {call}" if call else fate


def files(written: dict[int, Message]) -> str:
    """Where the processes have written their calls, and which could not."""
    folders = sorted({each["folder"] for each in written.values() if each["folder"]})
    lines = [f"mpicoll: the last calls of each rank are in {', '.join(folders)}"] if folders else []
    failures: dict[str, list[int]] = {}
    for rank, each in sorted(written.items()):
        if each["failure"]:
            failures.setdefault(each["failure"], []).append(rank)
    for failure, who in failures.items():
        lines.append(f"mpicoll: {named(who)} could not write the last calls to {failure}")
    return "\n".join(lines)


def show(said: str) -> None:
    """Write this to stderr, though another thread may hold Python's own lock of it.

    If the program has closed it, nobody can read this. Then the job must end all the same."""
    if said:
        with suppress(OSError):
            os.write(2, said.encode(errors="replace") + b"\n")
