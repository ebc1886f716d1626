"""Plans against arithmetic; what a plan refuses, word for word."""

import contextlib
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from in_process import command, mistake
from toy_images import write_folder

from jaxspeed.config import checks
from jaxspeed.config import fields as fields_lib
from jaxspeed.config import stored as stored_lib
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import StepKind, Stretch, momenta
from jaxspeed.run.planned import csv_lines, describe

ROOT = pathlib.Path(__file__).parents[2]


def config_with(**fields):
  """The base config with dotted fields set, written with two underscores for a dot."""
  config = fields_lib.base()
  config.update_from_flattened_dict({n.replace("__", "."): v for n, v in fields.items()})
  return config


def plan_with(*, devices=1, **fields):
  return make_plan(config_with(**fields), devices=devices)


@pytest.mark.parametrize(
  "images, batch, epochs, per_epoch, total",
  [
    (50_000, 512, 24.0, 97, 24 * 97),  # 97 * 512 = 49,664: the rest is dropped
    (50_000, 512, 10.0, 97, 970),
    (50_000, 1024, 9.9, 48, 476),  # 475.2, as airbench94 rounds it
    (50_000, 1536, 7.65, 32, 245),  # 244.8, as hiverge
    (1500, 100, 20.0, 15, 300),
    (100, 10, 9.9, 10, 99),  # the double nearest to 9.9 is above it
    (1000, 10, 0.07, 100, 7),  # 0.07 * 100 is 7.000000000000001 in doubles
    (100, 10, 0.001, 10, 1),
    (100, 100, 3.0, 1, 3),
  ],
)
def test_numbers_of_steps(images, batch, epochs, per_epoch, total):
  plan = plan_with(data__train_images=images, batch_size=batch, epochs=epochs)
  assert plan.phases[0].steps_per_epoch == per_epoch
  assert plan.total_steps == total
  assert len(plan.table["learning_rate"]) == total
  assert plan.epochs == -(-total // per_epoch)


def test_steps_and_epochs_of_a_run_whose_last_epoch_is_cut_short():
  # 10 steps an epoch; 25 of them, of which the third epoch has 5.
  plan = plan_with(data__train_images=105, batch_size=10, epochs=2.5)
  assert plan.epochs == 3
  cases = {0: (0, 0), 9: (0, 9), 10: (1, 0), 19: (1, 9), 20: (2, 0), 24: (2, 4), 25: (2, 5)}
  assert {step: plan.epoch_of(step) for step in cases} == cases
  assert [plan.first_step_of(epoch) for epoch in range(3)] == [0, 10, 20]
  assert [plan.steps_in_epoch(epoch) for epoch in range(3)] == [10, 10, 5]
  assert [plan.examples(step) for step in (0, 1, 10, 24, 25)] == [0, 10, 100, 240, 250]


def test_steps_and_epochs_of_a_run_of_whole_epochs():
  plan = plan_with(data__train_images=105, batch_size=10, epochs=2.0)
  assert plan.epoch_of(19) == (1, 9)
  assert plan.epoch_of(20) == (2, 0)
  assert [plan.steps_in_epoch(epoch) for epoch in range(2)] == [10, 10]
  assert plan.phase_of(0) == plan.phase_of(20) == plan.phases[0]


def test_first_step_and_epoch_are_inverse():
  plan = plan_with(data__train_images=50_000, batch_size=1024, epochs=9.9)
  for epoch in range(plan.epochs):
    first = plan.first_step_of(epoch)
    assert plan.epoch_of(first) == (epoch, 0)
    assert plan.epoch_of(first + plan.steps_in_epoch(epoch) - 1)[0] == epoch
    assert plan.end_of_epoch(first) == first + plan.steps_in_epoch(epoch)
  assert first + plan.steps_in_epoch(epoch) == plan.total_steps


def test_steps_and_epochs_of_a_plan_of_two_phases():
  # 2 epochs of 10 steps of 8 small images, then 3 of 5 steps of 16 large ones, the last cut to 4.
  plan = plan_with(
    data__train_images=80,
    epochs=4.8,
    data__feed="stream",
    phases__first_epoch=(0, 2),
    phases__image_size=(16, 32),
    phases__batch_size=(8, 16),
  )
  small, large = plan.phases
  assert plan.total_steps == 34
  assert plan.epochs == 5
  assert [plan.phase_of(step) for step in (0, 19, 20, 34)] == [small, small, large, large]
  cases = {19: (1, 9), 20: (2, 0), 24: (2, 4), 25: (3, 0), 33: (4, 3)}
  assert {step: plan.epoch_of(step) for step in cases} == cases
  assert [plan.first_step_of(epoch) for epoch in range(5)] == [0, 10, 20, 25, 30]
  assert [plan.steps_in_epoch(epoch) for epoch in range(5)] == [10, 10, 5, 5, 4]
  assert [plan.examples(step) for step in (19, 20, 21, 34)] == [152, 160, 176, 160 + 14 * 16]
  assert plan.programs() == [
    "init",
    "train 8x16x16x3",
    "train 16x32x32x3",
    "evaluate squares of 16, 1000 per device at a time",
    "evaluate squares of 32, 1000 per device at a time",
  ]


def test_the_table_holds_rates_read_one_step_in():
  plan = plan_with(epochs=10.0, schedule__peak=1.0, schedule__final=0.1, schedule__flat_epochs=2.0)
  rates = plan.table["learning_rate"]
  assert rates.dtype == np.float64 and rates.shape == (970,)
  assert plan.table_in(np.float32)["learning_rate"].dtype == np.float32
  epochs = np.arange(1, 971) / 97
  np.testing.assert_allclose(rates, np.interp(epochs, [0, 2, 8], [0, 1, 0.1]), rtol=1e-6)
  assert rates[0] == pytest.approx(1 / 194, rel=1e-13)  # 1 - 193 / 194
  assert (rates[193], rates[-1]) == (1.0, 0.1)


def test_the_schedule_moves_with_the_epochs():
  short, long = (plan_with(epochs=e).table["learning_rate"] for e in (5.0, 10.0))
  assert short.argmax() == 97 - 1 and long.argmax() == 2 * 97 - 1


def test_the_table_has_a_column_for_the_average_only_where_there_is_one():
  assert set(plan_with().table) == {"learning_rate"}
  keep = plan_with(epochs=2.0, average__kind="ema", average__decay=0.99, average__every=5).table[
    "average_keep"
  ]
  assert keep.shape == (2 * 97,)
  assert (keep[:97] != 1).sum() == 20
  np.testing.assert_array_equal(keep[:97], keep[97:])
  assert keep[0] == 0.99**5


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
  fields = dict(epochs=2.0, average__kind="ema", average__decay=0.99)
  keep = plan_with(average__reach=0.2, **fields).table["average_keep"]
  step = np.arange(1, 2 * 97 + 1)
  np.testing.assert_allclose(keep, np.maximum(1 - 5 / step, 0), rtol=1e-14)
  # What states an original's average keeps it.
  np.testing.assert_array_equal(plan_with(**fields).table["average_keep"], np.full(194, 0.99))


PHASED = dict(
  data__feed="stream",
  data__train_images=80,
  batch_size=8,
  phases__image_size=(16, 24, 32),
  phases__eval_mode=("center", "center", "rect"),
)


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
    (1.0, [(0, 32)]),
    (0.5, [(0, 32)]),
  ],
)
def test_phases_that_are_shares_move_with_the_epochs(epochs, expected):
  plan = plan_with(epochs=epochs, phases__first_epoch=(0, 0.4, 0.8), **PHASED)
  assert [(phase.first_epoch, phase.image_size) for phase in plan.phases] == expected
  assert plan.phases[-1].eval_mode == "rect" and plan.total_steps == 10 * epochs


