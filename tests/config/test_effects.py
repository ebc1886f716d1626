"""Fields without an effect: each override of one is refused, and no shipped recipe sets one."""

import pytest
from in_process import command
from recipes import RECIPES, STREAMED, get_config

from jaxspeed.config import checks, fields, stored
from jaxspeed.config.checks import parse_value
from jaxspeed.config.schema import When
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the families of models
from jaxspeed.planning.make import make_plan


@pytest.mark.parametrize("name, variant", RECIPES + STREAMED)
def test_a_shipped_recipe_sets_nothing_in_vain(name, variant):
  assert checks.set_in_vain(get_config(name, variant)) == []


def test_every_condition_reads_fields_that_there_are():
  read = set()

  class Values(dict):
    def __missing__(self, name):
      read.add(name)

  values = Values(stored.leaves(get_config("imagenet18", "1")), command="train")
  for field in fields.SHARED.values():
    for condition in field.facts(When):
      condition.works(values)
  assert read == {"model.whiten"}


def overridden(recipe, changes):
  """The recipe with fields set, as in "epochs=3 data.image_size=64", and their names."""
  config = get_config(*recipe.split(":"))
  changed = dict(word.split("=", 1) for word in changes.split())
  config.update_from_flattened_dict({n: parse_value(n, text) for n, text in changed.items()})
  return config, tuple(changed)


# Recipe | override without an effect | words of the reason | overrides that give it one.
IDLE = """
imagenette | data.image_size=64 | set --config.phases.image_size | phases.first_epoch=()
imagenette | eval.mode=five | set --config.phases.eval_mode | phases.eval_mode=()
imagenet18:1 | batch_size=256 | set --config.phases.batch_size | phases.batch_size=()
imagenet18:1 | schedule.warmup=0.1 | without config.schedule.segments | schedule.segments=()
imagenet_21epochs | optimizer.momentum=0.8 | without config.optimizer.momentum_segments | optimizer.momentum_segments=()
imagenette | data.copies=a | set --config.phases.copies | phases.copies=(160,160,0)
imagenet_ffcv:16 | data.path=a data.synthetic=True | without config.data.synthetic | data.synthetic=False
imagenet_lars:8192 | eval.shapes=4 | the modes rect and rect_flip only | eval.mode=rect
imagenet_lars:8192 | phases.copies=(160,) | set --config.phases.first_epoch too |
imagenet_lars:8192 | warmup=on | not for config.data.feed=stream |
quickstart | optimizer.lars_eta=0.1 | for config.optimizer.name=lars | optimizer.name=lars
quickstart | optimizer.momentum=0.8 optimizer.name=adamw | not for config.optimizer.name=adamw |
finetune | optimizer.layer_decay=0.7 pretrained.freeze=backbone | not for config.pretrained.freeze=backbone | pretrained.freeze=stage2
finetune | stop_at_target=True | set --config.target too | target=0.9
quickstart | data.hold_out=0.2 | evaluation images of its own | tune_on=validation
quickstart | augment.min_scale=0.5 | for config.data.feed=stream |
quickstart | augment.cutmix=3 | set --config.augment.cutmix_epochs too |
quickstart | augment.cutmix_epochs=1.0 | set --config.augment.cutmix too | augment.cutmix=3
quickstart | whitening.images=9 model.whiten=False | does not begin with a whitening layer |
quickstart | schedule.start=0.5 schedule.warmup=0.0 | set a warm-up too |
cifar10 | schedule.final=0.1 schedule.name=step | for config.schedule.name=linear or cosine |
quickstart | optimizer.bias_decay_factor=0.5 optimizer.weight_decay=0.0 | set --config.optimizer.weight_decay too |
cifar10 | average.decay=0.9 | not for config.average.kind=none | average.kind=ema
cifar10_resnet9:baseline | model.celu_alpha=0.1 | for config.model.activation=celu |
cifar10_hlb | whitening.bias_rate_factor=2.0 whitening.bias_epochs=0.0 | set --config.whitening.bias_epochs too |
"""  # noqa: E501


@pytest.mark.parametrize("line", IDLE.strip().splitlines())
def test_an_override_without_an_effect_is_refused(line):
  recipe, fields, reason, more = (each.strip() for each in f"{line} |".split("|")[:4])
  with pytest.raises(UserError) as caught:
    checks.check_effects(*overridden(recipe, fields))
  assert str(caught.value).startswith(f"config.{fields.partition('=')[0]}=")
  assert " has no effect: " in str(caught.value) and reason in str(caught.value)
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
    ("imagenet18:8", "schedule.segments=()"),
    ("quickstart", "pretrained.path="),
  ],
)
def test_what_an_override_makes_idle_is_no_mistake(recipe, fields):
  checks.check_effects(*overridden(recipe, fields))


def test_a_recipe_is_told_of_what_it_sets_in_vain(tmp_path):
  (tmp_path / "mine.py").write_text(
    "import jaxspeed\n"
    "def get_config():\n"
    "  config = jaxspeed.recipe('quickstart')\n"
    "  config.augment.cutmix_epochs = 2.0\n"
    "  return config\n"
  )
  said = command("plan", f"{tmp_path}/mine.py").stderr
  assert said == (
    "jaxspeed: note: config.augment.cutmix_epochs=2.0 has no effect: set --config.augment.cutmix "
    "too (set in the recipe).\n"
  )
  assert command("plan", f"{tmp_path}/mine.py", "--quiet").stderr == ""


def test_a_run_counts_its_images_itself():
  config, given = overridden("quickstart", "data.train_images=100")
  checks.check_effects(config, given)
  with pytest.raises(UserError, match="a run counts its images"):
    checks.check_effects(config, given, command="train")
  config, given = overridden("imagenette", "data.train_images=200 data.synthetic=True")
  checks.check_effects(config, given, command="train")


def test_a_run_on_arrays_may_be_evaluated_on_other_data():
  config = get_config("quickstart")
  config.given.data = "arrays"
  checks.check_effects(config, ["data.path"], command="evaluate")
  with pytest.raises(UserError, match="^config.data.path=.* has no effect: data= of jaxspeed.fit"):
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
  checks.check_effects(config, [used], command=command)
  with pytest.raises(UserError, match=f"^config.{unused} has no effect: {command} does not use it"):
    checks.check_effects(config, [unused], command=command)


@pytest.mark.parametrize("name", ["imagenette", "smoke_imagenet"])
def test_streamed_recipes_of_ten_classes_take_any_length(name):
  for epochs in (0.5, 1.0, 2.0, 3.0, 7.0, 100.0):
    config, given = overridden(name, f"epochs={epochs}")
    checks.check_effects(config, given)
    plan = make_plan(config)
    last = get_config(name).phases.image_size[-1]
    assert (plan.phases[-1].image_size, plan.phases[-1].eval_mode) == (last, "rect")
    assert len(plan.phases) == min(3, max(1, int(epochs)))
