"""Lets ranks that fail report that at the same moment: who is first waits half a second for the others, which is little
on a busy machine.

``sitecustomize`` imports this where MPICOLL_TESTS_TOGETHER is set, to the number of these ranks and a folder for them.
"""

import os
import time
from contextlib import ExitStack
from pathlib import Path

from mpicoll.launch import failure

_ranks_with = failure._ranks_with


def ranks_with(report: str, until_printed: ExitStack) -> list[int]:
    number, folder = os.environ["MPICOLL_TESTS_TOGETHER"].split(":", 1)
    Path(folder, f"fails{os.getpid()}").touch()
    while len([*Path(folder).glob("fails*")]) < int(number):
        time.sleep(0.01)
    return _ranks_with(report, until_printed)


failure._ranks_with = ranks_with