def test_without_first_epochs_there_is_one_phase():
  plan = plan_with(epochs=4.0, phases__first_epoch=(), data__image_size=64, **PHASED)
  (phase,) = plan.phases
  assert (phase.image_size, phase.eval_mode, phase.epochs) == (64, "center", 4)


@pytest.mark.parametrize("starts", [(0, 0.5, 1.0), (0.2, 0.5, 0.8), (0, 0.8, 0.5), (0, 0.5, 2)])
def test_shares_that_are_none_are_refused(starts):
  with pytest.raises(UserError, match="shares of the run, which are below 1"):
    plan_with(epochs=9.0, phases__first_epoch=starts, **PHASED)


def test_a_part_of_an_epoch_begins_no_phase():
  with pytest.raises(UserError, match="give whole epochs, or shares of the run below 1"):
    plan_with(epochs=9.0, phases__first_epoch=(0, 1.5, 3), **PHASED)


@pytest.mark.parametrize("name", ["schedule.segments", "optimizer.momentum_segments"])
def test_segments_of_another_length_are_refused(name):
  fields = {name.replace(".", "__"): ((0, 2, 0.1, 0.5), (2, 5, 0.5, 0.1))}
  assert plan_with(epochs=5.0, **fields).epochs == 5
  with pytest.raises(UserError) as caught:
    plan_with(epochs=3.0, **fields)
  assert str(caught.value) == (
    f"config.epochs=3: config.{name} end with epoch 5, they do not scale with the run; set "
    f"--config.{name} to segments of that length, and --config.phases.first_epoch if the recipe "
    f"has phases."
  )


