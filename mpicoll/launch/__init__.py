"""How ranks begin and end: starting them, what a rank does before the program, MPI's life, failures."""
