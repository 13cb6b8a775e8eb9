"""What connects the ranks of a communicator: an MPI library, or memory that threads share."""