def test_the_table_of_airbench_is_read_at_the_start_of_a_step():
  # get_lr of airbench94.py: 476 steps, int(0.23 * 476) = 109 of them up from 0.2, down to 0.07.
  plan = plan_with(
    epochs=9.9,
    batch_size=1024,
    schedule__read="start",
    schedule__peak=2.0,
    schedule__start=0.2,
    schedule__warmup=0.23,
    schedule__final=0.07,
    average__kind="lookahead",
    average__decay=0.95,
    average__every=5,
    whitening__bias_epochs=3.0,
  )
  up = [0.2 * (1 - t / 109) + t / 109 for t in range(109)]
  down = [(1 - t / 367) + 0.07 * t / 367 for t in range(367)]
  np.testing.assert_allclose(plan.table["learning_rate"], 2 * np.array(up + down), rtol=1e-6)
  assert set(plan.table) == {"learning_rate", "average_keep", "average_pull", "whiten_bias_rate"}
  pulled = np.flatnonzero(plan.table["average_pull"])
  np.testing.assert_array_equal(pulled, [*range(4, 476, 5), 475])
  np.testing.assert_array_equal(
    plan.table["whiten_bias_rate"],
    np.where(np.arange(476) < 3 * 48, plan.table["learning_rate"], 0),
  )


def test_the_table_of_muon_falls_to_zero_and_renormalizes():
  plan = plan_with(
    epochs=8.0,
    batch_size=2000,
    schedule__read="start",
    schedule__peak=0.24,
    schedule__warmup=0.0,
    optimizer__name="muon",
    whitening__bias_epochs=3.0,
    whitening__bias_rate=10.0,
    whitening__bias_falls=True,
  )
  steps = np.arange(200)
  np.testing.assert_allclose(plan.table["learning_rate"], 0.24 * (1 - steps / 200), rtol=1e-6)
  np.testing.assert_array_equal(plan.table["renormalize"], np.ones(200))
  expected = np.where(steps < 75, 2.4 * (1 - steps / 75), 0)
  np.testing.assert_allclose(plan.table["whiten_bias_rate"], expected, rtol=1e-6)


def test_a_run_is_cut_into_stretches_of_one_kind():
  # hiverge: 32 steps an epoch, the whitening bias in ceil(0.2 * 32) = 7 of them.
  plan = plan_with(epochs=7.65, batch_size=1536, whitening__bias_epochs=0.2)
  plain, bias = StepKind(), StepKind(whiten_bias=True)
  assert plan.stretches() == (Stretch(7, (bias,)), Stretch(245, (plain,)))
  assert [plan.kind_of(step) for step in (6, 7)] == [bias, plain]
  assert "train 1536x32x32x3, 7 with whitening bias + 238 steps" in plan.programs()
  # hlb: cutmix in the last 6 of 12.1 epochs of 48, and only where there is a square to mix.
  plan = plan_with(epochs=12.1, batch_size=1024, augment__cutmix=3, augment__cutmix_epochs=6.0)
  first = plan.total_steps - 6 * 48
  assert [plan.kind_of(step).cutmix for step in (first - 1, first)] == [False, True]
  plan = plan_with(epochs=12.1, batch_size=1024, augment__cutmix_epochs=6.0)
  assert not plan.kind_of(plan.total_steps - 1).cutmix


def test_a_proxy_learns_in_one_step_of_a_cycle():
  fields = dict(epochs=2.0, batch_size=1024, data__train_images=6200)
  plan = plan_with(proxy__keep=512, proxy__every=4, **fields)
  learns, looks = StepKind(proxy_learns=True), StepKind()
  assert plan.stretches() == (Stretch(12, (learns, looks, looks, looks)),)
  assert plan_with(proxy__every=4, **fields).stretches() == (Stretch(12, (looks,)),)
  for keep, devices in ((1025, 1), (510, 4)):
    with pytest.raises(UserError, match=f"^config.proxy.keep={keep}: it must be a multiple of "):
      plan_with(proxy__keep=keep, devices=devices, **fields)


