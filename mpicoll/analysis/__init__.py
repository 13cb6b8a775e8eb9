"""Readers of schedules that run nothing: proofs, costs and drawings."""
