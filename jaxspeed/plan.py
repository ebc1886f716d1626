"""Prints the plan of a config, without compiling anything.

jaxspeed plan cifar10_resnet9:ema
jaxspeed plan imagenet18:8 --csv
jaxspeed plan cifar10_airbench:94 --groups
python -m jaxspeed.plan --config=configs/imagenette.py --config.data.path=PATH

Without --config.data.path the plan uses data.train_images and data.eval_images. With it the plan
counts the images there: it reads their headers from disk, and caches their sizes for the run.
"""

from absl import flags

from jaxspeed.config import flags as command_line


def main() -> None:
  """Reads the flags and prints the plan."""
  config_flag = command_line.define_config_flag()
  command_line.define_quiet("notes")
  csv = flags.DEFINE_bool("csv", False, "Prints every step of the plan as CSV.")
  groups = flags.DEFINE_bool("groups", False, "Adds a table of the learning rates and decays.")
  parameters = flags.DEFINE_bool("parameters", False, "Adds a table of the model's parameters.")
  devices = flags.DEFINE_integer("devices", 1, "Devices that share a batch.", 1, 1_000_000)

  def run(arguments: list[str]) -> None:
    # Imported here, so that an error in JAX's import becomes a sentence.
    from jaxspeed.devices.mesh import find_devices
    from jaxspeed.models.make import parameter_table
    from jaxspeed.planning.text import csv_lines, describe
    from jaxspeed.run.planned import exchange_line, group_table, planned

    command_line.nothing_left(arguments)
    config = config_flag.value
    if csv.value:
      command_line.without_effect("beside --csv", groups, parameters)
    find_devices()  # computing shapes needs no device, but it needs JAX's backend
    found = planned(config, devices=devices.value, given=config_flag.overrides)
    config, plan = found.config, found.plan
    if csv.value:
      print("\n".join(csv_lines(config, plan)))
      return
    lines = [describe(config, plan), *found.lines, exchange_line(config)]
    if groups.value:
      lines += ["", *group_table(config, plan)]
    if parameters.value:
      lines.append(parameter_table(config))
    print("\n".join(lines))

  command_line.run(run, command="plan")


if __name__ == "__main__":
  main()
