"""What torch.distributed says of the mistakes that it finds itself, before it asks the registered backend.

Each row names functions and rows of test_bad_input's table, by regular expressions; the first that fits counts.
A row of the table that none names is found by mpicoll, in its words.
"""

from __future__ import annotations

import re

from mpicoll.errors import ArgumentError

UNSEEN = [
    (".*", ".*: (array|tensor)", "torch raises what the array raises"),
    ("get_g.*_rank|P2POp", ".*array", "and so here, or it returns the array"),
    ("recv", "oneself", "torch looks for it in send alone"),
    (".*", r"True|group_\w+=True", "to torch True is rank 1"),
    ("P2POp", "torch's op", "it is the right one here"),
    ("P2POp", r"-?\d+|group_peer=.*", "looked at when the batch starts"),
    ("all_gather_object", "length", "what is too much stays as it is"),
    (".*_object_list", "no list", "anything that can be iterated over is taken, and its items are sent"),
    ("new_group", "timeout", "every timedelta is taken"),
    ("get_g.*_rank", "rank", "ranks of the default group are returned as they are given"),
    ("get_group_rank", "not a member", "once this rank was left out of a new group, torch has an entry for it"),
    ("get_world_size", "destroyed group", "it still has a size"),
]
"""Mistakes that torch allows or does not find, and why: (functions, rows, reason)."""

_TENSOR = "Expected parameter `{argument}` of type torch.Tensor"
_LIST = r"Expected parameter `{argument}` of type List\[torch.Tensor\]"
_NO_GROUP = "destroyed group|no group|torch's group"
WORDS: list[tuple[str, str, type[Exception], str]] = [
    (".*", "array|list|None|tensor", TypeError, _TENSOR),
    ("all_.*|reduce_scatter.*", "output", TypeError, _TENSOR),
    ("gather|gather_object", "list missing|list empty|missing", ValueError, "must be specified on destination rank"),
    ("scatter", "list missing|list empty", ValueError, "must be specified on source rank"),
    ("gather|scatter", "list is a tensor", RuntimeError, "Boolean value of Tensor"),
    (".*", "list missing|list is a tensor|no tensor in list", TypeError, _LIST),
    (".*", "dtype in list", ValueError, "tensors with different dtypes"),
    (".*", "both", ValueError, "Can't specify both group_rank and global_rank"),
    (".*", "neither", ValueError, "Must specify global_rank or group_rank"),
    ("gather.*|scatter", r"-?\d+|group_\w+=.*", ValueError, "must NOT be specified on non-(destination|source) ranks"),
    ("broadcast.*|reduce", r"0|group_\w+=0", TypeError, "incompatible function arguments"),
    (".*", "op=.*|op without factor", TypeError, "incompatible function arguments"),
    ("all_reduce", "m.. of torch.complex.*", ValueError, "all_reduce does not support .* on complex tensors"),
    ("send", "oneself", ValueError, "destination rank should not be the same"),
    ("P2POp", "op", ValueError, "Invalid ``op``"),
    ("batch_isend_irecv", "empty", IndexError, "out of range"),
    ("batch_isend_irecv", "no .*", ValueError, "Invalid ``p2p_op_list``"),
    ("all_gather_object", "no list", TypeError, "does not support item assignment"),
    ("scatter_object_list", "output", ValueError, "a list of size at least 1"),
    ("scatter_object_list", "missing", ValueError, "must provide non-None scatter_object_input_list"),
    ("scatter_object_list", "length", ArgumentError, "scatter: scatter_list: expected a list of 1"),
    ("broadcast_object_list", ".*99|.*-1", ArgumentError, "broadcast: group_src: expected a rank of the group"),
    ("(send|recv)_object_list", r"-?\d+|group_\w+=.*", ArgumentError, r"(send|recv): group_\w+: expected a rank"),
    ("monitored_barrier", "seconds", ValueError, "only implemented for GLOO"),
    ("new_group", "twice", ValueError, "must not contain duplicate entries"),
    ("new_group", "empty", TypeError, "incompatible constructor arguments"),
    ("new_group", "outside", ValueError, "should be less or equal|Rank 99 is out of range"),
    ("new_group", "no number", TypeError, "'<' not supported"),
    ("new_group", "backend", AssertionError, "Unknown backend type tcp"),
    ("get_world_size", _NO_GROUP, Exception, "'str' object has no attribute|incompatible function arguments"),
    ("get_process_group_ranks", _NO_GROUP, KeyError, "[gG]roup|world"),
    ("destroy_process_group", _NO_GROUP, ValueError, "Invalid process group specified"),
    (".*", _NO_GROUP, ValueError, "is not (initialized in the world group map|registered)"),
]
"""(functions, rows, exception, words)"""


def unseen(function: str, row: str) -> bool:
    return any(_fits(function, row, of, named) for of, named, _ in UNSEEN)


def words(function: str, row: str, argument: str | None) -> tuple[type[Exception], str] | None:
    """The exception that torch raises and its words. None if torch leaves the mistake to mpicoll."""
    for of, named, error, text in WORDS:
        if _fits(function, row, of, named):
            return error, text.replace("{argument}", (argument or "").removesuffix("[0]"))
    return None


def _fits(function: str, row: str, of: str, named: str) -> bool:
    return bool(re.fullmatch(of, function) and re.fullmatch(named, row))