@pytest.mark.parametrize("images, held_out", [(50_000, 5000), (104, 10), (6, 1)])
def test_tuning_holds_out_a_tenth_of_the_training_images(images, held_out):
  config = config_with(tune_on="validation", batch_size=4, data__train_images=images)
  plan = make_plan(config)
  assert (plan.train_images, plan.eval_images) == (images - held_out, held_out)
  told = make_plan(config, train_images=images, eval_images=held_out)
  assert (told.train_images, told.eval_images) == (images, held_out)


def test_the_sizes_of_the_real_set_replace_the_configs():
  plan = make_plan(config_with(batch_size=10), train_images=35, eval_images=12)
  assert (plan.train_images, plan.eval_images, plan.phases[0].steps_per_epoch) == (35, 12, 3)


@pytest.mark.parametrize(
  "images, batch, devices, expected",
  [(10_000, 1000, 1, 1000), (10_000, 1000, 8, 1000), (297, 1000, 1, 297), (297, 1000, 8, 38)],
)
def test_an_evaluation_batch_is_no_larger_than_a_devices_part(images, batch, devices, expected):
  # 297 / 8 = 37.1.
  plan = plan_with(devices=devices, data__eval_images=images, eval__batch_size=batch)
  assert plan.eval_batch_size == expected


AT_LEAST = {
  "batch_size": 1,
  "runs": 1,
  "data.classes": 2,
  "data.image_size": 1,
  "data.train_images": 1,
  "data.eval_images": 1,
  "augment.crop_padding": 0,
  "augment.cutout": 0,
  "augment.cutmix": 0,
  "proxy.keep": 0,
  "proxy.every": 1,
  "average.every": 1,
  "average.from_epoch": 0,
  "eval.batch_size": 1,
  "eval.every_epochs": 1,
  "checkpoint.keep": 1,
  "whitening.images": 1,
  "seed": 0,
}
NOT_NEGATIVE = [
  "optimizer.momentum",
  "optimizer.weight_decay",
  "optimizer.bias_rate",
  "optimizer.bias_decay",
  "optimizer.head_rate",
  "optimizer.head_decay",
  "optimizer.muon_momentum",
  "optimizer.muon_decay",
  "augment.brightness",
  "augment.contrast",
  "augment.cutmix_alpha",
  "augment.cutmix_epochs",
  "augment.mixup",
  "whitening.bias_epochs",
  "whitening.bias_rate",
  "whitening.bias_decay",
  "schedule.start",
  "schedule.final",
  "schedule.warmup",
  "schedule.flat_epochs",
  "average.decay",
  "average.reach",
  "checkpoint.every_seconds",
  "cost_per_hour",
  "whitening.epsilon",
  "label_smoothing",
  "target",
]
AT_MOST = {
  "epochs": 100_000,
  "label_smoothing": 1,
  "target": 1,
  "schedule.warmup": 1,
  "optimizer.momentum": 1,
  "optimizer.muon_momentum": 1,
  "average.decay": 1,
  "average.reach": 1,
  "seed": 2**31 - 1,
}
PIECES = (
  "it must be segments of four numbers of at least 0 (first epoch, end, value there, value at the "
  "end), the first from epoch 0 on and each from the end of the one before."
)
REFUSED = [
  *((name, least - 1, f"it must be at least {least}.") for name, least in AT_LEAST.items()),
  *((name, -0.5, "it must be at least 0.") for name in NOT_NEGATIVE),
  *((name, float("nan"), "it must be a number from 0 to ") for name in NOT_NEGATIVE),
  *((name, most + 1, f"it must be at most {most:,}.") for name, most in AT_MOST.items()),
  *(
    (name, value, "it must be greater than 0.")
    for name in ("epochs", "schedule.peak", "optimizer.muon_epsilon")
    for value in (0.0, -1.0)
  ),
  *(
    (name, value, "it must be a number above 0 and up to ")
    for name in ("epochs", "schedule.peak", "optimizer.muon_epsilon")
    for value in (float("nan"), float("inf"))
  ),
  ("precision", "fp16", "choose one of auto, float32, tf32, bfloat16, float16, float64."),
  ("warmup", "yes", "choose one of auto, on, off."),
  ("eval.mode", "mirror", "choose one of center, flip, six, selective."),
  ("tune_on", "train", "choose one of test, validation."),
  ("augment.flip", "sometimes", "choose one of none, random, alternating."),
  ("optimizer.name", "adam", "choose one of sgd, muon, lars, adamw, or name the module"),
  ("optimizer.muon_renormalize", "never", "choose one of every_step, growing."),
  ("optimizer.muon_coefficients", (1.0, 2.0), "it must be three numbers."),
  *(
    ("optimizer.lars_clip", value, "it must be the least and the most trust ratio, or ().")
    for value in ((0.5,), (1.0, 0.5), (-0.1, 1.0), (0.0, float("nan")))
  ),
  *(
    (name, value, PIECES)
    for name in ("schedule.segments", "optimizer.momentum_segments")
    for value in (
      ((0, 5, 0.1),),
      ((1, 5, 0.1, 0.2),),
      ((0, 0, 0.1, 0.2),),
      ((0, 5, 0.1, 0.2), (0, 6, 0.2, 0.1)),
      ((0, 5, 0.1, 0.2), (7, 9, 0.2, 0.1), (5, 7, 0.2, 0.1)),
      ((0, 5, 0.1, 0.2), (6, 9, 0.2, 0.1)),
      *(((0, 5, 0.1, value),) for value in (-0.1, float("nan"), float("inf"), "x")),
    )
  ),
  ("schedule.read", "middle", "choose one of start, end."),
  ("average.kind", "mean", "choose one of none, ema, lookahead."),
  ("data.last_batch", "keep", "choose one of drop, carry_over."),
  *(
    (f"data.{name}", value, f"it must be three numbers {words}in units of 0 ... 255, or () for ")
    for name, words in (("mean", ""), ("std", "above 0 "))
    for value in ((1.0,), (1.0, 2.0), (1.0, 2.0, "3"), (1.0, 2.0, float("inf")))
  ),
  ("data.std", (1.0, 0.0, 1.0), "it must be three numbers above 0 in units"),
  ("augment.cutout", 32, "it must be less than config.data.image_size=32."),
  ("augment.cutmix", 32, "it must be less than config.data.image_size=32."),
  ("augment.crop_padding", 32, "it must be less than config.data.image_size=32."),
]


