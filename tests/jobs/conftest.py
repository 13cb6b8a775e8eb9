"""How the programs end that these tests start."""

import pytest


@pytest.fixture
def usual_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As outside of tests: Python looks for garbage once more, and what it finds is finalized."""
    monkeypatch.setenv("MPICOLL_TESTS_USUAL_END", "1")
