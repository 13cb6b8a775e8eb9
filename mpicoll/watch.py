"""``python -m mpicoll.watch script.py``: a rank of any launcher's, whose program's calls of mpi4py are watched."""

from mpicoll.launch.program import main
from mpicoll.watching.start import when_mpi_begins

if __name__ == "__main__":
    when_mpi_begins()
    main()
