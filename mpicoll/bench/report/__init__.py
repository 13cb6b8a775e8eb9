"""Shows what a benchmark measured: the table, the files, the pictures."""
