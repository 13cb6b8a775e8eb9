"""The kernel: collectives of the ranks of one node, and arithmetic on vectors, in C."""
