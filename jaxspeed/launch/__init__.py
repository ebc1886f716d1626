"""Runs of many jobs from Python: on this machine, on a Slurm cluster, on clouds.

from jaxspeed.launch import Run, Local, Slurm, Sky, grid

with Run("lr-sweep", executor=Local(parallel=2), root="runs") as run:
  for overrides in grid(**{"schedule.peak": [1.0, 2.0], "seed": range(3)}):
    run.job("configs/quickstart.py", overrides)
run.start()
print(Run.load("runs/lr-sweep").status())
"""

from jaxspeed.launch.local import Local
from jaxspeed.launch.run import Run
from jaxspeed.launch.sky import Sky
from jaxspeed.launch.slurm import Slurm
from jaxspeed.launch.sweep import grid

__all__ = ["Local", "Run", "Sky", "Slurm", "grid"]
