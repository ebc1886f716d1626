"""imagenet18 on 1, 2, 4, 8 and 16 machines of eight GPUs: the scaling that fast.ai published.

  python -m jaxspeed.launch submit configs/sweeps/imagenet18_machines.py \
      --root=/shared/runs --config.data.path=/shared/imagenet
  python -m jaxspeed.launch results /shared/runs/imagenet18-machines --metric=to_target

Published on p3.16xlarge (8 V100 each): 109 min on one machine, 16 min on sixteen, 93 % top-5. Each
number of machines has its own phases and learning rates. The root must lie on a disk that all nodes
share; partition, account and the like are fields of Slurm.
"""

from jaxspeed.launch import Run, Slurm

MACHINES = (1, 2, 4, 8, 16)


def sweep():
  nodes = {n: Slurm(nodes=n, gpus_per_node=8, time="6:00:00") for n in MACHINES}
  with Run("imagenet18-machines", executor=nodes[1], root="runs") as run:
    for n in MACHINES:
      run.job(f"configs/imagenet18.py:{n}", {"target": 0.93}, executor=nodes[n])
  return run
