"""Trains a recipe, or goes on with the run that its folder holds.

python -m jaxspeed.train --config=configs/quickstart.py --workdir=runs/quickstart
"""

from absl import flags

from jaxspeed import config as config_lib
from jaxspeed.errors import UserError


def main() -> None:
  """Reads the flags --config and --workdir and trains."""
  config_flag = config_lib.define_config_flag()
  workdir_flag = flags.DEFINE_string(
    "workdir", "", "The run's folder; the default is runs/ and the recipe's name."
  )

  def run(arguments: list[str]) -> None:
    from jaxspeed import loop

    config_lib.nothing_left(arguments)

    config = config_flag.value
    if config is None:
      raise UserError("--config=FILE.py names the recipe to train, as in configs/quickstart.py.")
    loop.train(config, workdir_flag.value or f"runs/{config.name.replace('/', '-')}")

  config_lib.run(run)


if __name__ == "__main__":
  main()
