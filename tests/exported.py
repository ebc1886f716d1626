"""Models with made-up weights and what they compute, and real photographs to feed them."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_sample_images
from toy import drawn

from jaxspeed.export.formats.network import Network

NAMES = ("cat", 'a "dog"', "<b>bird</b>", "poisson d'avril", "猫", "f", "g", "h", "i", "j")


def photographs(side: int, count: int = 6) -> np.ndarray:
  """Squares of scikit-learn's two photographs, at several scales; uint8."""
  cut = []
  for number in range(count):
    photo, step = load_sample_images().images[number % 2], 1 + number % 3
    top, left = 37 * number, 53 * number
    cut.append(photo[top : top + side * step : step, left : left + side * step : step])
  return np.stack(cut)


def shapes_of(model: nn.Module, *sides: int, dtype: Any = np.float32) -> dict[str, Any]:
  """The shapes of a model's variables, for images of one side or of a height and a width."""
  images = jax.ShapeDtypeStruct((2, sides[0], sides[-1], 3), dtype)
  return jax.eval_shape(functools.partial(model.init, train=False), jax.random.key(0), images)


def random_variables(model: nn.Module, *sides: int, seed: int = 0) -> dict[str, Any]:
  """Variables of a model in float32."""
  return jax.tree.map(np.float32, drawn(shapes_of(model, *sides), np.random.default_rng(seed)))


@functools.partial(jax.jit, static_argnums=0)
def computed_by(model: nn.Module, variables: Any, images: Any, labels: Any) -> dict[str, Any]:
  """Logits of an evaluation; logits, statistics, mean cross entropy and gradients of a training."""

  def loss(params: Any) -> Any:
    y, updated = model.apply(
      variables | {"params": params}, images, train=True, mutable=["batch_stats"]
    )
    picked = jax.nn.log_softmax(y)[jnp.arange(len(labels)), labels]
    return -picked.mean(), {"logits": y, "stats": updated["batch_stats"]}

  (mean, found), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
  evaluated = model.apply(variables, images, train=False)
  return found | {"evaluated": evaluated, "loss": mean, "grads": grads}


def network(
  model: nn.Module, side: int, *, input_dtype: str = "uint8", own: bool = False
) -> Network:
  """A network with made-up weights."""
  return Network(
    model=model,
    variables=random_variables(model, side),
    image_size=side,
    mean=(120.0, 115.0, 105.0),
    std=(60.0, 55.0, 65.0),
    class_names=NAMES,
    input_dtype=input_dtype,
    own=own,
    facts={"resize": side, "step": 7, "jaxspeed": "0"},
  )


def spread(made: Network, images: np.ndarray) -> tuple[Network, np.ndarray]:
  """The network with its last layer scaled, so that the classes differ, and its probabilities.

  The deviation of the logits becomes 2: of saturated or equal classes a test would see nothing.
  """
  pixels = images.astype(np.float32) * (1 if images.dtype == np.uint8 else 255)
  normal = (pixels - np.float32(made.mean)) / np.float32(made.std)
  apply = jax.jit(functools.partial(made.model.apply, train=False))
  logits = np.asarray(apply(made.variables, normal), np.float64)
  factor = 2 / logits.std(axis=1).mean()
  for name, leaf in made.variables["params"]["head"].items():
    made.variables["params"]["head"][name] = np.float32(leaf * factor)
  powers = np.exp(factor * (logits - logits.max(axis=1, keepdims=True)))
  assert np.isfinite(powers).all()
  return made, powers / powers.sum(axis=1, keepdims=True)
