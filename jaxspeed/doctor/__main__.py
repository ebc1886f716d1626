"""Says what this machine is, what is wrong with it, and what to expect of it, in some 20 seconds.

  python -m jaxspeed.doctor
  python -m jaxspeed.doctor --config=imagenet18:4             # and the time and memory it needs
  python -m jaxspeed.doctor --data=/data/imagenet             # and how many GPUs the disk feeds
  python -m jaxspeed.doctor --json

It prints versions, CPUs, memory, the cache of compiled programs, the devices, and whether driver,
CUDA and cuDNN fit them; it measures all-reduces, matrix products and memory, and while they run
the clocks; and at the end what to mend, each with the line to type. It uses no network, and writes
nothing but temporary files. Several processes, started by srun or mpirun or with --coordinator,
also time the all-reduce between their hosts; process 0 prints.

Exit codes: 0 nothing to mend; 1 something to mend, or an unexpected error; 2 a mistake in the
flags; 130 Ctrl-C.
"""

import os
from typing import Any

from absl import flags

from jaxspeed.config import checks
from jaxspeed.config import flags as command_line
from jaxspeed.config.imports import define_import_flag
from jaxspeed.errors import UserError
from jaxspeed.files import expanded


def main() -> None:
  """Reads the flags and prints the report."""
  config_flag = command_line.define_config_flag()
  define_import_flag()
  data_flag = flags.DEFINE_string("data", "", "Folder of images, or of TFDS's shards, to time.")
  json_flag = flags.DEFINE_bool("json", False, "Prints one JSON object.")
  coordinator_flag = flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0 of several.")
  processes_flag = flags.DEFINE_integer("num_processes", None, "The number of processes.")
  process_flag = flags.DEFINE_integer("process_id", None, "The number of this process, from 0.")

  def define(_: list[str]) -> None:
    if flags.FLAGS["config"].value:
      _prepare_models()

  def run(arguments: list[str]) -> None:
    from jaxspeed.cluster.peers import find_peers
    from jaxspeed.doctor import command

    command_line.nothing_left(arguments)
    config, data = config_flag.value, data_flag.value
    if config is not None:
      checks.check(config)
    _check_folder("--data", data)
    if config is not None and config.data.path and not data:
      path = expanded(config.data.path, "config.data.path")
      if not path.exists():
        _check_folder("config.data.path", config.data.path)
      # An archive, a CSV file, or what is held in memory is not timed.
      if config.data.feed == "stream" and path.is_dir():
        data = config.data.path
    peers = find_peers(coordinator_flag.value, processes_flag.value, process_flag.value)
    command.main(command.Wish(config, _published(), data, json_flag.value, peers))

  command_line.run(run, define=define)


def _check_folder(name: str, data: str) -> None:
  """Raises a UserError if a path, unless it is empty, names no folder."""
  if data and not os.path.isdir(expanded(data, name)):
    state = "is no folder" if os.path.exists(expanded(data, name)) else "does not exist"
    raise UserError(f"{name}={data} {state}: name a folder of images or of shards.")


def _prepare_models() -> None:
  """Registers the models, whose fields a recipe may set."""
  from jaxspeed.doctor import jax_devices

  jax_devices.prepare()
  from jaxspeed.models import make  # noqa: F401


def _published() -> Any:
  """What is published of the recipe that --config names."""
  import sys

  from jaxspeed.config.recipe import Published, published

  file, colon, variant = (command_line.value_of("config", sys.argv) or "").partition(":")
  if not file:
    return Published()
  return published(file, variant if colon else None)


if __name__ == "__main__":
  main()
