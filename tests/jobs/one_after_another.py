"""Runs scripts, each as a program of its own, one after another in one process: what FILE prints goes to FILE.RANK.

one_after_another.py WORKING_DIRECTORY FILE ..."""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import redirect_stdout

from mpicoll.launch.launch_env import launched_rank


def leave_groups() -> None:
    """As the end of a process does, so that the next script can make its own."""
    for name in ("mpicoll.torch", "torch.distributed"):
        module = sys.modules.get(name)
        if module is not None and module.is_initialized():
            module.destroy_process_group()


os.chdir(sys.argv[1])
for file in sys.argv[2:]:
    with open(f"{file}.{launched_rank() or 0}", "w") as out, redirect_stdout(out):
        runpy.run_path(file, run_name="__main__")
    leave_groups()
