"""What a recording of calls says: what a part of a program costs, and why. It runs nothing."""
