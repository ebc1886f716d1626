"""The layers of a model: learning rates that fall towards the first, and parts that are frozen."""

from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import PyTree

from jaxspeed.errors import UserError
from jaxspeed.optim.groups import asked

BACKBONE = "backbone"


def layers_of(model: Any, params: PyTree) -> PyTree:
  """The layer of each parameter, from 0, as the model's method `param_layers` says.

  Raises:
    UserError: as `groups.asked`.
  """

  def fits(layer: Any) -> bool:
    return isinstance(layer, int | np.integer) and bool(layer >= 0)

  return asked(model, "param_layers", params, "layer", fits, "integers, 0 for the first layer")


def scale_by_layer(model: Any, decay: float) -> optax.GradientTransformation:
  """Multiply each update by decay ** (last layer - its layer): layer-wise learning rates.

  Sources: ELECTRA (Clark et al. 2020, arXiv 2003.10555), BEiT (Bao et al. 2021, arXiv 2106.08254),
  timm's param_groups_layer_decay. The update is proportional to the learning rate in each of our
  optimizers but Muon, decay and momentum included, so this is a learning rate for each layer.

  Raises:
    UserError: the model has no method `param_layers`.
  """
  if not hasattr(model, "param_layers"):
    raise UserError(
      f"config.optimizer.layer_decay: {type(model).__name__} has no method param_layers(params), "
      "which says which layer each parameter belongs to: write it (docs/extending.md), or set "
      "layer_decay to 1."
    )

  def update(updates, state, params=None):
    layers = layers_of(model, params)
    last = max(jax.tree.leaves(layers))
    return jax.tree.map(lambda u, layer: decay ** int(last - layer) * u, updates, layers), state

  return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def frozen_parts(model: Any, labels: PyTree, params: PyTree, freeze: str) -> tuple[str, ...]:
  """The keys of `params` that `config.pretrained.freeze` freezes.

  Args:
    model: the model.
    labels: the labels of the parameters (`groups.labels_of`).
    params: the parameters, or their shapes.
    freeze: the field: "" for none, "backbone", or the last of the first parts.

  Raises:
    UserError: the model has no such part before its last layer.
  """
  if not freeze:
    return ()
  if freeze == BACKBONE:
    heads = {part for part in params if {"head", "head_bias"} & {*jax.tree.leaves(labels[part])}}
    return tuple(sorted(set(params) - heads))
  layers = layers_of(model, params) if hasattr(model, "param_layers") else {}
  ends = {part: max(jax.tree.leaves(tree)) for part, tree in layers.items()}
  last = max(ends.values(), default=0)
  known = sorted((part for part in ends if ends[part] < last), key=lambda part: (ends[part], part))
  if freeze not in known:
    raise UserError(
      f"config.pretrained.freeze={freeze!r}: choose {BACKBONE} or the last part to freeze, one of "
      f"{', '.join(known)}."
    )
  return tuple(sorted(part for part in known if ends[part] <= ends[freeze]))


def with_frozen(labels: PyTree, parts: tuple[str, ...]) -> PyTree:
  """The same labels, but what is in one of the `parts` is "frozen"."""
  return {
    part: jax.tree.map(lambda label: "frozen", tree) if part in parts else tree
    for part, tree in labels.items()
  }
