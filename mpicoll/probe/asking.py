"""Asking a question whose answer may crash the process, or never come."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from mpicoll.errors import LaunchError
from mpicoll.launch.launcher import of_no_rank

SECONDS = 120.0
"""How long an answer may take. To import torch from a busy file system takes many seconds."""
SECONDS_OF_A_JOB = 60.0
"""How long a test job may take, which also imports torch."""
SECONDS_OF_ALL_JOBS = 150.0
"""How long all test jobs together may take. Other ranks wait for the rank that starts them."""


def ask(question: str, seconds: float = SECONDS) -> dict[str, Any]:
    """What a new process answers to one of the ``QUESTIONS``. Raises LaunchError, which says what happened, if there
    is no answer."""
    argv = [sys.executable, "-m", "mpicoll.probe.questions", question]
    try:
        # The process is no rank: the launcher's variables would make it take this rank's place in the job.
        child = subprocess.run(
            argv, env=of_no_rank(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"no answer within {seconds:.0f} s") from None
    if child.returncode == 0:
        answer: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
        return answer
    if child.returncode < 0:
        raise LaunchError(f"ended by {signal.Signals(-child.returncode).name}")
    last = (child.stderr.strip().splitlines() or [""])[-1]
    raise LaunchError(f"exit code {child.returncode}: {last}")
