"""What is measured: a collective's buffers, their contents, and the check of its results."""
