"""A call of a collective: its checked arguments, the choice of its algorithm, and the plan that repeats it."""
