"""What tests need in which ranks of a node work in memory that they share."""

from __future__ import annotations

import pytest

from mpicoll.node import loaded

NEEDED = [pytest.mark.mpi(min_size=2), pytest.mark.skipif(loaded.kernel is None, reason=loaded.missing)]
