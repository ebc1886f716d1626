"""The shipped recipes of configs/, by file and variant."""

import importlib.util
import pathlib

FOLDER = pathlib.Path(__file__).parents[1] / "configs"


def recipe(name):
  """The module of a recipe."""
  spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


LADDER = recipe("cifar10_resnet9")
AIRBENCH = recipe("cifar10_airbench")


def get_config(name, variant=None):
  return recipe(name).get_config(*([variant] if variant else []))


EVERY = [
  (path.stem, variant)
  for path in sorted(FOLDER.glob("*.py"))
  for variant in getattr(recipe(path.stem), "PUBLISHED", [""])
]
STREAMED = [each for each in EVERY if get_config(*each).data.feed == "stream"]
RECIPES = [each for each in EVERY if each not in STREAMED]
TRAIN_IMAGES = 1_281_167
# The GPUs that each recipe for ImageNet was made for; LARS's points name none.
GPUS = {f"{name}:{variant}".rstrip(":"): 8 for name, variant in STREAMED if "imagenet" in name}
GPUS |= {f"imagenet18:{machines}": 8 * machines for machines in (1, 2, 4, 8, 16)}
GPUS |= {"imagenet18_lambda:4": 4, "imagenet_lars:81920": 2048, "smoke_imagenet": 1}


def get_named(named):
  return get_config(*named.split(":"))


def steps_planned(plan):
  """Every step of a plan: epoch, number from 1, pixels, images, rate, least scale."""
  for number, rate in enumerate(plan.table["learning_rate"]):
    phase, (epoch, step_in_epoch) = plan.phase_of(number), plan.epoch_of(number)
    images = plan.examples(number + 1) - plan.examples(number)
    yield epoch, step_in_epoch + 1, phase.image_size, images, rate, phase.min_scale
