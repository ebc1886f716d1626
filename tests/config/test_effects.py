"""Fields without an effect: each override of one is refused, and no shipped recipe sets one."""

import pathlib
import subprocess
import sys

import pytest
from recipes import RECIPES, STREAMED, get_config

from jaxspeed.config import effects, rules, stored
from jaxspeed.config import fields as fields_lib
from jaxspeed.config import names as names_lib
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the families of models
from jaxspeed.planning.make import make_plan

ROOT = pathlib.Path(__file__).parents[2]

# Fields that no other field makes idle. Whoever adds a field says here or in `rules.RULES` which
# it is.
ALWAYS = """
  accumulate allreduce.dtype allreduce.group_mb augment.brightness augment.color_jitter
  augment.contrast augment.crop_padding augment.cutmix_alpha augment.cutout augment.erasing
  augment.flip augment.mixup augment.randaugment_layers average.kind checkpoint.every_seconds
  checkpoint.keep checkpoint.keep_best checkpoint.on_error command_buffers compile_cache
  compiler_options cost_per_hour data.classes data.eval_images data.feed data.last_batch data.mean
  data.std data.train_images deterministic epochs eval.batch_size eval.every_epochs
  heartbeat_seconds label_smoothing name optimizer.clip_norm optimizer.name optimizer.weight_decay
  precision pretrained.path proxy.keep records.loggers records.thumbnails runs schedule.segments
  seed target_metric tune_on watchdog_seconds whitening.bias_epochs
""".split()


def test_every_field_is_decided_on():
  # Those of `given` are no fields that anybody sets.
  fields = {name for name, _ in stored.leaves(fields_lib.base()) if not name.startswith("given.")}
  ruled = {name for name in fields for rule in rules.RULES if names_lib.matches(name, rule.fields)}
  # A bias is trained in so many epochs where there is one.
  assert ruled & set(ALWAYS) == {"whitening.bias_epochs"}
  assert fields == ruled | set(ALWAYS)


def test_every_rule_is_of_fields_that_there_are():
  fields = [name for name, _ in stored.leaves(fields_lib.base())]
  fields += ["model.name", "model.activation", "model.celu_alpha", "model.whiten"]
  for rule in rules.RULES:
    for pattern in (*rule.fields.split(), rule.beside.split()[0]):
      assert any(names_lib.matches(name, pattern) for name in fields), pattern


@pytest.mark.parametrize("name, variant", RECIPES + STREAMED)
def test_a_shipped_recipe_sets_nothing_in_vain(name, variant):
  assert effects.check(get_config(name, variant), ()) == []


def overridden(recipe, **fields):
  """The recipe with fields set, two underscores for a dot, and their names."""
  config = get_config(*recipe.split(":"))
  changed = {name.replace("__", "."): value for name, value in fields.items()}
  config.update_from_flattened_dict(changed)
  return config, tuple(changed)