@pytest.mark.parametrize("field, value, reason", REFUSED)
def test_a_value_that_no_run_can_have_is_refused(field, value, reason):
  config = fields_lib.base()
  config.update_from_flattened_dict({field: value})
  shown = dict(stored_lib.leaves(config))[field]  # the config turns 0 into 0.0 where it must
  shown = repr(shown) if isinstance(shown, str) else shown
  with pytest.raises(UserError) as caught:
    make_plan(config)
  beginning = f"config.{field}={shown}"
  assert str(caught.value).startswith(beginning) and reason in str(caught.value)


def test_a_filter_that_is_neither_is_refused():
  """What a config.json may hold that was edited: of any other a ConfigDict keeps the type."""
  values = fields_lib.base().to_dict()
  values["data"]["antialias"] = "no"
  with pytest.raises(UserError) as caught:
    checks.check(values, model=False)
  assert str(caught.value) == "config.data.antialias='no': it must be True or False."


def test_the_least_and_the_most_are_allowed():
  least = {name: value for name, value in AT_LEAST.items() if name != "data.image_size"}
  config = fields_lib.base()
  config.update_from_flattened_dict(least | dict.fromkeys(NOT_NEGATIVE, 0.0))
  assert make_plan(config).total_steps == 1
  config = fields_lib.base()
  config.update_from_flattened_dict({**AT_MOST, "epochs": 1.0, "data.mean": (), "data.std": ()})
  assert make_plan(config).total_steps == 97


def test_a_batch_larger_than_the_set_is_refused():
  with pytest.raises(UserError) as caught:
    plan_with(data__train_images=100, batch_size=101)
  assert str(caught.value) == (
    "config.batch_size=101 is larger than the training set of 100 images: "
    "set --config.batch_size to at most 100."
  )


def test_a_batch_that_does_not_divide_over_the_devices_is_refused():
  assert plan_with(batch_size=96, devices=8).phases[0].batch_size == 96
  with pytest.raises(UserError) as caught:
    plan_with(batch_size=100, devices=8)
  assert str(caught.value) == (
    "config.batch_size=100 does not divide over 8 devices: "
    "set --config.batch_size to a multiple of 8."
  )


