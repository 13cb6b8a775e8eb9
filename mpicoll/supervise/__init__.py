"""Agreement: whether all ranks of a communicator make the same calls."""