# Recipe, override without an effect, the field that is to blame, and overrides that give it one.
IDLE = [
  ("imagenette", dict(data__image_size=64), "phases.image_size", dict(phases__first_epoch=())),
  ("imagenette", dict(data__image_size=128), "phases.image_size", dict(phases__image_size=())),
  ("imagenette", dict(eval__mode="five"), "phases.eval_mode", dict(phases__eval_mode=())),
  ("imagenette", dict(augment__min_scale=0.5), "phases.min_scale", dict(phases__min_scale=())),
  ("imagenet18:1", dict(batch_size=256), "phases.batch_size", dict(phases__batch_size=())),
  ("imagenet18:1", dict(schedule__warmup=0.1), "schedule.segments", dict(schedule__segments=())),
  (
    "imagenet_21epochs",
    dict(optimizer__momentum=0.8),
    "optimizer.momentum_segments",
    dict(optimizer__momentum_segments=()),
  ),
  ("imagenette", dict(loss_scale=8.0, precision="float32"), "precision", dict(precision="float16")),
  ("imagenette", dict(data__copies="a"), "data.feed", dict(phases__copies=(160, 160, 0))),
  ("imagenette", dict(pretrained__head="new"), "pretrained.path", dict(pretrained__path="a")),
  (
    "imagenet_ffcv:16",
    dict(data__path="a", data__synthetic=True),
    "data.synthetic",
    dict(data__synthetic=False),
  ),
  ("imagenet_lars:8192", dict(eval__shapes=4), "eval.mode", dict(eval__mode="rect")),
  ("imagenet_lars:8192", dict(phases__copies=(160,)), "phases.first_epoch", {}),
  ("imagenet_lars:8192", dict(phases__first_epoch=(0, 3)), "phases.batch_size", {}),
  ("imagenet_lars:8192", dict(optimizer__bias_rate=2.0), "optimizer.name", {}),
  ("imagenet_lars:8192", dict(optimizer__bias_decay=1.0), "optimizer.name", {}),
  ("imagenet_lars:8192", dict(optimizer__rate_in_momentum=True), "optimizer.name", {}),
  ("imagenet_lars:8192", dict(warmup="on"), "data.feed", {}),
  ("quickstart", dict(optimizer__lars_eta=0.1), "optimizer.name", dict(optimizer__name="lars")),
  ("quickstart", dict(optimizer__muon_decay=0.1), "optimizer.name", dict(optimizer__name="muon")),
  ("quickstart", dict(optimizer__scale_decay=0.1), "model.train_norm_scale", {}),
  ("quickstart", dict(optimizer__b2=0.95), "optimizer.name", dict(optimizer__name="adamw")),
  ("quickstart", dict(optimizer__momentum=0.8, optimizer__name="adamw"), "optimizer.name", {}),
  ("imagenette", dict(pretrained__freeze="stem"), "pretrained.path", dict(pretrained__path="a")),
  (
    "finetune",
    dict(optimizer__layer_decay=0.7, pretrained__freeze="backbone"),
    "pretrained.freeze",
    dict(pretrained__freeze="stage2"),
  ),
  ("finetune", dict(stop_at_target=True), "target", dict(target=0.9)),
  ("quickstart", dict(patience=20), "epochs", dict(epochs=40.0)),
  ("quickstart", dict(augment__min_scale=0.5), "data.feed", {}),
  ("quickstart", dict(data__on_error="raise"), "data.feed", {}),
  ("quickstart", dict(data__hold_out=0.2), "data.path", dict(tune_on="validation")),
  ("imagenette", dict(data__hold_out=0.2), "data.path", dict(data__path="a")),
  ("quickstart", dict(data__cache="a"), "data.name", dict(data__name="cifar10")),
  ("quickstart", dict(eval__resize=1.2), "data.feed", {}),
  (
    "quickstart",
    dict(augment__randaugment_magnitude=5.0),
    "augment.randaugment_layers",
    dict(augment__randaugment_layers=2),
  ),
  ("quickstart", dict(augment__cutmix_epochs=1.0), "augment.cutmix", dict(augment__cutmix=3)),
  (
    "quickstart",
    dict(augment__cutmix=3),
    "augment.cutmix_epochs",
    dict(augment__cutmix_epochs=1.0),
  ),
  ("quickstart", dict(proxy__every=2), "proxy.keep", dict(proxy__keep=50)),
  ("quickstart", dict(average__from_epoch=1), "average.kind", dict(average__kind="lookahead")),
  ("quickstart", dict(whitening__bias_epochs=1.0), "model.name", {}),
  ("quickstart", dict(whitening__images=9, model__whiten=False), "model.whiten", {}),
  ("quickstart", dict(records__author="a", tune_on="validation"), "tune_on", dict(tune_on="test")),
  ("quickstart", dict(schedule__start=0.5, schedule__warmup=0.0), "schedule.warmup", {}),
  ("quickstart", dict(schedule__gamma=0.5), "schedule.name", dict(schedule__name="step")),
  (
    "quickstart",
    dict(schedule__step_size=9.0),
    "schedule.name",
    dict(schedule__name="exponential"),
  ),
  ("cifar10", dict(schedule__final=0.1, schedule__name="step"), "schedule.name", {}),
  ("cifar10", dict(schedule__flat_epochs=1.0, schedule__name="constant"), "schedule.name", {}),
  ("cifar10", dict(schedule__read="end", schedule__name="constant"), "schedule.warmup", {}),
  (
    "cifar10",
    dict(schedule__power=2.0, schedule__name="cosine"),
    "schedule.name",
    dict(schedule__name="linear"),
  ),
  ("imagenet18:1", dict(schedule__name="cosine"), "schedule.segments", dict(schedule__segments=())),
  ("quickstart", dict(optimizer__bias_decay=0.5, optimizer__weight_decay=0.0), "weight_decay", {}),
  ("cifar10", dict(average__decay=0.9), "average.kind", dict(average__kind="ema")),
  ("cifar10", dict(average__reach=0.1), "average.kind", dict(average__kind="ema")),
  ("cifar10_hlb", dict(average__reach=0.1), "average.kind", dict(average__kind="ema")),
  ("cifar10_resnet9:baseline", dict(model__celu_alpha=0.1), "activation", {}),
  ("cifar10_resnet9:baseline", dict(whitening__epsilon=0.1), "model.whiten", {}),
  ("cifar10_hlb", dict(whitening__bias_rate=2.0), "model.whiten_bias", {}),
  ("quickstart", dict(target=0.5, target_metric="top5", data__classes=5), "target_metric", {}),
]


