"""Learning rate x batch size of CIFAR-10: 36 trainings of the last rung of the ResNet-9 ladder.

  python -m jaxspeed.launch submit configs/sweeps/cifar10_lr_batch.py --config.data.path=PATH
  python -m jaxspeed.launch results runs/cifar10-lr-batch

The learning rates are multiples of the recipe's, which grow in proportion to the batch (the linear
scaling rule of Goyal et al. 2017, arXiv:1706.02677), three seeds each. Where does the rule end?
"""

from jaxspeed.launch import Local, Run

# The recipe's batch and the peak of its learning rate.
BATCH, PEAK = 512, 1.0


def sweep():
  # One job at a time on all GPUs; on four GPUs Local(parallel=4) gives each job its own.
  with Run("cifar10-lr-batch", executor=Local(), root="runs") as run:
    for batch in (256, 512, 1024, 2048):
      for factor in (0.5, 1.0, 2.0):
        for seed in range(3):
          overrides = {
            "batch_size": batch,
            "schedule.peak": factor * PEAK * batch / BATCH,
            "seed": seed,
          }
          run.job("configs/cifar10_resnet9.py:flip_tta", overrides)
  return run
