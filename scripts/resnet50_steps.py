"""A training step of a ResNet on noise, ours and PyTorch's, for `bench_resnet50.py`."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

RATE, MOMENTUM, DECAY = 1e-4, 0.9, 1e-4
STAGES = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
_CLASSES = 1000
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


@dataclasses.dataclass(frozen=True)
class Shape:
  """Side of the images, images per step, and the net that takes them."""

  size: int
  batch: int
  depth: int
  width: int
  precision: str


def training_flops(shape: Shape) -> float:
  """Operations of a step per image, two per product; products of padding count, as published."""
  from jaxspeed.models import make  # noqa: F401  registers the families of config.model
  from jaxspeed.scaling import work

  return work.PASSES * work.work_of(make_config(shape)).forward


def make_config(shape: Shape) -> Any:
  """The config of a step: ImageNet's."""
  from jaxspeed.config import fields

  config = fields.imagenet()
  # An epoch is one step here, so this gives the table a row for every step that is asked for.
  config.update(batch_size=shape.batch, precision=shape.precision, epochs=10_000.0)
  config.data.update(image_size=shape.size, train_images=shape.batch, classes=_CLASSES)
  config.data.update(mean=_MEAN, std=_STD)
  config.augment.flip = "none"
  config.model.update(depth=shape.depth, width=shape.width)
  config.optimizer.update(momentum=MOMENTUM, weight_decay=DECAY)
  config.schedule.update(peak=RATE, start=1.0, final=1.0, warmup=0.0)
  return config


def make_jax_step(shape: Shape) -> tuple[Callable[[int], float], dict[str, Any]]:
  """A function that takes a number of steps and returns the last loss, and what it cost.

  With it come the device, the rate of its matrix products, and the operations of a step per image.
  """
  import benchmarking
  import step_program

  from jaxspeed.devices.compile import use_cache
  from jaxspeed.records import provenance

  use_cache()
  ceiling = benchmarking.matrix_product_tflops(shape.precision)
  run, prepared = step_program.prepare(step_program.step_of(make_config(shape), "", devices=1))
  return run, prepared | {
    "device": provenance.describe_device(),
    "ceiling_tflops": ceiling,
    "flops": training_flops(shape),
  }


def make_torch_net(depth: int, width: int) -> Any:
  """ResNet v1.5 (He et al. 2015, stride in the 3x3) as torchvision has it."""
  import torch
  from torch import nn

  def unit(inputs, outputs, size, stride=1):
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)

  class Block(nn.Module):
    def __init__(self, inputs, features, stride):
      super().__init__()
      outputs = 4 * features if depth >= 50 else features
      if depth >= 50:
        first, second = unit(inputs, features, 1), unit(features, features, 3, stride)
        last = unit(features, outputs, 1)
        self.body = nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *last)
      else:
        first, last = unit(inputs, features, 3, stride), unit(features, outputs, 3)
        self.body = nn.Sequential(*first, nn.ReLU(), *last)
      changes = stride > 1 or inputs != outputs
      shortcut = unit(inputs, outputs, 1, stride) if changes else [nn.Identity()]
      self.shortcut, self.relu = nn.Sequential(*shortcut), nn.ReLU()

    def forward(self, x):
      return self.relu(self.body(x) + self.shortcut(x))

  layers, inputs = [*unit(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
  for stage, blocks in enumerate(STAGES[depth]):
    features = width * 2**stage
    for number in range(blocks):
      layers.append(Block(inputs, features, 2 if number == 0 and stage > 0 else 1))
      inputs = 4 * features if depth >= 50 else features
  net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, _CLASSES))
  for module in net.modules():
    if isinstance(module, nn.Conv2d):
      torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
  return net


def make_torch_step(shape: Shape, mode: str) -> tuple[Callable[[int], float], dict[str, Any]]:
  """As `make_jax_step`; `mode` is torch.compile's, or "eager" to compile nothing."""
  import torch

  device = "cuda" if torch.cuda.is_available() else "cpu"
  torch.backends.cudnn.benchmark = True
  torch.manual_seed(0)
  net = make_torch_net(shape.depth, shape.width)
  net = net.to(device, memory_format=torch.channels_last)
  # As in imagenet18, and in ours: no decay of norms and biases.
  weights = [p for p in net.parameters() if p.ndim > 1]
  others = [p for p in net.parameters() if p.ndim == 1]
  optimizer = torch.optim.SGD(
    [{"params": weights, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
    RATE,
    MOMENTUM,
    fused=True,
  )
  images = torch.randint(
    0, 256, (shape.batch, 3, shape.size, shape.size), dtype=torch.uint8, device=device
  ).contiguous(memory_format=torch.channels_last)
  labels = torch.randint(0, _CLASSES, (shape.batch,), device=device)
  mean, std = (torch.tensor(x, device=device).view(1, 3, 1, 1) for x in (_MEAN, _STD))

  def loss_of(images, labels):
    with torch.autocast(device, torch.bfloat16, enabled=shape.precision == "bfloat16"):
      return torch.nn.functional.cross_entropy(net((images - mean) / std), labels)

  if mode != "eager":
    loss_of = torch.compile(loss_of, mode=mode, dynamic=False)

  def run(steps: int) -> float:
    for _ in range(steps):
      torch.compiler.cudagraph_mark_step_begin()
      loss = loss_of(images, labels)
      loss.backward()
      optimizer.step()
      optimizer.zero_grad(set_to_none=True)
    return loss.item()

  start = time.perf_counter()
  run(1)
  compile_s = time.perf_counter() - start
  return run, {
    "compile_s": compile_s,
    "memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
    "parameters": sum(p.numel() for p in net.parameters()),
    "implementation": f"torch {torch.__version__}, {mode}",
  }
