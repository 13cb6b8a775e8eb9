"""Proofs of schedules, and of an algorithm of your own before it is listed."""
