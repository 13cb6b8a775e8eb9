"""What this machine and this job will do: facts of every rank, what is wrong with them, and what to do about it."""
