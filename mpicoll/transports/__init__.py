"""How a schedule's messages travel: as MPI messages, through shared memory, or between threads."""
