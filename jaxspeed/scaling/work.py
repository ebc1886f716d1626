"""A model's work for an image, beside ResNet-50's, whose rates are published."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxspeed.config.registry import AnyModel
from jaxspeed.devices.flops import count_flops
from jaxspeed.devices.precision import DTYPES
from jaxspeed.models.make import make_model
from jaxspeed.planning.plan import Phase, Plan
from jaxspeed.scaling.hardware import REFERENCE_SIDE

# Operations of ResNet-50's forward pass for an image of 224 px, two for each product.
RESNET50 = 8.18e9
# A training step has three forward passes' worth of products.
PASSES = 3
# Bytes of activations that are kept for the backward pass, over those of the outputs of products:
# a step of ResNet-50 compiled for an H100 has 1.8 GB for 40 images, whose outputs have 0.89 GB.
_KEPT = 2.0


@dataclasses.dataclass(frozen=True)
class Work:
  """A model's work for an image.

  Attributes:
    side: the image's side in pixels; the work of others goes with their pixels, as convolutions'.
    forward: operations of the forward pass.
    outputs: numbers that its products and convolutions return.
    parameters: numbers in its parameters.
  """

  side: int
  forward: float
  outputs: int
  parameters: int

  def rate(self, resnet50: float) -> float:
    """Images/s at 224 px of a device that trains so many with ResNet-50."""
    return resnet50 * RESNET50 / (self.forward * (REFERENCE_SIDE / self.side) ** 2)

  def memory_gb(
    self, config: ConfigDict, plan: Plan, phase: Phase, devices: int, auto: str = "bfloat16"
  ) -> float:
    """GB that a training step of a phase needs on one device.

    Parameters, the optimizer's moments and the average in float32, activations, and a data set in
    memory. For ResNet-50 it is within 10 % of what XLA's compiled step needs.

    Args:
      config: the recipe.
      plan: its plan.
      phase: one of its phases.
      devices: the number of devices.
      auto: the dtype that the precision "auto" means there.
    """
    copies = 2 + (config.optimizer.name == "adamw") + bool(config.average.get("decay", 0))
    width = jnp.dtype(DTYPES[auto if config.precision == "auto" else config.precision]).itemsize
    images = phase.batch_size / devices / max(1, config.accumulate)
    area = (phase.image_size / self.side) ** 2
    resident = 0 if plan.streams else (plan.train_images + plan.eval_images) * 3 * self.side**2
    activations = _KEPT * width * self.outputs * images * area
    return (4 * copies * self.parameters + activations + resident) / 1e9


def work_of(config: ConfigDict) -> Work:
  """Traces a config's model for an image of its first phase; nothing is computed."""
  config = config.copy_and_resolve_references()
  config.precision = "float32"
  return _traced(make_model(config), (*config.phases.image_size, config.data.image_size)[0])


@functools.cache
def _traced(model: AnyModel, side: int) -> Work:
  image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
  variables = jax.eval_shape(lambda x: model.init(jax.random.key(0), x, train=False), image)
  jaxpr = jax.make_jaxpr(lambda v, x: model.apply(v, x, train=False))(variables, image)
  parameters = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
  return Work(side, count_flops(jaxpr), _outputs(jaxpr), parameters)


def _outputs(jaxpr: Any) -> int:
  """The numbers that the products of a jaxpr return; of several branches, the largest counts."""
  total = 0
  for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
    name = equation.primitive.name
    if name in ("dot_general", "conv_general_dilated"):
      total += equation.outvars[0].aval.size
      continue
    values = [v if isinstance(v, tuple | list) else [v] for v in equation.params.values()]
    inner = [
      _outputs(each)
      for each in itertools.chain(*values)
      if hasattr(each, "eqns") or hasattr(each, "jaxpr")
    ]
    total += max(inner, default=0) if name == "cond" else sum(inner)
  return total
