"""What tests need in which ranks of a node work in memory that they share."""

from __future__ import annotations

import os

import pytest

from mpicoll.machine import blocks
from mpicoll.machine.linux import SHARES
from mpicoll.node import loaded

SHARED = loaded.kernel is not None and SHARES and "MPICOLL_TESTS_ELSEWHERE" not in os.environ
"""Whether the ranks of a node have the kernel and memory that they share, here and in the jobs that a test starts."""
NEEDS_SHARED = pytest.mark.skipif(not SHARED, reason=loaded.missing or "ranks share no memory here")
NEEDED = [pytest.mark.mpi(min_size=2), NEEDS_SHARED]
LONG = 8 * blocks.LEAST
"""Elements of an array that is long enough to be shared, whatever its dtype."""
