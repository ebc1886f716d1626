"""The state before the first step."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8, UInt32

from jaxspeed.data.augment import normalize
from jaxspeed.data.batch import INIT, PROXY, purpose_key
from jaxspeed.devices import precision
from jaxspeed.models.make import in_dtype
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import TrainState, variables_of

# 1.6 GB in float32; the 50,000 images of CIFAR-10 have 51 million.
_WHITENED_PIXELS = 2**27


def images_for_init(spec: TrainSpec) -> int:
  """How many training images `init_state` looks at; a model without whitening needs only a size."""
  if not getattr(spec.model, "whiten", hasattr(spec.model, "init_from_images")):
    return 1
  data = spec.config.data
  fitting = max(1, _WHITENED_PIXELS // data.image_size**2)
  return min(spec.config.whitening.images, data.train_images, fitting)


def init_state(
  key: UInt32[Array, "2"], images: UInt8[Array, "n h w 3"], *, spec: TrainSpec
) -> TrainState:
  """Make the state before the first step.

  Args:
    key: the run's key.
    images: the training images, or any image of their size. A model with a method
      `init_from_images` begins with what it makes of the first `config.whitening.images` of them.
  """
  config = spec.config
  # float64 would draw other random numbers, so a float64 run draws its weights in float32 too. Both
  # start with equal weights, except for the whitening filters, which have arbitrary signs.
  model = spec.model if spec.accumulation == jnp.float32 else in_dtype(spec.model, jnp.float32)
  variables = model.init(
    # Threefry takes 8 s to compile on a CPU, rbg 1 s; rbg's numbers also depend on the kind of
    # device.
    jax.random.wrap_key_data(jnp.tile(purpose_key(key, INIT, 0), 2), impl="rbg"),
    jnp.zeros((1, *images.shape[1:]), jnp.float32),
    train=False,
  )
  variables = jax.tree.map(lambda x: x.astype(spec.accumulation), variables)
  params, stats = variables["params"], variables.get("batch_stats", {})
  if hasattr(model, "init_from_images"):

    def first_images() -> Float[Array, "n h w 3"]:
      first = images[: images_for_init(spec)]
      return normalize(first, config.data.mean, config.data.std, spec.accumulation)

    params = model.init_from_images(
      params,
      first_images,
      epsilon=config.whitening.epsilon,
      centered=config.whitening.centered,
    )
  # The average is a copy, because a donated buffer must not appear in the state twice.
  copied = jax.tree.map(jnp.copy, variables_of(params, stats))
  return TrainState(
    step=jnp.int32(0),
    key=key,
    params=params,
    batch_stats=stats,
    opt_state=spec.optimizer.init(params),
    ema=copied if config.average.kind == "ema" else None,
    lookahead=copied if config.average.kind == "lookahead" else None,
    loss_scale=precision.LossScale.create(config.loss_scale)
    if config.precision == "float16"
    else None,
    proxy=init_state(purpose_key(key, PROXY, 0), images, spec=spec.proxy) if spec.proxy else None,
  )
