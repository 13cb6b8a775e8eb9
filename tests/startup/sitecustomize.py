"""What every Python that these tests start does first: it looks for garbage less often, and not when it ends.

Most of these programs end after a second, in which they import thousands of objects that stay. To look at these again
and again took 7 % of all jobs' time, and to look at them when a program of torch ends a quarter of such a program's. A
test of how programs end has the fixture ``usual_end``, with which they end as everywhere."""

import atexit
import gc
import importlib
import os

if "MPICOLL_TESTS_ELSEWHERE" in os.environ:
    importlib.import_module("elsewhere")  # it takes away what only Linux has

if "MPICOLL_TESTS_TOGETHER" in os.environ:
    importlib.import_module("together")  # ranks report at the same moment that they fail

gc.set_threshold(50_000, 20, 20)
if "MPICOLL_TESTS_USUAL_END" not in os.environ:
    atexit.register(gc.freeze)
