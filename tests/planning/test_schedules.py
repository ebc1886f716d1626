"""Schedules against torch and arithmetic: learning rates of plans, averages, the whitening bias."""

import fractions

import numpy as np
import pytest
from recipes import get_config

from jaxspeed.config import fields
from jaxspeed.planning import make, schedules
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.own_schedule import evaluate

STEPS, EPOCHS = 20, 12  # steps per epoch, epochs


def rates(epochs=float(EPOCHS), **schedule):
  config = fields.base()
  config.update(epochs=epochs, batch_size=10)
  config.data.update(train_images=10 * STEPS)
  config.model = {"name": "resnet9"}
  config.schedule.update(schedule)
  return make_plan(config).table["learning_rate"]


def close(found, expected):
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.max(expected))


def torchs(name, *given, warmup=0, start=0.0):
  """The learning rates of a scheduler of torch, with a peak of 0.3, after a LinearLR."""
  torch = pytest.importorskip("torch")
  schedulers = torch.optim.lr_scheduler
  optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.3)
  found = getattr(schedulers, name)(optimizer, *given)
  if warmup:
    rise = schedulers.LinearLR(optimizer, start_factor=start, total_iters=warmup)
    found = schedulers.SequentialLR(optimizer, [rise, found], milestones=[warmup])
  values = []
  for _ in range(STEPS * EPOCHS):
    values.append(optimizer.param_groups[0]["lr"])
    optimizer.step()
    found.step()
  return np.array(values)


RISE = dict(warmup=0.25, start=0.01)
# A config's schedule, and torch's with the steps of its warm-up.
TORCHS = [
  (dict(name="cosine", final=0.1), ("CosineAnnealingLR", 240, 0.03)),
  (dict(name="cosine", final=0.1) | RISE, ("CosineAnnealingLR", 180, 0.03)),
  (dict(name="linear", power=2.2) | RISE, ("PolynomialLR", 180, 2.2)),
  # torchvision's references take one step of StepLR after each epoch.
  (dict(name="step", step_size=5.0, gamma=0.2), ("StepLR", 5 * STEPS, 0.2)),
  # Stairs count from the end of the warm-up.
  (dict(name="step", step_size=3.0, gamma=0.1) | RISE, ("StepLR", 3 * STEPS, 0.1)),
  (
    dict(name="exponential", step_size=2.4, gamma=0.97),
    ("ExponentialLR", 0.97 ** (1 / (2.4 * STEPS))),
  ),
  (dict(name="constant") | RISE, ("ConstantLR", 1.0, 0)),
]


@pytest.mark.parametrize("fields, theirs", TORCHS)
def test_a_schedule_is_torchs(fields, theirs):
  fields = dict(warmup=0.0, peak=0.3) | fields
  rise = int(fields["warmup"] * STEPS * EPOCHS)
  expected = torchs(*theirs, warmup=rise, start=fields.get("start", 0.0))
  close(rates(read="start", **fields), expected)
  # Read at its end, a step has the rate of the next one, but on a stair its own.
  ahead, n = rates(read="end", **fields), rise if fields["name"] == "step" else 239
  np.testing.assert_allclose(ahead[:n], expected[1 : n + 1], rtol=0, atol=3e-13)
  if fields["name"] == "step":
    close(ahead[rise:], expected[rise:])


def test_a_cosine_may_stay_at_its_end():
  share = np.clip(((np.arange(240) + 1) / STEPS - 3) / (12 - 3 - 2), 0, 1)
  expected = 0.2 * (0.05 + 0.95 * (1 + np.cos(np.pi * share)) / 2)
  found = rates(name="cosine", peak=0.2, final=0.05, warmup=0.25, flat_epochs=2.0)
  close(found[60:], expected[60:])
  # Without room for a decay, it ends at once.
  close(rates(name="cosine", peak=0.2, final=0.05, warmup=0.25, flat_epochs=12.0)[60:], 0.01)


@pytest.mark.parametrize("size", [0.1, 0.15, 0.2, 0.7, 1.1, 2.4])
def test_no_stair_is_a_step_early_or_late(size):
  # In doubles 0.6 / 0.2 is less than 3.
  stair = [
    int(fractions.Fraction(step, STEPS) / fractions.Fraction(str(size))) for step in range(240)
  ]
  found = rates(name="step", peak=1.0, warmup=0.0, step_size=size, gamma=0.9)
  np.testing.assert_allclose(found, 0.9 ** np.array(stair), rtol=1e-12)


