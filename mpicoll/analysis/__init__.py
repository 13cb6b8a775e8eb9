"""Static analyses of schedules: proofs, costs and drawings."""
