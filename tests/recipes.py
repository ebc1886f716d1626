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

RECIPES = [
  ("cifar10", ""),
  *(("cifar10_airbench", variant) for variant in AIRBENCH.PUBLISHED),
  ("cifar10_hlb", ""),
  *(("cifar10_resnet9", rung) for rung in LADDER.RUNGS),
  ("cifar100", ""),
  ("quickstart", ""),
]
# Their plans are held against their sources in test_imagenet_configs.py and its neighbour.
STREAMED = [
  *(
    (name, variant)
    for name in ("imagenet18", "imagenet18_lambda", "imagenet_ffcv", "imagenet_lars")
    for variant in recipe(name).PUBLISHED
  ),
  ("imagenet_21epochs", ""),
  *(("imagenet_vit", epochs) for epochs in recipe("imagenet_vit").PUBLISHED),
  ("finetune", ""),
  ("imagenette", ""),
  ("smoke_imagenet", ""),
]


def get_config(name, variant=None):
  return recipe(name).get_config(*([variant] if variant else []))


TRAIN_IMAGES = 1_281_167
# The GPUs that each recipe for ImageNet was made for.
GPUS = {
  "imagenet18:1": 8,
  "imagenet18:2": 16,
  "imagenet18:4": 32,
  "imagenet18:8": 64,
  "imagenet18:16": 128,
  "imagenet18_lambda:8": 8,
  "imagenet18_lambda:4": 4,
  "imagenet_21epochs": 8,
  **{f"imagenet_ffcv:{epochs}": 8 for epochs in (16, 24, 32, 40, 56, 88)},
  **{f"imagenet_vit:{epochs}": 8 for epochs in (90, 300)},
  **{f"imagenet_lars:{batch}": 8 for batch in (1632, 3264, 4096, 8192)},
  "imagenet_lars:13056": 64,
  "imagenet_lars:32768": 512,
  "imagenet_lars:49152": 768,
  "imagenet_lars:58880": 230,
  "imagenet_lars:65536": 2048,
  "imagenet_lars:67840": 424,
  "imagenet_lars:81920": 2048,
  "imagenette": 8,
  "smoke_imagenet": 1,
}


def get_named(named):
  return get_config(*named.split(":"))


def steps_planned(plan):
  """Every step of a plan: epoch, number from 1, pixels, images, rate, least scale."""
  for number, rate in enumerate(plan.table["learning_rate"]):
    phase, (epoch, step_in_epoch) = plan.phase_of(number), plan.epoch_of(number)
    images = plan.examples(number + 1) - plan.examples(number)
    yield epoch, step_in_epoch + 1, phase.image_size, images, rate, phase.min_scale
