"""What must hold for any input: Hypothesis draws inputs, and shrinks one that fails to its essence.

Collectives are not among them, because all ranks would have to draw and shrink alike: ``test_random.py`` has those."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpicoll.arrays.buffers import as_buffer, memory_overlaps
from mpicoll.calls import choose
from mpicoll.errors import ArgumentError
from mpicoll.supervise.messages import Message
from mpicoll.supervise.wire import message_in
from mpicoll.units import nbytes, ranges, size_text

SLOW = [HealthCheck.too_slow]
settings.register_profile("mpicoll", deadline=None, suppress_health_check=SLOW, derandomize=True, max_examples=100)
settings.load_profile("mpicoll")  # a busy machine is no failure, and a run finds what the last one found


# -- numbers in words -------------------------------------------------------------------------------------------------


@given(st.integers(1, 1 << 60))
def test_sizes_are_read_as_they_are_written(n: int) -> None:
    assert nbytes(size_text(n)) == n


@given(st.text(max_size=12))
def test_a_size_is_a_positive_number_or_none(text: str) -> None:
    found = nbytes(text)
    assert found is None or found > 0


@given(st.sets(st.integers(0, 200), min_size=1))
def test_ranges_name_all_numbers(numbers: set[int]) -> None:
    runs = [run.split("-") for run in ranges(sorted(numbers)).split(",")]
    assert {n for run in runs for n in range(int(run[0]), int(run[-1]) + 1)} == numbers


# -- memory -----------------------------------------------------------------------------------------------------------

SLICES = st.slices(24).filter(lambda s: s.step != 0)


@given(SLICES, SLICES, st.sampled_from(["u1", "<i4", "<c16"]), st.sampled_from(["u1", "<f8"]))
def test_overlap_is_that_of_bytes(first: slice, second: slice, one: str, other: str) -> None:
    memory = np.zeros(24 * 16, np.uint8)
    a, b = memory.view(one)[: 24 * 16 // np.dtype(one).itemsize][first], memory.view(other)[second]

    def touched(x: np.ndarray[Any, Any]) -> set[int]:
        begin = memory.ctypes.data
        starts = (x.ctypes.data + i * x.strides[0] - begin for i in range(x.size))
        return {start + byte for start in starts for byte in range(x.itemsize)}

    found = memory_overlaps(as_buffer(a, "test", "a"), as_buffer(b, "test", "b"))
    assert found == bool(touched(a) & touched(b))


# -- messages of the watchers -----------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([*Message.kinds]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_what_strangers_say_is_a_message_or_refused(said: Any) -> None:
    line = json.dumps(said).encode() + b"\n"
    with suppress(ValueError):
        assert type(message_in(line)).__name__ in Message.kinds


@given(st.binary(max_size=60))
def test_bytes_are_a_message_or_refused(line: bytes) -> None:
    with suppress(ValueError):
        message_in(line)


@given(st.text(alphabet="abcdeilmnrtuw_:,. ", max_size=40))
def test_any_text_of_MPICOLL_ALGORITHM_is_taken_or_refused(text: str) -> None:  # the variable's name
    with suppress(ArgumentError):
        choose._read(text)
