"""Messages of the watchers: each goes over the wire as it is, and what is none is refused."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from mpicoll.errors import LaunchError
from mpicoll.supervise import messages
from mpicoll.supervise.agent import HashOf
from mpicoll.supervise.messages import Message
from mpicoll.supervise.rendezvous import listen
from mpicoll.supervise.wire import line_of, message_in


def some(kind: Any) -> Any:
    """A value of this type."""
    if kind is messages.Question[Any]:
        return HashOf("c", 3)
    if isinstance(kind, type) and issubclass(kind, Message):
        hints = get_type_hints(kind)
        return kind(*(some(hints[name]) for name in kind.fields))
    if get_origin(kind) in (list, Sequence):
        return [some(get_args(kind)[0])] * 2
    if get_origin(kind) is tuple:
        return [*map(some, get_args(kind))]  # JSON knows no others
    if get_origin(kind) is dict:
        return {"key": some(get_args(kind)[1])}
    if get_args(kind):
        return some(get_args(kind)[0])
    return {int: 7, float: 0.5, str: "words, of \u20ac and \n", bool: True, Any: None}[kind]


@pytest.mark.parametrize("kind", Message.kinds.values(), ids=Message.kinds)
def test_every_message_arrives_as_it_is(kind: Any) -> None:
    message = some(kind)
    assert message_in(line_of(message)) == message


NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("rank", "ranks", "soft", "hard", "after"),
    [
        (4, 500, 1024, 4096, 1024),
        (4, 500, NO_LIMIT, NO_LIMIT, NO_LIMIT),
        (4, 500, 20, 4096, 4096),
        (4, 500, 300, NO_LIMIT, NO_LIMIT),
        (4, 500, 20, 300, None),
        (None, 500, 1024, 4096, 1024),  # `mpicoll run` needs two for each rank: its connection, and what tells its end
        (None, 600, 1024, 4096, 4096),
    ],
)
def test_limits_of_open_files(
    rank: int | None, ranks: int, soft: int, hard: int, after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The soft limit is raised only if it must be. Where that does not help, the job does not begin."""
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    monkeypatch.setattr(os, "listdir", lambda _: ["0"] * 12)
    if after is None:
        with pytest.raises(LaunchError, match=r"rank 4 may open 300 files, and needs 520: 1 for each of 500 ranks"):
            listen(True, rank, ranks)
    else:
        listen(True, rank, ranks)[0].close()
        assert limits[-1] == (after, hard)