@pytest.mark.parametrize("recipe, fields, blamed, more", IDLE)
def test_an_override_without_an_effect_is_refused(recipe, fields, blamed, more):
  config, names = overridden(recipe, **fields)
  with pytest.raises(UserError) as caught:
    effects.check(config, names)
  name, value = next(iter(fields.items()))
  start = f"config.{name.replace('__', '.')}={value!r} has no effect beside config."
  assert str(caught.value).startswith(start) and blamed in str(caught.value)
  if more:
    effects.check(*overridden(recipe, **(fields | more)))


def test_what_an_override_makes_idle_is_no_mistake():
  for recipe, fields in (
    ("quickstart", dict(average__kind="none")),
    ("quickstart", dict(data__feed="stream", data__cache="a", eval__mode="rect", eval__shapes=2)),
    ("cifar10", dict(optimizer__name="sgd")),
    ("smoke_imagenet", dict(phases__eval_mode=())),
    ("cifar10_hlb", dict(augment__cutmix=0)),
    ("imagenet18:8", dict(phases__first_epoch=())),
  ):
    assert effects.check(*overridden(recipe, **fields)) == []


def test_a_recipe_is_told_of_what_it_sets_in_vain():
  config = get_config("quickstart")
  config.augment.cutmix_epochs = 2.0
  told = (
    "config.augment.cutmix_epochs=2.0 has no effect beside config.augment.cutmix=0: give the side "
    "of the square as --config.augment.cutmix (set in the recipe)."
  )
  assert effects.check(config, ()) == [told]
  assert effects.check(config, ("epochs",)) == [told]
  # Who turns it off on the command line knows.
  assert effects.check(config, ("augment.cutmix",)) == []


def test_a_run_counts_its_images_itself():
  config, names = overridden("quickstart", data__train_images=100)
  assert effects.check(config, names) == []
  with pytest.raises(UserError, match="a run counts its images"):
    effects.check(config, names, command="train")
  config, names = overridden("imagenette", data__train_images=200, data__synthetic=True)
  assert effects.check(config, names, command="train") == []


def test_an_evaluation_does_not_take_fields_of_training():
  config, names = overridden("quickstart", eval__mode="flip", data__path="")
  assert effects.check(config, names[:1], command="evaluate") == []
  with pytest.raises(UserError) as caught:
    effects.check(config, ("schedule.peak",), command="evaluate")
  assert str(caught.value) == "config.schedule.peak has no effect: it applies to training only."


def test_a_prediction_takes_what_it_uses():
  config, names = overridden("imagenette", pretrained__path="a.safetensors", data__cache="b")
  assert effects.check(config, ["pretrained.path"], command="predict") == []
  with pytest.raises(UserError, match="^config.data.cache has no effect: predict does not use it"):
    effects.check(config, names, command="predict")


def test_an_element_of_a_tuple_is_its_field():
  config = get_config("imagenet_lars", "8192")
  with pytest.raises(UserError, match="^config.optimizer.muon_coefficients="):
    effects.check(config, ("optimizer.muon_coefficients[0]",))


def plan_command(*arguments):
  return subprocess.run(
    [sys.executable, "-m", "jaxspeed.plan", *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )


def test_the_command_knows_what_it_was_given():
  done = plan_command("--config=configs/imagenette.py", "--config.data.image_size=64")
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr == (
    "jaxspeed: config.data.image_size=64 has no effect beside config.phases.image_size="
    "(128, 160, 192): each phase has its own; for one size in all of them set "
    "--config.phases.image_size='()' too, for one phase --config.phases.first_epoch='()' "
    "(config.data.image_size: from the command line, config.phases.image_size: the recipe's).\n"
  )


@pytest.mark.parametrize("name", ["imagenette", "smoke_imagenet"])
def test_streamed_recipes_of_ten_classes_take_any_length(name):
  for epochs in (0.5, 1.0, 2.0, 3.0, 7.0, 100.0):
    config, names = overridden(name, epochs=epochs)
    assert effects.check(config, names) == []
    plan = make_plan(config)
    last = get_config(name).phases.image_size[-1]
    assert (plan.phases[-1].image_size, plan.phases[-1].eval_mode) == (last, "rect")
    assert len(plan.phases) == min(3, max(1, int(epochs)))


@pytest.mark.parametrize("name, variant", STREAMED)
def test_epochs_that_do_not_scale_are_refused(name, variant):
  config = get_config(name, variant)
  if not config.schedule.segments:
    return
  config.epochs -= 1
  with pytest.raises(UserError, match="they do not scale with the run; set --config.schedule.segm"):
    make_plan(config)
