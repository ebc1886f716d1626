"""LARS against the reference's formula in NumPy, in float64."""

import numpy as np
import pytest
from small_net import gradients_of_step, made, make_config, named, random, small_net, trained
from tolerances import EQUAL, assert_equal

from jaxspeed.optim import lars as lars_lib

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

STEPS = 20
# Of large batches: warm-up, then a fall.
RATES = list(np.interp(np.arange(STEPS), [0, 6, 19], [0.0, 20.0, 0.1]))
MOMENTA = np.linspace(0.98, 0.9, STEPS)


def lars_net():
  net = small_net()
  del net["whiten"]
  net["layer2"]["conv"]["kernel"] *= 0  # no norm, in the first step
  return net


def lars_gradients(step):
  gradients = gradients_of_step(step)
  del gradients["whiten"]
  if step == 3:
    gradients["layer1"]["conv"]["kernel"] *= 0
  return gradients


def numpy_lars(config):
  """In float64, from mlcommons/training's lars_optimizer.py."""
  fields = config.optimizer
  decay = fields.weight_decay
  # Fujitsu's decay follows the rate; in the ratio it stands as at the peak.
  ratio_decay = 13.0 * decay if fields.decay_follows_rate else decay
  low, high = fields.lars_clip or (-np.inf, np.inf)
  weights = named(lars_net())
  momentum = {name: np.zeros_like(leaf) for name, leaf in weights.items()}
  for number, rate in enumerate(RATES):
    m = MOMENTA[number] if fields.momentum_segments else fields.momentum
    for name, g in named(lars_gradients(number)).items():
      w, ratio = weights[name], 1.0
      if name.endswith("['kernel']"):
        w_norm, g_norm = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
        if w_norm > 0 and g_norm > 0:
          ratio = fields.lars_eta * w_norm / (g_norm + ratio_decay * w_norm + fields.lars_epsilon)
          ratio = min(max(ratio, low), high)
        g = g + decay * w
      scaled = rate * ratio * g
      momentum[name] = m * momentum[name] - scaled
      weights[name] = w + (m * momentum[name] - scaled if fields.nesterov else momentum[name])
  return weights


PLAIN = dict(name="lars", momentum=0.9, nesterov=False, weight_decay=0.05, lars_eta=0.01)


@pytest.mark.parametrize(
  "changes, schedule",
  [
    (dict(), {}),
    (dict(nesterov=True), {}),
    (dict(momentum=0.0), {}),
    (dict(weight_decay=0.0), {}),
    (dict(lars_epsilon=10.0), {}),
    (dict(lars_clip=(0.009, 0.011)), {}),
    (dict(momentum_segments=((0, 1, 0.98, 0.9),)), {}),
    (dict(momentum_segments=((0, 1, 0.98, 0.9),), nesterov=True), {}),
    (dict(decay_follows_rate=True), dict(peak=13.0)),
    (dict(decay_follows_rate=True), dict(segments=((0, 1, 0.5, 13.0), (1, 2, 13.0, 0.5)))),
  ],
)
def test_twenty_steps_of_lars_are_the_references(changes, schedule):
  config, plain = (make_config(bias_epochs=0.0, **PLAIN | each) for each in (changes, {}))
  config.schedule.update(schedule)
  columns = {"momentum": MOMENTA} if config.optimizer.momentum_segments else {}
  parts = dict(net=lars_net, gradients=lars_gradients)
  expected, kernel = numpy_lars(config), "['prep']['conv']['kernel']"
  assert_equal(trained(made(config, lars_net()), RATES, **parts, **columns)[0], expected)
  without = numpy_lars(plain)[kernel]
  assert np.allclose(expected[kernel], without, rtol=1e-3) is (changes == {})


def test_norms_of_any_sizes_in_one_pass():
  # Around whole rows of 4,096 numbers, more arrays than one kernel takes, and zeros.
  sizes = [1, 4095, 4096, 4097, 7 * 7 * 3 * 64, *[5] * 75]
  leaves = [random((size,), seed) for seed, size in enumerate(sizes)]
  leaves.append(np.zeros((2, 3)))
  expected = [np.sqrt((leaf**2).sum()) for leaf in leaves]
  # What a GPU computes; a CPU takes the arrays one by one.
  for norms in (lars_lib.norms_together, lars_lib.norms_one_by_one):
    np.testing.assert_allclose(norms(leaves), expected, rtol=EQUAL)
