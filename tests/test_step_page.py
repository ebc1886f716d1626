"""docs/step.md: its code computes the package's own steps, in float64; how long those are."""

import ast
import collections
import functools
import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import ROOT, environment, python
from jax.sharding import PartitionSpec as P
from tolerances import EQUAL, assert_equal
from toy import inputs_of, load_recipe, toy_arrays, toy_spec

from jaxspeed.data.batch import epoch_order, seed_key, take_batch
from jaxspeed.devices.mesh import AXIS
from jaxspeed.steps.init import init_state
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.train_step import train_step

PAGE = ROOT / "docs" / "step.md"
# In place of those of the page, for seconds instead of hours.
BATCH, EPOCH_STEPS, STEPS = 16, 3, 11
# Norms of few pixels and three steps multiply rounding.
TOLERANCE = 100 * EQUAL


def page():
  """The names that the page's code defines."""
  code = "".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S))
  constants = re.compile(r"^BATCH, EPOCH_STEPS, STEPS = .*$", re.M)
  assert constants.search(code)
  names = {}
  exec(constants.sub(f"BATCH, EPOCH_STEPS, STEPS = {BATCH, EPOCH_STEPS, STEPS}", code), names)
  return names


@pytest.mark.equivalence
def test_three_steps_of_the_page_are_those_of_the_recipe():
  """The whitening bias is trained in the first; lookahead pulls after the second and the last."""
  config = load_recipe("cifar10_airbench.py", "94")
  config.precision = "float64"
  images = BATCH * EPOCH_STEPS
  config.data.update(image_size=16, train_images=images, eval_images=BATCH)
  config.update(epochs=STEPS / EPOCH_STEPS, batch_size=BATCH)
  config.model.widths = (8, 16, 16)
  config.schedule.peak *= BATCH / 1024
  spec, data = toy_spec(config), toy_arrays(config)
  names, key, seed = page(), jax.random.key(5), seed_key(5)
  table = spec.plan.table_in(np.float64)
  assert spec.plan.total_steps == STEPS
  assert_equal(np.stack([names["rate"](n) for n in range(STEPS)]), table["learning_rate"])

  first = STEPS - 3
  begin = jax.jit(on_mesh(init_state, spec))
  state = begin(seed, data.train_images).replace(step=jnp.int32(first))
  momenta = jax.tree.map(jnp.zeros_like, state.params)
  slow = (state.params, state.batch_stats)
  theirs = (state.params, state.batch_stats, momenta, slow)
  step = jax.jit(names["step"])
  for number in range(first, STEPS):
    epoch, begins = number // EPOCH_STEPS, number % EPOCH_STEPS * BATCH
    ours_order = epoch_order(seed, epoch, images, flip="alternating")
    with jax.numpy_dtype_promotion("standard"):
      index, flip = names["order"](key, epoch, images)
    np.testing.assert_array_equal(ours_order.index, index)
    np.testing.assert_array_equal(ours_order.flip, flip)
    rows = slice(begins, begins + BATCH)
    batch = take_batch(
      jnp.asarray(data.train_images), jnp.asarray(data.train_labels), ours_order, begins, BATCH
    )
    with jax.numpy_dtype_promotion("standard"):
      theirs = step(theirs, key, number, batch.image, batch.label, flip[rows])
    ours = jax.jit(on_mesh(train_step, spec, kind=spec.plan.kind_of(number)))
    state, _ = ours(state, batch, {name: column[number] for name, column in table.items()})
  assert_equal(
    jax.device_get((state.params, state.batch_stats)), jax.device_get(theirs[:2]), TOLERANCE
  )
  moved = state.params["whiten"]["bias"] != slow[0]["whiten"]["bias"]
  assert moved.any()


def lines_of_a_step():
  """The number of lines executed of each file of the package while a step is traced."""
  config = load_recipe("cifar10_airbench.py", "94")
  config.update(precision="float32")
  config.model.layers = "plain"
  spec = toy_spec(config)
  carry, batch, table = inputs_of(spec)
  row = {name: column[0] for name, column in table.items()}
  step = functools.partial(train_step, spec=spec, kind=spec.plan.kind_of(0))
  on_device = jax.shard_map(
    step, mesh=spec.mesh, in_specs=(P(), P(AXIS), P()), out_specs=P(), check_vma=False
  )
  package, executed = str(ROOT / "jaxspeed"), collections.defaultdict(set)

  def trace(frame, event, _):
    if not frame.f_code.co_filename.startswith(package):
      return None
    if event == "line":
      executed[frame.f_code.co_filename.removeprefix(package)].add(frame.f_lineno)
    return trace

  jax.clear_caches()  # or what was traced before would not be traced again
  sys.settrace(trace)
  jax.eval_shape(on_device, carry.state, batch.replace(flip=batch.mask), row)
  sys.settrace(None)
  return {file: len(numbers) for file, numbers in executed.items()}


def test_a_step_is_found_in_twelve_files_and_seven_hundred_lines():
  # In a process of its own: what other tests have traced, patched or left is not in it.
  code = "import conftest, test_step_page; print(test_step_page.lines_of_a_step())"
  done = python("-c", code, env=environment(PYTHONPATH=os.pathsep.join(sys.path)))
  lines = ast.literal_eval(done.stdout)
  assert {"/steps/train_step.py", "/models/layers/plain.py"} <= lines.keys()
  assert len(lines) <= 12 and 200 < sum(lines.values()) <= 700, lines