def test_cutmix_needs_pairs():
  fields = dict(augment__cutmix=3, augment__cutmix_epochs=1.0)
  assert plan_with(batch_size=96, devices=8, **fields).cutmix_steps == 520
  with pytest.raises(UserError) as caught:
    plan_with(batch_size=24, devices=8, **fields)
  assert str(caught.value) == (
    "config.batch_size=24 gives each of 8 devices 3 images, which config.augment.cutmix cannot "
    "pair: set --config.batch_size to a multiple of 16."
  )
  for name in ("mixup", "cutmix_alpha"):
    with pytest.raises(UserError, match=f"3 images, which config.augment.{name} cannot pair"):
      plan_with(batch_size=24, devices=8, **{f"augment__{name}": 0.2})


def test_images_are_mixed_in_one_way_and_chosen_by_no_proxy():
  squares = dict(augment__cutmix=3, augment__cutmix_epochs=1.0)
  for fields, words in (
    (
      squares,
      "with config.augment.cutmix=3: both mix an image with its neighbour; set one of them",
    ),
    (
      dict(proxy__keep=8),
      "with config.proxy.keep=8: a proxy chooses images by the loss of one lab",
    ),
  ):
    for name in ("mixup", "cutmix_alpha"):
      with pytest.raises(UserError) as caught:
        plan_with(**{f"augment__{name}": 0.2}, **fields)
      assert str(caught.value).startswith(f"config.augment.{name}=0.2 {words}")


def test_describe_lists_phases_rates_and_programs():
  config = config_with(
    name="some",
    epochs=2.5,
    batch_size=10,
    data__train_images=105,
    data__eval_images=30,
    schedule__peak=0.5,
    schedule__final=0.1,
  )
  # Ten steps an epoch, 25 in all; the peak after 0.2 * 25 = 5 of them.
  assert describe(config, make_plan(config)).splitlines() == [
    "some: 25 steps, 250 images",
    "epochs 1-3: 10 steps an epoch, batch 10, 32 x 32 pixels",
    "optimizer: sgd; learning rate: linear, every step in --csv",
    "learning rate at step 1: 0.1",
    "learning rate at step 5: 0.5",
    "learning rate at step 25: 0.05",
    "evaluation: 30 images, mode center",
    "program: init",
    "program: train 10x32x32x3, 25 steps",
    "program: evaluate 30 images, 30 per device at a time",
  ]


