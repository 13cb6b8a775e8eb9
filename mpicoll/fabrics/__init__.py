"""The fabrics, which connect the ranks of a communicator: an MPI library, or the common memory of threads."""
