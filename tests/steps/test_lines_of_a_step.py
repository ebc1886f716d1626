"""What a reader meets who wants to know what a step of `cifar10_airbench.py:94` computes.

    PYTHONPATH=tests python tests/steps/test_lines_of_a_step.py [plain|fused]

lists the package's files that tracing one step enters, and how many of their lines it executes.
"""

import collections
import functools
import os
import pathlib
import subprocess
import sys

import jax
from jax.sharding import PartitionSpec as P
from toy import inputs_of, load_recipe, toy_spec

import jaxspeed
from jaxspeed.devices.mesh import AXIS
from jaxspeed.steps.train_step import train_step

PACKAGE = pathlib.Path(jaxspeed.__file__).parent


def lines_of_a_step(layers: str) -> dict[str, int]:
  """The lines executed of each file, while `train_step` is traced, with its layers in this form."""
  config = load_recipe("cifar10_airbench.py", "94")
  config.precision = "float32"
  config.model.layers = layers
  spec = toy_spec(config)
  carry, batch, table = inputs_of(spec)
  row = {name: column[0] for name, column in table.items()}
  step = functools.partial(train_step, spec=spec, kind=spec.plan.kind_of(0))
  on_device = jax.shard_map(
    step, mesh=spec.mesh, in_specs=(P(), P(AXIS), P()), out_specs=P(), check_vma=False
  )
  jax.clear_caches()  # or what was traced before would not be traced again
  executed = collections.defaultdict[str, set[int]](set)

  def trace(frame, event, _):
    if not frame.f_code.co_filename.startswith(str(PACKAGE)):
      return None
    if event == "line":
      executed[frame.f_code.co_filename].add(frame.f_lineno)
    return trace

  before = sys.gettrace()
  sys.settrace(trace)
  try:
    jax.eval_shape(on_device, carry.state, batch.replace(flip=batch.mask), row)
  finally:
    sys.settrace(before)
  return {str(pathlib.Path(file).relative_to(PACKAGE)): len(executed[file]) for file in executed}


def test_a_step_is_found_in_twelve_files_and_seven_hundred_lines():
  # In a process of its own: what other tests have traced or patched is not in it.
  environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
  command = [sys.executable, __file__, "plain"]
  ended = subprocess.run(command, env=environment, capture_output=True, text=True)
  *files, total = ended.stdout.splitlines()
  found = {name: int(lines) for lines, name in (each.split() for each in files)}
  assert "steps/train_step.py" in found and "models/layers/plain.py" in found, ended.stderr
  assert len(found) <= 12 and sum(found.values()) <= 700, found
  assert total.split() == [f"{sum(found.values())}", "lines", "of", f"{len(found)}", "files"]


if __name__ == "__main__":
  lines = lines_of_a_step(*sys.argv[1:] or ["plain"])
  for file, number in sorted(lines.items(), key=lambda each: -each[1]):
    print(f"{number:5} {file}")
  print(f"{sum(lines.values()):5} lines of {len(lines)} files")
