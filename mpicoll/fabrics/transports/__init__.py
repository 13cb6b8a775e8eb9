"""What a schedule's messages go through: MPI messages, shared memory, or the common memory of threads."""
