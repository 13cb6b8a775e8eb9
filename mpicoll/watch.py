"""``python -m mpicoll.watch script.py``: a rank of any launcher's, whose program's calls of mpi4py are watched."""

from mpicoll.launch.program import main
from mpicoll.watching.start import watch_from_init

if __name__ == "__main__":
    watch_from_init()
    main()
