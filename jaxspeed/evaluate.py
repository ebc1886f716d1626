"""Restores a run's checkpoint and prints the accuracies that training printed.

python -m jaxspeed.evaluate --workdir=runs/quickstart
"""

import json
import pathlib

from absl import flags

from jaxspeed import config as config_lib


def main() -> None:
  """Reads the flags --workdir, --step and --data_path and evaluates."""
  workdir = flags.DEFINE_string("workdir", None, "The folder of a run of jaxspeed.train.")
  step = flags.DEFINE_integer(
    "step", None, "Which checkpoint; the default is the newest whole one."
  )
  data_path = flags.DEFINE_string("data_path", "", "Where the data are now, if they have moved.")

  def run(arguments: list[str]) -> None:
    from jaxspeed import restore

    config_lib.nothing_left(arguments)

    folder = pathlib.Path(config_lib.required("workdir", workdir.value))
    row = restore.evaluate(folder, step=step.value, data_path=data_path.value)
    print(json.dumps(row))

  config_lib.run(run)


if __name__ == "__main__":
  main()
