"""Steps of ImageNet's recipes as their plans have them, and the GPUs that each was made for."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
TRAIN_IMAGES = 1_281_167


def recipe(name):
  spec = importlib.util.spec_from_file_location(name, ROOT / "configs" / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def get_config(named):
  name, *variant = named.split(":")
  return recipe(name).get_config(*variant)


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


def steps_planned(plan):
  """Every step of a plan: epoch, number from 1, pixels, images, rate, least scale."""
  for number, rate in enumerate(plan.table["learning_rate"]):
    phase, (epoch, step_in_epoch) = plan.phase_of(number), plan.epoch_of(number)
    images = plan.examples(number + 1) - plan.examples(number)
    yield epoch, step_in_epoch + 1, phase.image_size, images, rate, phase.min_scale
