"""Plans against arithmetic, and values that no plan can have, refused with the field's name."""

import numpy as np
import pytest
from made_plans import config_with, plan_with

from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import StepKind, StepRange


@pytest.mark.parametrize(
  "images, batch, epochs, per_epoch, total",
  [
    (50_000, 512, 24.0, 97, 24 * 97),  # 97 * 512 = 49,664: the rest is dropped
    (50_000, 1024, 9.9, 48, 476),  # 475.2, as airbench94 rounds it
    (50_000, 1536, 7.65, 32, 245),  # 244.8, as hiverge
    (100, 10, 9.9, 10, 99),  # the double nearest to 9.9 is above it
    (1000, 10, 0.07, 100, 7),  # 0.07 * 100 is 7.000000000000001 in doubles
    (100, 10, 0.001, 10, 1),
    (100, 100, 3.0, 1, 3),
  ],
)
def test_numbers_of_steps(images, batch, epochs, per_epoch, total):
  sizes = dict(data__train_images=images, batch_size=batch, epochs=epochs)
  plan = plan_with(**sizes, whitening__bias_epochs=epochs)
  assert plan.phases[0].steps_per_epoch == per_epoch
  assert plan.total_steps == plan.whiten_bias_steps == total
  assert len(plan.table["learning_rate"]) == total
  assert plan.epochs == -(-total // per_epoch)


CUT = dict(data__train_images=105, batch_size=10, epochs=2.5)
TWO_PHASES = dict(data__feed="stream", phases__first_epoch=(0, 2), phases__image_size=(16, 32))
TWO_PHASES |= dict(data__train_images=80, epochs=4.8, phases__batch_size=(8, 16))


@pytest.mark.parametrize(
  "fields, total, epochs, firsts, examples",
  [
    # 10 steps an epoch; 25 of them, of which the third epoch has 5.
    (
      CUT, 25, {0: (0, 0), 9: (0, 9), 10: (1, 0), 19: (1, 9), 20: (2, 0), 24: (2, 4), 25: (2, 5)},
      [0, 10, 20], {0: 0, 1: 10, 10: 100, 24: 240, 25: 250},
    ),
    # 2 epochs of 10 steps of 8 small images, then 3 of 5 steps of 16 large ones, the last cut to 4.
    (
      TWO_PHASES, 34, {19: (1, 9), 20: (2, 0), 24: (2, 4), 25: (3, 0), 33: (4, 3)},
      [0, 10, 20, 25, 30], {19: 152, 20: 160, 21: 176, 34: 160 + 14 * 16},
    ),
  ],
)  # fmt: skip
def test_steps_and_epochs_of_plans_whose_last_epoch_is_cut_short(
  fields, total, epochs, firsts, examples
):
  plan = plan_with(**fields)
  assert (plan.total_steps, plan.epochs) == (total, len(firsts))
  assert {step: plan.epoch_of(step) for step in epochs} == epochs
  assert [plan.first_step_of(epoch) for epoch in range(plan.epochs)] == firsts
  ends = [*firsts[1:], total]
  lengths = [end - first for first, end in zip(firsts, ends, strict=True)]
  assert [plan.steps_in_epoch(epoch) for epoch in range(plan.epochs)] == lengths
  for first, end in zip(firsts, ends, strict=True):
    assert plan.end_of_epoch(first) == plan.end_of_epoch(end - 1) == end
  assert {step: plan.examples(step) for step in examples} == examples


def test_a_plan_of_two_phases_has_programs_for_both():
  plan = plan_with(**TWO_PHASES)
  small, large = plan.phases
  assert [plan.phase_of(step) for step in (0, 19, 20, 34)] == [small, small, large, large]
  assert plan.programs() == [
    "init",
    "train 8x16x16x3",
    "train 16x32x32x3",
    "evaluate squares of 16, 1000 per device at a time",
    "evaluate squares of 32, 1000 per device at a time",
  ]


def test_a_plan_says_which_weights_are_evaluated():
  fields = dict(epochs=2.0, data__train_images=120, batch_size=10, average__every=5)
  kinds = {
    kind: [plan_with(average__kind=kind, **fields).evaluated_weights(step) for step in (5, 12, 24)]
    for kind in ("none", "ema", "lookahead")
  }
  # Lookahead sets the weights back to their average after steps 5, 10, 15, 20 and 24.
  assert kinds == {
    "none": 3 * ["live"],
    "ema": 3 * ["average"],
    "lookahead": ["average", "live", "average"],
  }


def test_the_reach_of_an_average_is_in_the_table():
  assert set(plan_with().table) == {"learning_rate"}
  fields = dict(epochs=2.0, average__kind="ema", average__decay=0.99)
  keep = plan_with(average__reach=0.2, **fields).table["average_keep"]
  np.testing.assert_allclose(keep[100], 1 - 5 / 101, rtol=1e-14)
  # What states an original's average keeps it.
  np.testing.assert_array_equal(plan_with(**fields).table["average_keep"], np.full(194, 0.99))


PHASED = dict(data__feed="stream", data__train_images=80, batch_size=8)
PHASED |= dict(phases__image_size=(16, 24, 32), phases__eval_mode=("center", "center", "rect"))


def test_an_average_counts_the_steps_of_each_phases_epochs():
  sizes = dict(epochs=6.0, phases__first_epoch=(0, 2, 4), phases__batch_size=(8, 12, 16))
  fields = PHASED | sizes | dict(average__kind="ema", average__decay=0.9, average__every=4)
  plan = plan_with(**fields)
  numbers = [
    step % phase.steps_per_epoch
    for phase in plan.phases
    for step in range(phase.epochs * phase.steps_per_epoch)
  ]
  assert [phase.steps_per_epoch for phase in plan.phases] == [10, 6, 5]
  expected = np.where(np.array(numbers) % 4, 1.0, 0.9**4)
  np.testing.assert_array_equal(plan.table["average_keep"], expected)
  late = plan_with(**fields | dict(average__kind="lookahead", average__from_epoch=4))
  # Steps 20, 24, ... are due; the last phase begins after step 32.
  assert np.flatnonzero(late.table["average_keep"] != 1)[0] == 35


@pytest.mark.parametrize(
  "epochs, expected",
  [
    (20.0, [(0, 16), (8, 24), (16, 32)]),
    (5.0, [(0, 16), (2, 24), (4, 32)]),
    (3.0, [(0, 16), (1, 24), (2, 32)]),
    (2.0, [(0, 24), (1, 32)]),
    (0.5, [(0, 32)]),
  ],
)
def test_phases_that_are_shares_move_with_the_epochs(epochs, expected):
  plan = plan_with(epochs=epochs, phases__first_epoch=(0, 0.4, 0.8), **PHASED)
  assert [(phase.first_epoch, phase.image_size) for phase in plan.phases] == expected
  assert plan.phases[-1].eval_mode == "rect" and plan.total_steps == 10 * epochs
  # Without first epochs there is one phase.
  (phase,) = plan_with(epochs=4.0, phases__first_epoch=(), data__image_size=64, **PHASED).phases
  assert (phase.image_size, phase.eval_mode, phase.epochs) == (64, "center", 4)


def test_a_run_is_cut_into_ranges_of_one_kind():
  # hiverge: 32 steps an epoch, the whitening bias in ceil(0.2 * 32) = 7 of them.
  fields = dict(epochs=7.65, batch_size=1536, whitening__bias_epochs=0.2)
  plan, plain, bias = plan_with(**fields), StepKind(), StepKind(whiten_bias=True)
  assert plan.step_ranges() == (StepRange(7, (bias,)), StepRange(245, (plain,)))
  assert [plan.kind_of(step) for step in (6, 7)] == [bias, plain]
  assert "train 1536x32x32x3, 7 with whitening bias + 238 steps" in plan.programs()
  # Quick programs serve steps with and without it.
  fields["compile"] = "quick"
  assert plan_with(**fields).step_ranges() == (StepRange(245, (bias,)),)
  # The gradient of a bias that is held would count in the norm that is clipped.
  assert len(plan_with(**fields, optimizer__clip_norm=1.0).step_ranges()) == 2
  assert not plan_with(**fields | {"whitening__bias_epochs": 0.0}).kind_of(0).whiten_bias
  # hlb: cutmix in the last 6 of 12.1 epochs of 48, and only where there is a square to mix.
  fields = dict(epochs=12.1, batch_size=1024, augment__cutmix_epochs=6.0)
  plan = plan_with(augment__cutmix=3, **fields)
  first = plan.total_steps - 6 * 48
  assert [plan.kind_of(step).cutmix for step in (first - 1, first)] == [False, True]
  assert not plan_with(**fields).kind_of(first).cutmix
  # A proxy learns in one step of a cycle.
  fields = dict(epochs=2.0, batch_size=1024, data__train_images=6200, proxy__every=4)
  learns = StepKind(proxy_learns=True)
  cycle = StepRange(12, (learns, plain, plain, plain))
  assert plan_with(proxy__keep=512, **fields).step_ranges() == (cycle,)
  assert plan_with(**fields).step_ranges() == (StepRange(12, (plain,)),)


@pytest.mark.parametrize("images, held_out", [(50_000, 5000), (104, 10), (6, 1)])
def test_tuning_holds_out_a_tenth_of_the_training_images(images, held_out):
  config = config_with(tune_on="validation", batch_size=4, data__train_images=images)
  plan = make_plan(config)
  assert (plan.train_images, plan.eval_images) == (images - held_out, held_out)
  told = make_plan(config, train_images=images, eval_images=held_out)
  assert (told.train_images, told.eval_images) == (images, held_out)


@pytest.mark.parametrize(
  "images, batch, devices, expected",
  [(10_000, 1000, 1, 1000), (10_000, 1000, 8, 1000), (297, 1000, 1, 297), (297, 1000, 8, 38)],
)
def test_an_evaluation_batch_is_no_larger_than_a_devices_part(images, batch, devices, expected):
  # 297 / 8 = 37.1.
  plan = plan_with(devices=devices, data__eval_images=images, eval__batch_size=batch)
  assert plan.eval_batch_size == expected


def test_a_net_needs_some_pixels():
  with pytest.raises(UserError, match="image_size=7: resnet9 needs images of at least 8 pixels"):
    plan_with(data__image_size=7)
