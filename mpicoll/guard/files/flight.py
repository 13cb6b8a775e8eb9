"""A snapshot in the form that torch's ``torchfrtrace`` reads: torch/distributed/flight_recorder in torch's wheel."""

from __future__ import annotations

from typing import Any

from mpicoll.guard.recorder import DONE, LENGTH

_VERSION = "2.10"
"""The version of the format that torch 2.13 writes."""
_DESCRIPTION = "mpicoll"
"""What is said of each group."""
_BACKEND = "gloo"
"""torchfrtrace refuses names of backends that it does not know."""

# It also knows a list of collectives only. An operation that is not among them takes the name of a similar one, which
# no other operation of the same shape has. mpicoll's own description follows the name.
_NAMES = {
    "bcast": "broadcast",
    "reduce": "reduce",
    "allreduce": "all_reduce",
    "gather": "gather",
    "gatherv": "gather",
    "allgather": "all_gather",
    "allgatherv": "all_gather_v",
    "scatter": "scatter",
    "scatterv": "scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatterv": "reduce_scatter_v",
    "alltoall": "all_to_all_single",
    "alltoallv": "all_to_all_v_single",
    "scan": "_reduce_oop",
    "exscan": "_reduce_oop",
    "barrier": "barrier",
    "bcast_object": "_broadcast_oop",
    "gather_object": "gather",
    "allgather_object": "all_gather_v",
    "scatter_object": "scatter",
    "alltoall_object": "all_to_all_v_single",
}
_OTHER = "split"


def kept_by_all(calls: int) -> int:
    """The first call that all ranks of a communicator still have, if one rank has made so many ``calls``."""
    return max((calls - 1) // LENGTH * LENGTH - LENGTH, 0)


def recording(snapshot: dict[str, Any], since: dict[str, int]) -> dict[str, Any]:
    """What torchfrtrace reads of one rank. ``since`` has the first call of each communicator that is of interest.

    torchfrtrace takes a call for missing that one rank has forgotten and another has not."""
    entries = [
        _entry(communicator, call)
        for communicator in snapshot["communicators"]
        for call in communicator["calls"]
        if call["number"] >= since.get(communicator["name"], 0)
    ]
    groups = {each["name"]: each["ranks"] for each in snapshot["communicators"]}
    return {
        "version": _VERSION,
        "pg_config": {name: {"name": name, "desc": _DESCRIPTION, "ranks": str(r)} for name, r in groups.items()},
        "entries": sorted(entries, key=lambda entry: entry["time_created_ns"]),
    }


def _entry(communicator: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    operation = call["operation"]
    given, gotten = _sizes(operation, call["elements"], len(communicator["ranks"]))
    seen = int(call["seen"] * 1e9)
    return {
        "record_id": 0,  # where first records differ among ranks, torchfrtrace drops all that are older, of any group
        "pg_id": 0,
        "process_group": (communicator["name"], _DESCRIPTION),
        "collective_seq_id": call["number"],
        "p2p_seq_id": 0,
        "op_id": call["number"],
        "profiling_name": f"{_BACKEND}:{_NAMES.get(operation, _OTHER)} {call['description'].replace(':', '=')}",
        "time_created_ns": seen,
        "time_discovered_started_ns": seen,
        "time_discovered_completed_ns": None,
        "duration_ms": None,
        "input_sizes": given,
        "input_dtypes": [call["dtype"]],
        "output_sizes": gotten,
        "output_dtypes": [call["dtype"]],
        "state": "completed" if call["state"] == DONE else "started",
        "retired": call["state"] == DONE,
        "timeout_ms": 0,
        "is_p2p": False,
        "frames": [{"name": call["function"], "filename": call["file"], "line": call["line"]}],
    }


def _sizes(operation: str, elements: int, ranks: int) -> tuple[list[list[int]], list[list[int]]]:
    """The sizes of a rank's input and output, if its longest array has so many elements."""
    if not elements:
        return [[]], [[]]
    part = elements // ranks
    match operation:
        case "allgather" | "gather":
            return [[part]], [[elements]]
        case "reduce_scatter" | "scatter":
            return [[elements]], [[part]]
        case _:
            return [[elements]], [[elements]]
