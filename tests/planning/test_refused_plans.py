"""Values that no plan can have are refused with the field's name."""

import pytest
from made_plans import checked, plan_with

from jaxspeed.config import fields as fields_lib
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan

NAN, INF = float("nan"), float("inf")
PIECES = (
  "it must be segments of four numbers of at least 0 (first epoch, end, value there, value at the "
  "end), the first from epoch 0 on and each from the end of the one before."
)
# Of each kind of field (`config.kinds`) what its bounds exclude; config/test_mistakes.py has more.
REFUSED = [
  ("data.classes", 1, "number from 2 to "),
  ("seed", 2**31, " to 2,147,483,647."),
  *(("cost_per_hour", value, "it must be a number from 0 to ") for value in (-0.5, NAN)),
  *(("label_smoothing", value, "it must be a number from 0 and below 1.") for value in (-0.5, 1.0)),
  *(("schedule.peak", value, "it must be a number above 0") for value in (0.0, -1.0, NAN, INF)),
  ("optimizer.muon_coefficients", (1.0, 2.0), "it must be three numbers."),
  *(
    ("optimizer.lars_clip", value, "it must be the least and the most trust ratio, or ().")
    for value in ((0.5,), (1.0, 0.5), (-0.1, 1.0), (0.0, NAN))
  ),
  *(
    ("schedule.segments", value, PIECES)
    for value in (
      ((0, 5, 0.1),),
      ((1, 5, 0.1, 0.2),),
      ((0, 0, 0.1, 0.2),),
      ((0, 5, 0.1, 0.2), (0, 6, 0.2, 0.1)),
      ((0, 5, 0.1, 0.2), (7, 9, 0.2, 0.1), (5, 7, 0.2, 0.1)),
      ((0, 5, 0.1, 0.2), (6, 9, 0.2, 0.1)),
      *(((0, 5, 0.1, value),) for value in (-0.1, NAN, INF)),
    )
  ),
  *(
    ("data.std", value, "it must be three numbers above 0 in units of 0 ... 255, or () for ")
    for value in ((1.0,), (1.0, 2.0, INF), (1.0, 0.0, 1.0))
  ),
  # Beside other fields.
  ("data.last_batch", "keep", "choose one of drop, carry_over."),
  (
    "schedule.warmup",
    1.0,
    "with config.epochs=1.0: the warm-up would take all of them: set a share, such as 0.2.",
  ),
  *(
    (f"augment.{name}", 32, "with config.data.image_size=32: it must be less than that.")
    for name in ("cutout", "cutmix", "crop_padding")
  ),
]


@pytest.mark.parametrize("field, value, reason", REFUSED)
def test_a_value_that_no_run_can_have_is_refused(field, value, reason):
  config = fields_lib.base()
  config.update_from_flattened_dict({field: value})
  with pytest.raises(UserError) as caught:
    make_plan(checked(config))
  assert str(caught.value).startswith(f"config.{field}=") and reason in str(caught.value)


@pytest.mark.parametrize(
  "fields",
  [
    {"data.classes": 2, "augment.cutout": 0, "cost_per_hour": 0.0, "eval.batch_size": 1},
    {"seed": 2**31 - 1, "epochs": 1.0, "schedule.warmup": 0.999, "data.mean": (), "data.std": ()},
  ],
)
def test_the_least_and_the_most_are_allowed(fields):
  config = fields_lib.base()
  config.update_from_flattened_dict(fields)
  make_plan(checked(config))


STREAM = dict(data__feed="stream", data__train_images=80, batch_size=8)
PHASES = STREAM | dict(epochs=9.0, phases__image_size=(16, 24, 32))
SQUARES = dict(augment__cutmix=3, augment__cutmix_epochs=1.0)
SEGMENTS = ((0, 2, 0.1, 0.5), (2, 5, 0.5, 0.1))
SHARES = "shares of the run, which are below 1"
TOGETHER = [
  (
    dict(data__train_images=100, batch_size=101),
    "config.batch_size=101 is larger than the training set of 100 images: set --config.batch_size "
    "to at most 100.",
  ),
  (
    dict(batch_size=100, devices=8),
    "config.batch_size=100 does not divide over 8 devices: set --config.batch_size to a multiple "
    "of 8.",
  ),
  (
    dict(batch_size=24, devices=8, **SQUARES),
    "config.batch_size=24 gives each of 8 devices 3 images, which config.augment.cutmix cannot "
    "pair: set --config.batch_size to a multiple of 16.",
  ),
  *(
    (fields | {f"augment__{name}": 0.2}, words.format(name))
    for name in ("mixup", "cutmix_alpha")
    for fields, words in (
      (dict(batch_size=24, devices=8), "3 images, which config.augment.{} cannot pair"),
      (SQUARES, "config.augment.{}=0.2 with config.augment.cutmix=3: both mix an image with its"),
      (dict(proxy__keep=8), "config.augment.{}=0.2 with config.proxy.keep=8: a proxy chooses imag"),
    )
  ),
  *(
    (PHASES | dict(phases__first_epoch=starts), sentence)
    for starts, sentence in (
      ((0, 0.5, 1.0), SHARES),
      ((0.2, 0.5, 0.8), SHARES),
      ((0, 0.8, 0.5), SHARES),
      ((0, 0.5, 2), SHARES),
      ((0, 1.5, 3), "give whole epochs, or shares of the run below 1"),
    )
  ),
  *(
    (
      {"epochs": 3.0, name.replace(".", "__"): SEGMENTS},
      f"config.epochs=3.0 with config.{name}=((0.0, 2.0, 0.1, 0.5), (2.0, 5.0, 0.5, 0.1)): ",
    )
    for name in ("schedule.segments", "optimizer.momentum_segments")
  ),
  *(
    (
      dict(epochs=2.0, batch_size=1024, proxy__keep=keep, devices=devices),
      f"config.proxy.keep={keep}: it must be a multiple of ",
    )
    for keep, devices in ((1025, 1), (510, 4))
  ),
  (dict(data__image_size=7), "image_size=7: resnet9 needs images of at least 8 pixels"),
  (
    dict(batch_size=1, epochs=1000.0),
    "takes 50,000,000 steps, but a plan has at most 10,000,000",
  ),
]


@pytest.mark.parametrize("fields, sentence", TOGETHER)
def test_fields_that_do_not_go_together_are_refused(fields, sentence):
  with pytest.raises(UserError) as caught:
    plan_with(**fields)
  assert sentence in str(caught.value)


def test_fields_that_go_together_are_not():
  assert plan_with(batch_size=96, devices=8, **SQUARES).cutmix_steps == 520
  for name in ("schedule__segments", "optimizer__momentum_segments"):
    assert plan_with(epochs=5.0, **{name: SEGMENTS}).epochs == 5


def test_a_frozen_model_with_a_resting_head_is_refused():
  config = fields_lib.base()
  config.pretrained.update(path="weights.safetensors", freeze="backbone")
  checked(config)
  config.optimizer.head_rate_factor = 0.0
  with pytest.raises(
    UserError, match="config.optimizer.head_rate_factor=0.0 .*: nothing would be trained"
  ):
    checked(config)
