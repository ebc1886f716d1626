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


def get_config(name, variant=""):
  return recipe(name).get_config(*([variant] if variant else []))