def test_schedules_by_epoch_follow_phases_of_different_lengths_and_a_cut_end():
  config = get_config("imagenette")
  config.epochs = 4.3
  config.phases.update(first_epoch=(0, 1, 3), batch_size=(128, 256, 64))
  config.schedule.update(name="step", peak=0.4, warmup=0.0, step_size=2.0, gamma=0.5)
  plan = make_plan(config)
  steps = [9469 // batch for batch in (128, 256, 256, 64)] + [45]
  assert plan.total_steps == sum(steps) and steps[4] == -(-3 * (9469 // 64) // 10)
  expected = np.repeat(0.4 * 0.5 ** np.array([0, 0, 1, 1, 2]), steps)
  close(plan.table["learning_rate"], expected)
  config.schedule.update(name="cosine", warmup=0.0, final=0.0)
  full = [9469 // batch for batch in (128, 256, 256, 64, 64)]
  pairs = zip(full, steps, strict=True)
  position = np.concatenate([e + (np.arange(n) + 1) / of for e, (of, n) in enumerate(pairs)])
  share = np.minimum(position / 4.3, 1)
  close(make_plan(config).table["learning_rate"], 0.2 * (1 + np.cos(np.pi * share)))


def test_a_table_is_of_the_config_as_it_was_planned_and_computed_once_asked(monkeypatch):
  config, asked = get_config("quickstart"), []
  # The launcher plans jobs on machines whose GPUs other jobs need.
  monkeypatch.setattr(make, "evaluate", lambda *given: asked.append(given) or evaluate(*given))
  plan = make_plan(config)
  config.schedule.peak = 7.0
  assert not asked and plan.table["learning_rate"].max() == pytest.approx(0.3)
  assert plan.table is plan.table


def test_values_are_in_float64_and_rounded_operation_by_operation():
  # Fused, a * a - (a * a rounded) would be what its rounding lost, on processors that fuse.
  a = 1 + 2.0**-30
  np.testing.assert_array_equal(evaluate(lambda x: x * x - a * a, np.full(9, a)), np.zeros(9))
  fields = dict(total=20.0, peak=0.1, start=0.2, final=0.1, warmup=0.0, flat=4.0)
  for name in ("linear", "constant", "cosine", "step", "exponential"):
    schedule = schedules.learning_rate(name=name, power=1.0, step_size=30.0, gamma=0.1, **fields)
    rates = evaluate(schedule, np.linspace(0, 20, 7))
    assert rates.dtype == np.float64 and rates.shape == (7,) and rates[0] == 0.1


def test_an_average_reaches_back_over_a_share_of_the_steps_so_far():
  keep = schedules.average_keep(np.arange(1000) % 100, decay=0.99, every=1, reach=0.2)
  step = np.arange(1, 1001)
  # Up to step 5 a fifth of the steps is no more than one; from 500 on 0.99 is less than 1 - 5 / t.
  np.testing.assert_array_equal(keep[:5], np.zeros(5))
  np.testing.assert_allclose(keep[5:500], 1 - 5 / step[5:500], rtol=1e-14)
  np.testing.assert_array_equal(keep[500:], np.full(500, 0.99))
  # It is updated as seldom as it is told.
  keep = schedules.average_keep(np.arange(30) % 10, decay=0.9, every=4, reach=0.5)
  np.testing.assert_array_equal(np.flatnonzero(keep != 1.0), [0, 4, 8, 10, 14, 18, 20, 24, 28])
  assert keep[10] == pytest.approx((1 - 2 / 11) ** 4, rel=1e-14)
  assert keep[28] == pytest.approx(0.9**4, rel=1e-14)


@pytest.mark.parametrize(
  "epochs, from_epoch, keep, pulled",
  [
    # The last step is due and keeps the whole decay.
    (np.arange(10) // 10, 0, {5: 0.9**5 / 8, 10: 0.9**5}, [5, 10]),
    # It does not begin with the last step of the epoch before.
    (np.arange(20) // 10, 1, {15: 0.0, 20: 0.9**5}, [20]),
    # A run too short for it ends as the model.
    (np.arange(4) // 2, 0, {4: 0.0}, [4]),
    (np.arange(4) // 2, 2, {4: 0.0}, [4]),
  ],
)
def test_lookahead_at_its_ends(epochs, from_epoch, keep, pulled):
  kept, pull = schedules.lookahead(epochs, decay=0.9, every=5, from_epoch=from_epoch)
  expected = [keep.get(step, 1.0) for step in range(1, len(epochs) + 1)]
  np.testing.assert_allclose(kept, expected, rtol=1e-14)
  np.testing.assert_array_equal(np.flatnonzero(pull) + 1, pulled)


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("steps", [0, 3, 9])
def test_a_whitening_bias_trained_never_for_a_while_or_for_longer_than_the_run(steps, falling):
  rates = schedules.whiten_bias_rate(
    np.array([0.5, 1.0, 0.5, 0.5]), factor=2.0, steps=steps, falling=falling
  )
  trained = np.arange(4) < steps
  falls = 2 - 2 * np.arange(4) / max(steps, 1) if falling else np.array([1, 2, 1, 1])
  np.testing.assert_allclose(rates, np.where(trained, falls, 0), rtol=1e-15)


def test_renormalising_ever_more_rarely():
  # hiverge with T = 30: due when t - last >= 2 + t // 2. 3 - 0 = 2 + 1, after 2 - 0 < 2 + 1;
  # 9 - 3 = 2 + 4, after 8 - 3 < 2 + 4; 21 - 9 = 2 + 10, after 20 - 9 < 2 + 10; then not before 46.
  column = schedules.renormalize(30, growing=True)
  np.testing.assert_array_equal(np.flatnonzero(column) + 1, [3, 9, 21])
  assert set(column) == {0.0, 1.0} and column.dtype == np.float64
