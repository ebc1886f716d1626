"""One hundred seeds of the CIFAR-10 record: mean accuracy, its interval, and p of the target.

  python -m jaxspeed.launch submit configs/sweeps/record_seeds.py --config.data.path=PATH
  python -m jaxspeed.launch results runs/record-seeds

A record is claimed for a mean: airbench's readers expect the t-test of "the true mean is at most 94
%" over many runs. Each of the ten jobs trains ten seeds with one compilation; `results` joins them.
"""

from jaxspeed.launch import Local, Run

JOBS, RUNS = 10, 10


def sweep():
  # One job at a time, so that no other work disturbs the times.
  with Run("record-seeds", executor=Local(), root="runs") as run:
    for job in range(JOBS):
      run.job("configs/cifar10.py", {"runs": RUNS, "seed": RUNS * job})
  return run
