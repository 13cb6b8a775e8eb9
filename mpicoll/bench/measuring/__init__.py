"""Runs the calls of all backends in turns, and takes their times."""
