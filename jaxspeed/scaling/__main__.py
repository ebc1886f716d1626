"""Predicted time, cost, input rate and memory of a recipe on more devices; it runs nothing.

  python -m jaxspeed.scaling --config=configs/imagenet_lars.py:81920 --devices=8,128,2048 \
      --device=v100

The time of a step is its compute plus the part of its all-reduces that the kernels do not hide:

  compute     launches + images per device * (side / 224)^2 / images_per_s, from a published rate
              of ResNet-50 and the model's work beside its, or from --step-ms: a measured step of
              the first phase on the first number of --devices, without the all-reduce
  all-reduce  groups of layers (`allreduce.make_groups`), one after the other, each started at its
              place in the compiled step (READY, LATE), by the faster of a ring and a hierarchy
  input       cores needed to decode the images; with --cores it bounds the step
  validation  a forward pass, a third of a training step: the backward pass has two matrix products
              for each of the forward pass

The prediction leaves out variation between steps, waiting for the slowest of many hosts, file
loading, checkpoints and compilation. With the same code it is a lower bound; faster code than that
of the published rate, such as MLPerf's, takes less. results/scaling.json has the errors of
published runs (by scripts/published_times.py of commit 6a9faa2).
"""

from jaxspeed.config import flags as command_line


def main() -> None:
  """Parse the flags and print the predictions."""
  from jaxspeed.scaling import command  # imports JAX, and `finish` reports what its import raises

  config_flag, given = command_line.define_config_flag(), command.define_flags()

  def run(arguments: list[str]) -> None:
    command_line.nothing_left(arguments)
    command.run(config_flag.value, given)

  command_line.run(run, command="scaling")


if __name__ == "__main__":
  command_line.finish(main)
