"""Arrays: where their elements lie, what they are, and the only arithmetic of the library."""
