"""Processes that a rank forks."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def in_child(check: Callable[[], object]) -> None:
    """``check`` passes in a forked child."""
    child = os.fork()
    if not child:
        code = 1
        try:
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
