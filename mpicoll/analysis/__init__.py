"""Readers of schedules that run nothing: proof, cost and drawings."""
