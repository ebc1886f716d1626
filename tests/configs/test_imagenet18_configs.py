"""Steps of imagenet18's recipes are those of the original's phases, which stand here as tables."""

import itertools
import math

import numpy as np
import pytest
from recipes import GPUS, TRAIN_IMAGES, get_named, steps_planned

from jaxspeed.planning.make import make_plan

# Data phases: first epoch, pixels, images a GPU, short side of the copies (0: originals), least
# scale, whether rectangles are evaluated. Rate phases: epochs, rates; one number is a constant.


def one_machine():
  lr, to_224, to_288 = 1.0, 224 / 512, 128 / 512
  data = [
    (0, 128, 512, 160, 0.08, False),
    (13, 224, 224, 352, 0.087, False),
    (25, 288, 128, 0, 0.5, True),
  ]
  rates = [
    ((0, 7), (lr, 2 * lr)),
    ((7, 13), (2 * lr, lr / 4)),
    ((13, 22), (lr * to_224, lr / 10 * to_224)),
    ((22, 25), (lr / 10 * to_224, lr / 100 * to_224)),
    ((25, 28), (lr / 100 * to_288, lr / 1000 * to_288)),
  ]
  return data, rates


def two_machines():
  # The second repository, whose rate falls to a tenth within seven epochs and not eight.
  data, rates = four_machines(lr=1.5)
  rates[4:6] = [((16, 23), (1.3125, 0.13125)), ((23, 28), (0.13125, 0.013125))]
  return data, rates


def four_machines(lr=2.0):
  data = [
    (0, 128, 256, 160, 0.08, False),
    (6, 128, 512, 160, 0.08, False),
    (13, 224, 224, 352, 0.087, False),
    (28, 288, 128, 0, 0.5, True),
  ]
  rates = [
    ((0, 6), (lr, 2 * lr)),
    ((6,), (2 * lr,)),
    ((11, 13), (2 * lr, lr)),
    ((13,), (lr * 0.875,)),
    ((16, 24), (lr * 0.875, lr * 0.0875)),
    ((24, 28), (lr * 0.0875, lr * 0.00875)),
    ((28, 30), (lr * 0.005, lr * 0.0005)),
  ]
  return data, rates


def eight_machines():
  data = [
    (0, 128, 128, 160, 0.08, False),
    (6, 128, 256, 160, 0.08, False),
    (14, 224, 128, 352, 0.087, False),
    (17, 224, 224, 352, 0.087, False),
    (29, 288, 128, 0, 0.5, True),
  ]
  rates = [
    ((0, 6), (1.92, 3.84)),
    ((6,), (3.84,)),
    ((11, 14), (3.84, 1.92)),
    ((14,), (1.92,)),
    ((17, 23), (1.92, 0.336)),
    ((23, 29), (0.336, 0.0336)),
    ((29, 36), (0.0192, 0.00192)),
  ]
  return data, rates


def sixteen_machines():
  data = [
    (0, 128, 64, 160, 0.08, False),
    (6, 128, 128, 160, 0.08, False),
    (16, 224, 64, 0, 0.08, False),
    (19, 224, 192, 0, 0.08, False),
    (37, 288, 128, 0, 0.5, True),
  ]
  rates = [
    ((0, 6), (1.88, 3.76)),
    ((6,), (3.76,)),
    ((16,), (1.88,)),
    ((19,), (0.564,)),
    ((31,), (0.0564,)),
    ((37,), (0.0376,)),
    ((38, 50), (0.00376,)),
  ]
  return data, rates


def hyperplane():
  data, rates = one_machine()
  data[1] = (13, 224, 224, 320, 0.087, False)
  return data, rates


def four_1080ti():
  data = [
    (0, 128, 256, 160, 0.08, False),
    (15, 224, 112, 320, 0.087, False),
    (28, 288, 64, 0, 0.5, True),
  ]
  rates = [
    ((0, 8), (0.5, 1.0)),
    ((8, 15), (1.0, 0.125)),
    ((15, 25), (0.22, 0.022)),
    ((25, 28), (0.022, 0.0022)),
    ((28, 29), (0.00125, 0.000125)),
  ]
  return data, rates


