"""What a recipe takes on more devices, on paper: step, epoch, run, cost, input, memory.

  python -m jaxspeed.scaling --config=configs/imagenet_lars.py:81920 --devices=8,128,2048 \
      --device=v100
  python -m jaxspeed.scaling --published      # the same arithmetic beside eight published runs

A step is compute and what of the gradient's all-reduces the backward pass does not hide:

  compute     launches + images a device * (side / 224)^2 / images_per_s, from a published rate of
              ResNet-50, or from a measured step: --step-ms is that of the first phase on the first
              number of --devices, without the exchange
  exchange    groups of layers (`allreduce.make_groups`), each begun where it stands in the
              compiled step (READY, LATE), one after the other; a ring or a hierarchy, whichever is
              shorter
  input       decoded images a second over what a core decodes; with --cores it bounds the step
  validation  a forward pass, a third of a training step: the backward pass has two products for
              each of its own

Not in it: what differs from step to step, waiting for the slowest of many hosts, loading files,
checkpoints, compilation. So it is rather a bound from below; results/scaling.json says by how much
against published runs.
"""

from typing import Any

from jaxspeed.config import flags as command_line


def main() -> None:
  """Reads the flags and prints."""
  config_flag = command_line.define_config_flag()
  given: list[Any] = []

  # What JAX refuses while it is imported becomes a sentence in these two.
  def define(_: list[str]) -> None:
    from jaxspeed.scaling.command import define_flags

    given.append(define_flags())

  def run(arguments: list[str]) -> None:
    from jaxspeed.scaling import command

    command_line.nothing_left(arguments)
    command.run(config_flag.value, given[0])

  command_line.run(run, define=define)


if __name__ == "__main__":
  main()
