"""Says what this machine is, what is wrong with it, and what to expect of it, in seconds.

  python -m jaxspeed.doctor
  python -m jaxspeed.doctor --config=imagenet18:4             # and the time and memory it needs
  python -m jaxspeed.doctor --data=/data/imagenet             # and how many GPUs its decoding feeds
  python -m jaxspeed.doctor --json

It checks versions, CPUs, memory, disk, the devices, and whether driver, CUDA and cuDNN fit them; it
measures matrix products, memory and all-reduces. What is to mend comes with the line to type.
Nothing that hangs or crashes in a driver ends it. It uses no network, and writes nothing but
temporary files.

Exit codes: 0 nothing to mend; 1 something to mend, or an unexpected error; 2 a mistake in the
flags; 130 Ctrl-C.
"""

import dataclasses
import functools
import os
import sys
from collections.abc import Iterable
from typing import Any

from absl import flags
from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.config import flags as command_line
from jaxspeed.doctor import decode, devices, machine, rules
from jaxspeed.doctor.findings import Finding, mend, show
from jaxspeed.errors import UserError, plural
from jaxspeed.files import dump_json, expanded, to_json
from jaxspeed.records.clock import process_age


def main() -> None:
  """Reads the flags, examines the machine and prints the report."""
  config_flag = command_line.define_config_flag()
  data_flag = flags.DEFINE_string("data", "", "Folder of images, or of TFDS's shards, to decode.")
  json_flag = flags.DEFINE_bool("json", False, "Prints one JSON object.")

  def run(arguments: list[str]) -> None:
    command_line.nothing_left(arguments)
    folder = data_flag.value
    if folder and not os.path.isdir(expanded(folder, "--data")):
      state = "is not a folder" if os.path.exists(expanded(folder, "--data")) else "does not exist"
      raise UserError(f"--data={folder} {state}: name a folder of images or of shards.")
    if not examine(config_flag.value, folder, as_json=json_flag.value):
      sys.exit(1)

  command_line.run(run)


def examine(config: ConfigDict | None, folder: str, *, as_json: bool) -> bool:
  """Prints the report; returns whether there is nothing to mend.

  Args:
    config: a recipe to predict; None: none.
    folder: a data path to decode; "": none.
    as_json: whether to print one JSON object.
  """
  found: dict[str, list[Finding]] = {}
  facts = functools.cache(lambda: devices.probe(config.precision if config is not None else ""))

  def recipe() -> Iterable[Finding]:
    if config is None or not facts().ceilings:
      return []
    # Imports JAX, which the process of `probe` has shown to work.
    from jaxspeed.doctor import forecast

    rate = next((each.facts["images_per_s"] for each in found["data"] if each.facts), 0.0)
    return forecast.check(config, facts(), rate)

  console = Console(highlight=False)
  for name, check in {
    "software": rules.check_software,
    "machine": machine.check,
    "devices": lambda: devices.check(facts()),
    "ceilings": lambda: devices.check_ceilings(facts()),
    "data": lambda: decode.check(expanded(folder, "--data")) if folder else [],
    "recipe": recipe,
  }.items():
    try:
      found[name] = list(check())
    except Exception as error:
      reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
      what = f"{name} could not be examined: {reason}"
      found[name] = [mend(what, "JAX_PLATFORMS=cpu python -m jaxspeed.doctor")]
    if found[name] and not as_json:
      show(console, name, found[name])
  to_mend = [name for name, each_of in found.items() for each in each_of if each.level == "mend"]
  if as_json:
    report: dict[str, Any] = {"well": not to_mend, "seconds": round(process_age(), 2)}
    report["environment"] = facts().environment
    report["checks"] = {name: [*map(dataclasses.asdict, each)] for name, each in found.items()}
    print(dump_json(to_json(report), indent=1))
  else:
    places = f"{plural(len(to_mend), 'thing')} to mend: {', '.join(dict.fromkeys(to_mend))}"
    console.print(places if to_mend else "nothing to mend", style="bold", markup=False)
    console.print(f"examined in {process_age():.1f} s")
  return not to_mend


if __name__ == "__main__":
  main()
