"""Runs of many jobs: on this machine, on Slurm, on clouds."""