# Recipe -> tables, epochs, steps an epoch of each phase, last rate.
IMAGENET18 = {
  "imagenet18:1": (one_machine, 28, [313, 715, 1252], 0.00025),
  "imagenet18:2": (two_machines, 30, [313, 157, 358, 626], 0.00075),
  "imagenet18:4": (four_machines, 30, [157, 79, 179, 313], 0.001),
  "imagenet18:8": (eight_machines, 36, [157, 79, 157, 90, 157], 0.00192),
  "imagenet18:16": (sixteen_machines, 50, [157, 79, 157, 53, 79], 0.00376),
  "imagenet18_lambda:8": (hyperplane, 28, [313, 715, 1252], 0.00025),
  "imagenet18_lambda:4": (four_1080ti, 29, [1252, 2860, 5005], 0.000125),
}


def steps_of(data, rates, gpus):
  """Every step as the original takes it: epoch, number from 1, pixels, images, rate, least scale.

  Of data and of rates, the last phase that has begun counts. A rate between two is linear: its
  first step is one increment in.
  """
  for epoch in range(max(itertools.chain.from_iterable(epochs for epochs, _ in rates))):
    _, pixels, batch, _, min_scale, _ = [row for row in data if row[0] <= epoch][-1]
    epochs, values = [row for row in rates if row[0][0] <= epoch][-1]
    total = math.ceil(TRAIN_IMAGES / (batch * gpus))
    for number in range(1, total + 1):
      rate = values[0]
      if len(values) == 2:
        done = (epoch - epochs[0]) * total + number
        rate += done * (values[1] - values[0]) / ((epochs[1] - epochs[0]) * total)
      images = min(batch * gpus, TRAIN_IMAGES - (number - 1) * batch * gpus)
      yield epoch, number, pixels, images, rate, min_scale


@pytest.mark.parametrize("named", IMAGENET18)
def test_imagenet18_takes_the_steps_of_the_original(named):
  tables, epochs, steps_per_epoch, last_rate = IMAGENET18[named]
  gpus = GPUS[named]
  data, rates = tables()
  plan = make_plan(get_named(named), devices=gpus)
  expected = np.array(list(steps_of(data, rates, gpus)))
  np.testing.assert_allclose(np.array(list(steps_planned(plan))), expected, rtol=0, atol=1e-12)
  assert plan.epochs == epochs
  assert [phase.steps_per_epoch for phase in plan.phases] == steps_per_epoch
  assert plan.table["learning_rate"][-1] == pytest.approx(last_rate, abs=1e-12)
  assert [phase.copies for phase in plan.phases] == [row[3] for row in data]
  modes = ["rect" if row[5] else "center" for row in data]
  assert [phase.eval_mode for phase in plan.phases] == modes
  resized = {128: 145, 224: 255, 288: 328}  # int(1.14 x)
  squares = [(row[1], resized[row[1]]) for row in data]
  assert [(phase.eval_size, phase.eval_resize) for phase in plan.phases] == squares


# "Changing LR" in dawn/logs/single_machine/event.log, a run of 8 machines: epoch -> first and last.
LOG = {
  0: (1.9220382165605094, 2.2399999999999998),
  5: (3.5220382165605093, 3.84),
  11: (3.831898734177215, 3.1999999999999997),
  13: (2.551898734177215, 1.9199999999999997),
  14: (1.92, 1.92),
  17: (1.9170666666666667, 1.656),
  22: (0.5970666666666669, 0.3360000000000001),
  28: (0.08344000000000007, 0.033600000000000074),
}


def test_eight_machines_have_the_rates_of_the_published_log():
  plan = make_plan(get_named("imagenet18:8"), devices=64)
  for epoch, ends in LOG.items():
    start = plan.first_step_of(epoch)
    rates = plan.table["learning_rate"][start : start + plan.steps_in_epoch(epoch)]
    np.testing.assert_allclose([rates[0], rates[-1]], ends, rtol=0, atol=1e-12)
