"""``python -m mpicoll.rank script.py``: what each rank of a job executes.

``mpicoll run`` starts this file by its path. With ``-m``, Python would look for all modules in the current folder
first: a ``random.py`` of the user's, or another checkout of mpicoll, would be taken for the right one."""

import os
import sys

_BY_PATH = __name__ == "__main__" and __spec__ is None and not sys.flags.safe_path

if _BY_PATH:
    _root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    _found = _root in sys.path
    sys.path[:1] = [] if _found else [_root]  # in the place of this file's folder

from mpicoll.launch.launch_env import WATCH  # noqa: E402
from mpicoll.launch.program import main  # noqa: E402

if _BY_PATH:
    sys.path[: not _found] = [os.getcwd()]  # as `python -m` begins

if __name__ == "__main__":
    if os.environ.get(WATCH) == "1":
        from mpicoll.watching.start import watch_from_init

        watch_from_init()
    main()
