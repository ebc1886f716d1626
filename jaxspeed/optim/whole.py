"""What applies to all parameters together, around any optimizer: clipping and layers' rates."""

from typing import Any

import jax
import optax
from jaxtyping import PyTree
from ml_collections import ConfigDict

from jaxspeed.optim.layers import scale_by_layer


def with_clipping_and_layer_decay(
  optimizer: optax.GradientTransformation, config: ConfigDict, labels: PyTree, model: Any
) -> optax.GradientTransformationExtraArgs:
  """The optimizer between `config.optimizer.clip_norm` and `config.optimizer.layer_decay`.

  The norm is that of the gradients of all parameters that are not labelled "frozen", as
  torch.nn.utils.clip_grad_norm_ takes it over what is trained; optax's function does not add
  torch's 1e-6 to it.

  Args:
    optimizer: the optimizer, which takes all parameters.
    config: the config.
    labels: the labels of the parameters (`groups.labels_of`).
    model: the model, which says its layers (`layers.layers_of`).
  """
  fields = config.optimizer
  parts: list[optax.GradientTransformation] = [optimizer]
  if fields.clip_norm:
    trained = jax.tree.map(lambda label: label != "frozen", labels)
    parts.insert(0, optax.masked(optax.clip_by_global_norm(fields.clip_norm), trained))
  if fields.layer_decay != 1:
    parts.append(scale_by_layer(model, fields.layer_decay))
  if len(parts) == 1:
    return optax.with_extra_args_support(optimizer)
  return optax.chain(*parts)
