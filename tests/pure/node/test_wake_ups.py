"""No wake-up of the kernel is lost: a walk through all interleavings of a rank that sleeps and one that arrives.

What ``sleep_until`` and ``arrive`` of mpicoll/node/meeting.c do is written here as steps. Each processor has a buffer
of stores, which others see later, in any order of different words. A sequentially consistent operation first waits
until the buffer is empty. The system compares the word of a futex and lets the caller sleep in one step. It does not
look at the caller's buffer. In the walk a sleep has no end but a wake-up, although the kernel's sleeps are short: what
is lost here is a delay there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

Stores = tuple[tuple[str, int], ...]
Step = tuple[str, ...]


class Thread(NamedTuple):
    at: int = 0
    """The step that comes next."""
    seen: int = -1
    """What it has loaded last."""
    asleep: bool = False
    buffer: Stores = ()


class State(NamedTuple):
    memory: Stores
    threads: tuple[Thread, ...]


def program(*steps: str) -> list[Step]:
    return [tuple(step.split()) for step in steps]


SLEEPER = program("add sleepers", "load arrived", "return-unless-seen 0", "sleep arrived", "subtract sleepers")
ARRIVER = program("store arrived 1", "fence", "load sleepers", "return-if-seen 0", "wake")
"""The fence stands for the sequential consistency of the store and the load around it."""

SLEEPER_OF_MESSAGES = program("add sleepers", "load word", "return-unless sent 0", "sleep word", "subtract sleepers")
SENDER = program("store sent 1", "fence", "load sleepers", "return-if-seen 0", "add word", "wake")
"""Of mpicoll/node/messages.c: the word changes only if somebody sleeps. What is said of `sent` holds for `taken`."""

WITHOUT_FENCE = [step for step in ARRIVER if step != ("fence",)]
SLEEPER_LOOKS_EARLY = [SLEEPER[1], SLEEPER[2], SLEEPER[0], *SLEEPER[3:]]
"""What a processor may do that reorders loads. It does no harm, because the system looks once more."""
SLEEPER_COUNTS_LATE = [("add", "sleepers", "late"), *SLEEPER[1:]]
"""Its count is a plain store, which stays in the buffer."""


def value(state: State, thread: Thread, name: str) -> int:
    """What the thread sees: its own last store, or else the memory."""
    return dict([*state.memory, *thread.buffer])[name]


def stored(memory: Stores, name: str, new: int) -> Stores:
    return tuple((each, new if each == name else old) for each, old in memory)


def drained(state: State, who: int) -> Iterator[State]:
    """One store of a buffer becomes visible: the oldest one of any word."""
    thread = state.threads[who]
    for i, (name, new) in enumerate(thread.buffer):
        if name not in [earlier for earlier, _ in thread.buffer[:i]]:
            rest = thread.buffer[:i] + thread.buffer[i + 1 :]
            yield State(stored(state.memory, name, new), put(state.threads, who, thread._replace(buffer=rest)))


def put(threads: tuple[Thread, ...], who: int, thread: Thread) -> tuple[Thread, ...]:
    return (*threads[:who], thread, *threads[who + 1 :])


def stepped(state: State, who: int, steps: list[Step]) -> Iterator[State]:
    """The thread's next step, if it can be made now."""
    thread, memory, threads = state.threads[who], state.memory, state.threads
    if thread.asleep or thread.at == len(steps):
        return
    what, *words = steps[thread.at]
    after = thread._replace(at=thread.at + 1)
    match what:
        case "store":
            after = after._replace(buffer=(*thread.buffer, (words[0], int(words[1]))))
        case "add" if "late" in words:
            after = after._replace(buffer=(*thread.buffer, (words[0], value(state, thread, words[0]) + 1)))
        case "add" | "subtract":  # an atomic operation on the memory itself
            if thread.buffer:
                return
            by = 1 if what == "add" else -1
            memory = stored(memory, words[0], value(state, thread, words[0]) + by)
        case "load":
            after = after._replace(seen=value(state, thread, words[0]))
        case "fence":
            if thread.buffer:
                return
        case "return-unless-seen" | "return-if-seen":
            if (thread.seen == int(words[0])) == (what == "return-if-seen"):
                after = after._replace(at=len(steps))
        case "return-unless":  # a look at another word than the futex
            if value(state, thread, words[0]) != int(words[1]):
                after = after._replace(at=len(steps))
        case "sleep":  # the system looks at the memory, not at this thread's buffer
            after = after._replace(asleep=dict(memory)[words[0]] == thread.seen)
        case "wake":
            threads = tuple(each._replace(asleep=False) for each in threads)
        case _:
            raise ValueError(what)
    yield State(memory, put(threads, who, after))


def ends(*programs: list[Step]) -> tuple[int, set[State]]:
    """How many states there are, and those in which nothing can happen any more."""
    memory = tuple((name, 0) for name in ("arrived", "sleepers", "sent", "word"))
    first = State(memory, tuple(Thread() for _ in programs))
    seen, left, last = {first}, [first], set()
    while left:
        state = left.pop()
        after = [s for who, steps in enumerate(programs) for s in (*stepped(state, who, steps), *drained(state, who))]
        if not after:
            last.add(state)
        left += [each for each in after if each not in seen]
        seen.update(after)
    return len(seen), last


def sleeps_for_ever(*programs: list[Step]) -> bool:
    states, last = ends(*programs)
    assert states > 20, "the walk goes somewhere"
    assert any(not thread.asleep for state in last for thread in state.threads), "and ends"
    return any(thread.asleep for state in last for thread in state.threads)


def test_nobody_sleeps_for_ever() -> None:
    assert not sleeps_for_ever(SLEEPER, ARRIVER)
    assert not sleeps_for_ever(SLEEPER, SLEEPER, ARRIVER)
    assert not sleeps_for_ever(SLEEPER_LOOKS_EARLY, ARRIVER)


def test_without_the_fence_a_wake_up_is_lost() -> None:
    assert sleeps_for_ever(SLEEPER, WITHOUT_FENCE)
    assert sleeps_for_ever(SLEEPER_COUNTS_LATE, ARRIVER)
    assert sleeps_for_ever(SLEEPER_COUNTS_LATE, WITHOUT_FENCE)


def test_nobody_sleeps_for_ever_who_waits_for_a_message() -> None:
    assert not sleeps_for_ever(SLEEPER_OF_MESSAGES, SENDER)
    assert not sleeps_for_ever(SLEEPER_OF_MESSAGES, SLEEPER_OF_MESSAGES, SENDER)
    assert not sleeps_for_ever(SLEEPER_OF_MESSAGES, SENDER, SENDER)


@pytest.mark.parametrize("left_out", ["fence", "add word"])
def test_a_sender_needs_each_of_its_steps(left_out: str) -> None:
    assert sleeps_for_ever(SLEEPER_OF_MESSAGES, [step for step in SENDER if " ".join(step) != left_out])


def test_a_sleeper_reads_the_word_before_it_looks() -> None:
    counts, reads, looks, *rest = SLEEPER_OF_MESSAGES
    assert sleeps_for_ever([counts, looks, reads, *rest], SENDER)
