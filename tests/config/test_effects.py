"""Fields without an effect: each override of one is refused, and no shipped recipe sets one."""

import pytest
from recipes import RECIPES, STREAMED, get_config

from jaxspeed.config import checks, fields
from jaxspeed.config.checks import parse_value
from jaxspeed.config.conditions import View
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the families of models
from jaxspeed.planning.make import make_plan


@pytest.mark.parametrize("name, variant", RECIPES + STREAMED)
def test_a_shipped_recipe_sets_nothing_in_vain(name, variant):
  assert checks.check_effects(get_config(name, variant), ()) == []


def test_every_condition_reads_fields_that_there_are():
  known = fields.known()
  view = View(get_config("imagenet18", "1"))
  for field in fields.SHARED.values():
    for condition in field.conditions:
      condition.works(view)
  assert {n for n in view.read if not n.startswith("given.")} <= known.keys() and len(
    view.read
  ) > 20


def overridden(recipe, changes):
  """The recipe with fields set, as in "epochs=3 data.image_size=64", and their names."""
  config = get_config(*recipe.split(":"))
  changed = dict(word.split("=", 1) for word in changes.split())
  config.update_from_flattened_dict({n: parse_value(n, text) for n, text in changed.items()})
  return config, tuple(changed)


# Recipe | override without an effect | the field that is to blame | overrides that give it one.
IDLE = """
imagenette | data.image_size=64 | phases.image_size | phases.first_epoch=()
imagenette | eval.mode=five | phases.eval_mode | phases.eval_mode=()
imagenet18:1 | batch_size=256 | phases.batch_size | phases.batch_size=()
imagenet18:1 | schedule.warmup=0.1 | schedule.segments | schedule.segments=()
imagenet_21epochs | optimizer.momentum=0.8 | optimizer.momentum_segments | optimizer.momentum_segments=()
imagenette | data.copies=a | phases.copies | phases.copies=(160,160,0)
imagenet_ffcv:16 | data.path=a data.synthetic=True | data.synthetic | data.synthetic=False
imagenet_lars:8192 | eval.shapes=4 | eval.mode | eval.mode=rect
imagenet_lars:8192 | phases.copies=(160,) | phases.first_epoch |
imagenet_lars:8192 | phases.first_epoch=(0,3) | phases.batch_size |
imagenet_lars:8192 | warmup=on | data.feed |
quickstart | conv_fusion=on | model.name |
quickstart | optimizer.lars_eta=0.1 | optimizer.name | optimizer.name=lars
quickstart | optimizer.scale_decay_factor=0.1 | model.train_norm_scale |
quickstart | optimizer.momentum=0.8 optimizer.name=adamw | optimizer.name |
finetune | optimizer.layer_decay=0.7 pretrained.freeze=backbone | pretrained.freeze | pretrained.freeze=stage2
finetune | stop_at_target=True | target | target=0.9
quickstart | patience=20 | epochs | epochs=40.0
quickstart | augment.min_scale=0.5 | data.feed |
quickstart | data.hold_out=0.2 | data.path | tune_on=validation
quickstart | data.cache=a | data.name | data.name=cifar10
quickstart | augment.cutmix_epochs=1.0 | augment.cutmix | augment.cutmix=3
quickstart | whitening.bias_epochs=1.0 | model.name |
quickstart | whitening.images=9 model.whiten=False | model.whiten |
quickstart | schedule.start=0.5 schedule.warmup=0.0 | schedule.warmup |
cifar10 | schedule.final=0.1 schedule.name=step | schedule.name |
cifar10 | schedule.read=end schedule.name=constant | schedule.warmup |
quickstart | optimizer.bias_decay_factor=0.5 optimizer.weight_decay=0.0 | weight_decay |
cifar10 | average.decay=0.9 | average.kind | average.kind=ema
cifar10_resnet9:baseline | model.celu_alpha=0.1 | activation |
cifar10_hlb | whitening.bias_rate_factor=2.0 | model.whiten_bias |
quickstart | target=0.5 target_metric=top5 data.classes=5 | target_metric |
"""  # noqa: E501


