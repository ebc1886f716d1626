"""Number formats, the precision of products, and loss scaling."""

import concurrent.futures
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import toy_config, toy_spec

from jaxspeed.devices import precision
from jaxspeed.devices.precision import LossScale
from jaxspeed.errors import UserError


def device(platform, **fields):
  return types.SimpleNamespace(platform=platform, **fields)


@pytest.mark.parametrize(
  "kind, expected",
  [
    (device("cpu"), "float32"),
    (device("gpu", compute_capability="7.0"), "float16"),  # V100
    (device("gpu", compute_capability="7.5"), "float16"),  # T4
    (device("gpu", compute_capability="8.0"), "bfloat16"),  # A100
    (device("gpu", compute_capability="9.0"), "bfloat16"),  # H100
    (device("gpu", compute_capability="10.0"), "bfloat16"),  # B200; not "less than 8"
    (device("gpu", compute_capability="gfx90a"), "bfloat16"),  # MI250
    (device("tpu"), "bfloat16"),
  ],
)
def test_auto_is_what_the_device_is_fast_in(kind, expected):
  assert precision.resolve("auto", kind) == expected


def test_float64_is_for_cpus_with_jaxs_64_bit_types():
  with pytest.raises(UserError, match="'float64': JAX's 64-bit .* off: set JAX_ENABLE_X64=1 in"):
    toy_spec(toy_config(precision="float64"))
  with precision.wide_enough("float64"):
    assert precision.resolve("float64", device("cpu")) == "float64"
    assert precision.accumulation(precision.DTYPES["float64"]) == np.float64
    with pytest.raises(UserError, match="'float64': it is for CPUs, and .*: .*JAX_PLATFORMS=cpu"):
      precision.resolve("float64", device("gpu", compute_capability="9.0"))


@pytest.mark.parametrize("name", precision.DTYPES)
def test_the_types_are_there_in_every_thread_of_a_block_and_as_before_behind_it(name):
  def width():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      return pool.submit(lambda: jnp.zeros(1, float).dtype.itemsize).result()

  with precision.wide_enough(name):
    assert width() == (8 if name == "float64" else 4)
    with precision.wide_enough("float32"):
      assert width() == (8 if name == "float64" else 4)
  assert width() == 4
  with pytest.raises(ZeroDivisionError), precision.wide_enough(name):
    raise ZeroDivisionError
  assert width() == 4


@pytest.mark.parametrize(
  "given, steps, expected",
  [  # so many finite steps, or with a minus so many that overflow
    (0.0, [1999], (2.0**16, 1999)),
    (0.0, [2000], (2.0**17, 0)),
    (0.0, [4001], (2.0**18, 1)),
    (0.0, [1999, -1], (2.0**15, 0)),
    (0.0, [1999, -1, 2000], (2.0**16, 0)),
    (0.0, [-17], (1.0, 0)),  # halvings that are not too many
    (1024.0, [4001, -1], (1024.0, 0)),  # a given one never changes
  ],
)
def test_a_loss_scale_doubles_after_2000_finite_steps_and_halves_at_an_overflow(
  given, steps, expected
):
  scale = LossScale.create(given)
  for count in steps:
    finite = jnp.bool_(count > 0)
    scale = jax.lax.fori_loop(0, abs(count), lambda _, s, f=finite: s.update(f), scale)
  assert (float(scale.scale), int(scale.good_steps)) == expected
  assert int(scale.skipped) == -sum(count for count in steps if count < 0)
  assert float(scale.reported_loss(jnp.float32(0))) == 0


def test_the_loss_tells_when_too_many_steps_in_a_row_were_skipped():
  told, scale = [], LossScale.create(1e9)
  for _ in range(precision.MOST_SKIPPED):
    told.append(float(scale.reported_loss(jnp.float32(2.5))))
    scale = scale.update(jnp.bool_(False))
  assert told == [2.5] * precision.MOST_SKIPPED
  assert float(scale.reported_loss(jnp.float32(2.5))) == precision.TOO_MANY_SKIPPED
  scale = scale.update(jnp.bool_(True))
  assert (int(scale.in_row), int(scale.skipped)) == (0, precision.MOST_SKIPPED)
  assert float(scale.reported_loss(jnp.float32(2.5))) == 2.5


@pytest.mark.parametrize("value, finite", [(1e30, True), (np.nan, False), (-np.inf, False)])
def test_one_number_that_is_not_finite_is_seen_and_the_old_tree_is_taken(value, finite):
  new = {"a": jnp.zeros((3, 4)).at[2, 1].set(value), "n": [jnp.int32(1)]}
  old = {"a": jnp.full((3, 4), 7.0), "n": [jnp.int32(0)]}
  found = precision.all_finite({"a": new["a"]})
  assert bool(found) is finite
  taken = precision.select(found, new, old)
  jax.tree.map(np.testing.assert_array_equal, taken, new if finite else old)
