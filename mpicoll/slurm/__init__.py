"""Job scripts for Slurm."""