def test_the_command_prints_the_plan_of_a_recipe_with_its_overrides():
  done = subprocess.run(
    [sys.executable, "-m", "jaxspeed.plan", "--config=configs/quickstart.py", "--config.epochs=2"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stderr) == (0, "")
  assert done.stdout.startswith("quickstart: 30 steps, 3000 images\n")
  # 1,500 images in batches of 100; the peak of 0.3 after a fifth of 30 steps.
  assert re.search(r"^learning rate at step 6: 0\.3$", done.stdout, re.MULTILINE)


def test_the_steps_are_printed_with_the_images_that_count():
  # 20 images: 3 steps of 8, 8 and 4 of them, then 2 steps of 16 and 4; the rate falls from 1.
  config = config_with(
    epochs=3.0,
    data__train_images=20,
    data__feed="stream",
    data__last_batch="keep",
    phases__first_epoch=(0, 2),
    phases__image_size=(16, 32),
    phases__batch_size=(8, 16),
    phases__min_scale=(0.08, 0.5),
    schedule__segments=((0, 2, 1.0, 0.25), (2, 3, 0.1, 0.1)),
    optimizer__momentum_segments=((0, 3, 0.5, 0.5),),
  )
  assert list(csv_lines(config, make_plan(config))) == [
    "epoch,step_in_epoch,image_size,global_batch,learning_rate,momentum,min_scale",
    "0,1,16,8,0.875,0.5,0.08",
    "0,2,16,8,0.75,0.5,0.08",
    "0,3,16,4,0.625,0.5,0.08",
    "1,1,16,8,0.5,0.5,0.08",
    "1,2,16,8,0.375,0.5,0.08",
    "1,3,16,4,0.25,0.5,0.08",
    "2,1,32,16,0.1,0.5,0.5",
    "2,2,32,4,0.1,0.5,0.5",
  ]


def test_printed_numbers_have_all_their_digits():
  config = config_with(epochs=2.5, data__train_images=105, batch_size=10, optimizer__momentum=0.1)
  plan = make_plan(config)
  _, *lines = csv_lines(config, plan)
  columns = [line.split(",") for line in lines]
  assert [float(column[4]) for column in columns] == plan.table["learning_rate"].tolist()
  assert {(column[3], column[5]) for column in columns} == {("10", "0.1")}
  assert columns[-1][:2] == ["2", "5"]


def test_a_reader_may_close_the_pipe():
  # 4,224 lines do not fit into it.
  done = subprocess.run(
    f"{sys.executable} -m jaxspeed.plan --config=configs/imagenet18.py:8 --csv | head -n 1",
    shell=True,
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.stderr == "" and done.stdout.startswith("epoch,step_in_epoch,")


def plan_command(*arguments):
  with contextlib.chdir(ROOT):
    return command("plan", *arguments)


def test_the_exchange_of_a_step_is_told_and_timed():
  flags = ["--config=configs/imagenet_lars.py:4096", "--config.allreduce.group_mb=1000"]
  timed = [*flags, "--devices=16", "--bandwidth=10", "--latency=0", "--step-ms=105"]
  done = plan_command(*timed)
  assert done.returncode == 0, done.stderr
  *_, told, time = done.stdout.splitlines()
  # 25,557,032 weights of 4 bytes; 53,120 running statistics and 4 sums.
  assert told == ("gradients: 102.2 MB a step in 1 all-reduce, and 0.21 MB of statistics in one")
  # 15 / 16 of the bytes pass each link twice: 19.2 ms.
  took = 2 * 15 / 16 * (102.228128 + 0.212496) / 10
  assert f"the all-reduces take {took:.3g} ms beside 105 ms of compute" in time
  assert "epochs 1-" in time and "on 16 devices" in time


def test_timing_the_exchange_needs_devices_and_a_step():
  done = plan_command("--config=configs/imagenet_lars.py:4096", "--bandwidth=10")
  assert done.returncode == 2 and done.stdout == ""
  assert "--bandwidth needs --devices=N" in done.stderr


def test_the_parameters_are_listed():
  done = plan_command("--config=configs/imagenet18.py:1", "--parameters")
  assert done.returncode == 0, done.stderr
  rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("| ")]
  cells = {row[1].strip(): row[2].strip() for row in rows}
  assert cells["head/kernel"] == "(2048, 1000)"
  assert "Total: 25,557,032" in done.stdout


# The images that are there


def write_arrays(folder: pathlib.Path, images: int, side: int) -> pathlib.Path:
  folder.mkdir()
  np.save(folder / "images.npy", np.zeros((images, side, side, 3), np.uint8))
  np.save(folder / "labels.npy", np.arange(images) % 3)
  return folder


def test_a_plan_counts_the_arrays_at_its_path(tmp_path):
  data = write_arrays(tmp_path / "mine", images=700, side=24)
  flags = ["--config=configs/cifar10.py", f"--config.data.path={data}", "--config.batch_size=100"]
  done = plan_command(*flags)
  assert done.returncode == 0, done.stderr
  # A tenth of each class is held out: 631 images, six batches of 100 an epoch, 46 in 7.65 epochs.
  assert done.stdout.startswith("cifar10: 46 steps, 4600 images\n")
  assert "\nevaluation: 69 images" in done.stdout
  assert re.search(r"\ndata: mine.*, 631 images to train on\n", done.stdout)
  # As in a training, what the command line does not say is the arrays' to decide.
  assert "6 steps an epoch, batch 100, 24 x 24 pixels" in done.stdout
  assert "\nthe arrays decide: data.image_size=24 in place of the recipe's 32, " in done.stdout
  lines = plan_command(*flags, "--config.data.classes=3", "--csv").stdout.splitlines()
  assert len(lines) == 1 + 46
  tuned = plan_command(*flags, "--config.data.classes=3", "--config.tune_on=validation")
  assert "\nevaluation: 63 images" in tuned.stdout and "568 images to train on" in tuned.stdout


def test_a_plan_refuses_what_a_training_on_its_path_would(tmp_path):
  data = write_arrays(tmp_path / "mine", images=700, side=24)
  flags = ["--config=configs/cifar10.py", f"--config.data.path={data}"]
  with contextlib.chdir(ROOT):
    given = mistake("plan", *flags, "--config.data.image_size=32")
    assert "set --config.data.image_size=24" in given
    assert "larger than the training set of 631 images" in mistake("plan", *flags)
    assert "nowhere does not exist" in mistake("plan", *flags[:1], "--config.data.path=nowhere")


def test_a_plan_counts_the_images_that_a_csv_lists(tmp_path):
  data = write_folder(tmp_path, train=40, held_out=2, classes=4) / "train"
  rows = [f"{each.relative_to(data)},{each.parent.name}" for each in sorted(data.rglob("*.jpg"))]
  (data / "photos.csv").write_text("\n".join(["file,label", *rows]))
  flags = ["--config=configs/imagenette.py", f"--config.data.path={data / 'photos.csv'}"]
  flags += ["--config.batch_size=8", f"--config.data.cache={tmp_path / 'cache'}"]
  flags += ["--config.data.hold_out=0.2"]
  done = plan_command(*flags)
  assert done.returncode == 0, done.stderr
  assert (
    "photos.csv; 8 of 40 images, 20 % of each class, are held out for evaluation, 32 images"
    in (done.stdout)
  )
  with contextlib.chdir(ROOT):
    (data / "photos.csv").write_text("file,label\na.jpg,cat\n")
    assert "lists 1 files, of which 1 cannot be found: a.jpg" in mistake("plan", *flags)
    assert "photos.csv lists image files, and this recipe trains from memory" in mistake(
      "plan", "--config=configs/cifar10.py", flags[1]
    )


def test_a_plan_counts_the_folders_at_its_path(tmp_path):
  data = write_folder(tmp_path / "images", train=40, held_out=13, classes=4)
  flags = ["--config=configs/imagenette.py", f"--config.data.path={data}"]
  flags += [f"--config.data.cache={tmp_path / 'cache'}"]
  done = plan_command(*flags, "--config.batch_size=8")
  assert done.returncode == 0, done.stderr
  assert "5 steps an epoch, batch 8" in done.stdout and "evaluation: 13 images" in done.stdout
  assert "folders train and val, 40 images to train on" in done.stdout
  assert "\nthe data set decides: data.classes=4 in place of the recipe's 10\n" in done.stdout
  assert "leaves out" not in done.stdout
  done = plan_command(*flags, "--config.batch_size=32")
  assert (
    "\nan epoch leaves out 8 of 40 training images (20%), different ones each time: they do not "
    "fill a batch of 32 (config.data.last_batch=drop); a smaller --config.batch_size leaves "
    "out fewer, or --config.data.last_batch=keep leaves none\n"
  ) in done.stdout
  with contextlib.chdir(ROOT):
    given = mistake("plan", *flags, "--config.data.classes=5")
    best = mistake("plan", *flags, "--config.checkpoint.keep_best=top5")
  assert "has 4 classes, but config.data.classes is 5" in given
  assert "config.checkpoint.keep_best=top5: there is no top-5 accuracy with 4 classes" in best


def test_the_momentum_of_adamw_is_b1():
  config = config_with(optimizer__name="adamw", optimizer__b1=0.8)
  plan = make_plan(config)
  assert set(momenta(config, plan)) == {0.8}
  assert [line.split(",")[5] for line in csv_lines(config, plan)][1] == "0.8"


def test_without_a_path_a_plan_opens_nothing(monkeypatch):
  monkeypatch.setattr("jaxspeed.run.setup.open_data", None)
  done = plan_command("--config=configs/imagenette.py", "--config.data.synthetic=True")
  assert done.returncode == 0 and "data:" not in done.stdout


def test_a_plan_knows_the_sets_that_need_no_path():
  flags = ["--config=configs/quickstart.py", "--config.data.name=cifar100"]
  with contextlib.chdir(ROOT):
    told = mistake("plan", *flags)
    assert told == (
      "config.data.image_size=8, but cifar100 has 32: set --config.data.image_size=32, or the path "
      "of a data set of your own."
    )
    flags.append("--config.data.image_size=32")
    assert "set --config.data.classes=100" in mistake("plan", *flags)
    done = command("plan", *flags, "--config.data.classes=100")
  assert "500 steps an epoch, batch 100" in done.stdout
  assert "\nevaluation: 10000 images" in done.stdout


def test_a_model_says_how_small_its_images_may_be():
  config = config_with()
  config.model = {"name": "resnet9"}
  config.data.image_size = 7
  with pytest.raises(UserError, match="image_size=7: resnet9 needs images of at least 8 pixels"):
    make_plan(config)


def test_a_plan_of_too_many_steps_is_refused():
  with pytest.raises(UserError, match="takes 50,000,000 steps, but a plan has at most 10,000,000"):
    plan_with(batch_size=1, epochs=1000.0)
