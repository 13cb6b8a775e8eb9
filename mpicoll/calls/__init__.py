"""One validated call: its buffers, which algorithm serves it, and its plan."""
