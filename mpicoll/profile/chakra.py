"""A recording as execution traces of MLCommons Chakra, which simulators such as ASTRA-sim replay.

A trace is a file for each rank: messages of Protocol Buffers, each after its length. First the metadata, then a node
for each call, and one for the computation before it. See schema/protobuf/et_def.proto in github.com/mlcommons/chakra.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from mpicoll.profile.recording import Call, Recording

_VERSION = "0.0.4"
_COMPUTATION, _SEND, _RECV, _COLLECTIVE = 4, 5, 6, 7
"""Kinds of nodes."""
_COLLECTIVES = {
    "allreduce": 0, "reduce": 1, "allgather": 2, "gather": 3, "scatter": 4, "bcast": 5, "alltoall": 6,
    "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
_INT64, _UINT64, _BOOL, _STRING = 9, 13, 27, 29
"""The fields of an attribute's value, by its type."""


def write(recording: Recording, folder: Path) -> None:
    """Write ``folder/RANK.et`` for each rank that has recorded. A call that Chakra has no kind for is computation."""
    folder.mkdir(exist_ok=True)
    for rank in recording.spans:
        nodes = [_block(_field(1, _VERSION.encode())), *map(_block, _nodes(recording, rank))]
        (folder / f"{rank}.et").write_bytes(b"".join(nodes))


def _nodes(recording: Recording, rank: int) -> Iterator[bytes]:
    """A rank's calls in the order of their issue. Each one depends on the computation before it, and what follows
    depends on a call when the program has waited for it."""
    ids = count(1)
    open_calls: list[tuple[int, float]] = []
    now, before = recording.spans[rank][0], 0
    for call in recording.by_rank[rank]:
        waited = [before, *(node for node, complete in open_calls if complete <= call.issued)]
        open_calls = [(node, complete) for node, complete in open_calls if complete > call.issued]
        computation, node = next(ids), next(ids)
        begin = max(now, call.issued)
        yield _node(computation, "computation", _COMPUTATION, [each for each in waited if each], now, begin - now)
        yield _node(
            node, call.description, _kind(call), [computation], begin, max(0.0, call.complete - begin), _about(call)
        )
        before = node if call.blocks else computation
        if not call.blocks:
            open_calls.append((node, call.complete))
        now = max(now, call.complete if call.blocks else call.method[1])


def _kind(call: Call) -> int:
    if call.number is not None:
        return _COLLECTIVE if call.collective in _COLLECTIVES else _COMPUTATION
    if len(call.targets) + len(call.sources) != 1 or call.operation.startswith("Win."):
        return _COMPUTATION  # a sendrecv, a message of any rank, or a wait for another rank's use of a window
    return _SEND if call.targets else _RECV


def _about(call: Call) -> list[bytes]:
    ranks = call.communicator.ranks
    found = [_attribute("is_cpu_op", _BOOL, 1), _attribute("comm_size", _INT64, call.nbytes)]
    found.append(_attribute("pg_name", _STRING, call.communicator.name))
    if call.number is not None:
        found.append(_attribute("comm_type", _INT64, _COLLECTIVES.get(call.collective, 0)))
        if call.root is not None:
            found.append(_attribute("root_rank", _UINT64, ranks[call.root]))
    elif _kind(call) == _SEND:
        found += [_attribute("comm_src", _UINT64, call.rank), _attribute("comm_dst", _UINT64, ranks[call.targets[0]])]
    elif _kind(call) == _RECV:
        found += [_attribute("comm_src", _UINT64, ranks[call.sources[0]]), _attribute("comm_dst", _UINT64, call.rank)]
    return found


def _node(
    number: int, name: str, kind: int, needs: list[int], begin: float, seconds: float, about: list[bytes] | None = None
) -> bytes:
    fields = [_field(1, number), _field(2, name.encode()), _field(3, kind)]
    if needs:
        fields.append(_field(5, b"".join(map(_varint, needs))))
    fields += [_field(6, round(begin)), _field(7, round(seconds))]
    return b"".join([*fields, *(_field(10, each) for each in about or [_attribute("is_cpu_op", _BOOL, 1)])])


def _attribute(name: str, kind: int, value: int | str) -> bytes:
    return _field(1, name.encode()) + _field(kind, value.encode() if isinstance(value, str) else value)


# -- Protocol Buffers -------------------------------------------------------------------------------------------------


def _field(number: int, value: int | bytes) -> bytes:
    """A field of a message: a number, or bytes after their length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _block(value)


def _block(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """A number in as many bytes as it needs, seven bits in each."""
    found = []
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
