"""Fields without an effect: each override of one is refused, and no shipped recipe sets one."""

import pytest
from in_process import command
from recipes import RECIPES, STREAMED, get_config

from jaxspeed.config import checks, fields, stored
from jaxspeed.config.flags import parse_overrides
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
  changed, _ = parse_overrides([f"--config.{word}" for word in changes.split()])
  config.update_from_flattened_dict(changed)
  return config, tuple(changed)


# Recipe | override without an effect | words of the reason | overrides that give it one.
IDLE = """
imagenette | data.image_size=64 | set --config.phases.image_size | phases.first_epoch=()
imagenette | eval.mode=five | set --config.phases.eval_mode | phases.eval_mode=()
imagenet18:1 | batch_size=256 | set --config.phases.batch_size | phases.batch_size=()
imagenet18:1 | schedule.warmup=0.1 | without config.schedule.segments | schedule.segments=()
imagenette | data.copies=a | set --config.phases.copies | phases.copies=(160,160,0)
imagenet_ffcv:16 | data.path=a data.synthetic=True | without config.data.synthetic | data.synthetic=False
quickstart | eval.shapes=4 | for config.data.feed=stream |
imagenet_lars:8192 | phases.copies=(160,) | set --config.phases.first_epoch too |
quickstart | optimizer.momentum=0.8 optimizer.name=adamw | not for config.optimizer.name=adamw |
finetune | stop_at_target=True | set --config.target too | target=0.9
quickstart | data.hold_out=0.2 | evaluation images of its own | tune_on=validation
quickstart | augment.cutmix=3 | set --config.augment.cutmix_epochs too |
quickstart | whitening.images=9 model.whiten=False | set --config.model.whiten too | model.whiten=True
finetune | optimizer.layer_decay=0.7 optimizer.name=muon | not for config.optimizer.name=muon |
quickstart | schedule.start=0.5 schedule.warmup=0.0 | set a warm-up |
cifar10 | schedule.final=0.1 schedule.name=step | for config.schedule.name=linear or cosine |
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
    ("cifar10_hlb", "augment.cutmix=0"),
    ("imagenet18:8", "phases.first_epoch=()"),
    ("imagenet18:8", "schedule.segments=()"),
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


def test_what_has_an_effect_with_some_commands_only():
  config, given = overridden("quickstart", "data.train_images=100")
  checks.check_effects(config, given)
  with pytest.raises(UserError, match="a run counts its images"):
    checks.check_effects(config, given, command="train")
  config, given = overridden("imagenette", "data.train_images=200 data.synthetic=True")
  checks.check_effects(config, given, command="train")
  config = get_config("quickstart")  # a run on arrays may be evaluated on other data
  config.given.data = "arrays"
  checks.check_effects(config, ["data.path"], command="evaluate")
  with pytest.raises(UserError, match="^config.data.path=.* has no effect: data= of jaxspeed.fit"):
    checks.check_effects(config, ["data.path"], command="train")


def test_evaluate_and_predict_take_what_they_use():
  config = get_config("imagenette")
  config.pretrained.path, config.phases.eval_mode = "a.safetensors", ()
  for name, used, unused in (
    ("evaluate", ["eval.mode", "data.cache"], ("schedule.peak", "optimizer.name")),
    ("predict", ["pretrained.path", "model.width"], ("data.cache", "eval.shapes")),
  ):
    checks.check_effects(config, used, command=name)
    for field in unused:
      with pytest.raises(UserError, match=f"^config.{field} has no effect: {name} does not use it"):
        checks.check_effects(config, [field], command=name)


@pytest.mark.parametrize("epochs", [0.5, 1.0, 2.0, 3.0, 100.0])
def test_a_streamed_recipe_takes_any_length(epochs):
  config, given = overridden("imagenette", f"epochs={epochs}")
  checks.check_effects(config, given)
  phases = make_plan(config).phases
  last = get_config("imagenette").phases.image_size[-1]
  assert (phases[-1].image_size, phases[-1].eval_mode) == (last, "rect")
  assert len(phases) == min(3, max(1, int(epochs)))
