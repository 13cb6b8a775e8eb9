"""How ranks begin and end: how they are started, what each does before the program, MPI's lifetime, and failures."""