@pytest.mark.parametrize("line", IDLE.strip().splitlines())
def test_an_override_without_an_effect_is_refused(line):
  recipe, fields, blamed, more = (each.strip() for each in f"{line} |".split("|")[:4])
  with pytest.raises(UserError) as caught:
    checks.check_effects(*overridden(recipe, fields))
  start = f"config.{fields.partition('=')[0]}="
  assert str(caught.value).startswith(start)
  assert " has no effect beside config." in str(caught.value) and blamed in str(caught.value)
  if more:
    checks.check_effects(*overridden(recipe, f"{fields} {more}"))


@pytest.mark.parametrize(
  "recipe, fields",
  [
    ("quickstart", "average.kind=none"),
    ("quickstart", "data.feed=stream data.cache=a eval.mode=rect eval.shapes=2"),
    ("cifar10", "optimizer.name=sgd"),
    ("smoke_imagenet", "phases.eval_mode=()"),
    ("cifar10_hlb", "augment.cutmix=0"),
    ("imagenet18:8", "phases.first_epoch=()"),
  ],
)
def test_what_an_override_makes_idle_is_no_mistake(recipe, fields):
  assert checks.check_effects(*overridden(recipe, fields)) == []


def test_a_recipe_is_told_of_what_it_sets_in_vain():
  config = get_config("quickstart")
  config.augment.cutmix_epochs = 2.0
  told = (
    "config.augment.cutmix_epochs=2.0 has no effect beside config.augment.cutmix=0: set "
    "--config.augment.cutmix too (set in the recipe)."
  )
  assert checks.check_effects(config, ()) == checks.check_effects(config, ("epochs",)) == [told]
  # Who turns it off on the command line knows.
  assert checks.check_effects(config, ("augment.cutmix",)) == []


def test_a_run_counts_its_images_itself():
  config, given = overridden("quickstart", "data.train_images=100")
  assert checks.check_effects(config, given) == []
  with pytest.raises(UserError, match="a run counts its images"):
    checks.check_effects(config, given, command="train")
  config, given = overridden("imagenette", "data.train_images=200 data.synthetic=True")
  assert checks.check_effects(config, given, command="train") == []


def test_a_run_on_arrays_may_be_evaluated_on_other_data():
  config = get_config("quickstart")
  config.given.data = "arrays"
  assert checks.check_effects(config, ["data.path"], command="evaluate") == []
  with pytest.raises(UserError, match="^config.data.path=.* has no effect beside data= of jaxsp"):
    checks.check_effects(config, ["data.path"], command="train")


@pytest.mark.parametrize(
  "command, used, unused",
  [
    ("evaluate", "eval.mode", "schedule.peak"),
    ("evaluate", "data.cache", "optimizer.name"),
    ("predict", "pretrained.path", "data.cache"),
    ("predict", "model.width", "eval.shapes"),
  ],
)
def test_evaluate_and_predict_take_what_they_use(command, used, unused):
  config = get_config("imagenette")
  config.pretrained.path = "a.safetensors"
  config.phases.eval_mode = ()
  assert checks.check_effects(config, [used], command=command) == []
  with pytest.raises(UserError, match=f"^config.{unused} has no effect: {command} does not use it"):
    checks.check_effects(config, [unused], command=command)


@pytest.mark.parametrize("name", ["imagenette", "smoke_imagenet"])
def test_streamed_recipes_of_ten_classes_take_any_length(name):
  for epochs in (0.5, 1.0, 2.0, 3.0, 7.0, 100.0):
    config, given = overridden(name, f"epochs={epochs}")
    assert checks.check_effects(config, given) == []
    plan = make_plan(config)
    last = get_config(name).phases.image_size[-1]
    assert (plan.phases[-1].image_size, plan.phases[-1].eval_mode) == (last, "rect")
    assert len(plan.phases) == min(3, max(1, int(epochs)))
