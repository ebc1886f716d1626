"""A model that Python passes in place of `config.model`: its description and its checks."""

import dataclasses
import functools
import inspect
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxspeed.config.registry import NO_FIELDS, AnyModel
from jaxspeed.devices import precision
from jaxspeed.errors import UserError, printable
from jaxspeed.models.make import in_dtype

# Longest description, in characters.
_SHOWN = 500


def check_module(model: Any) -> None:
  """Makes sure that an object has the functions of a Flax module, `registry.AnyModel`.

  Raises:
    UserError: it has not; classes and modules of flax.nnx get advice.
  """
  if inspect.isclass(model):
    raise UserError(f"model= is the class {model.__name__}: pass an instance, {model.__name__}().")
  name = type(model).__name__
  if not (callable(getattr(model, "init", None)) and callable(getattr(model, "apply", None))):
    if any(each.__module__.startswith("flax.nnx.") for each in type(model).__mro__):
      raise UserError(
        f"model= is the nnx module {name}: pass flax.nnx.bridge.to_linen({name}, ...), with the "
        "arguments of its __init__ but rngs."
      )
    raise UserError(
      f"model= is of type {name}: it must be a flax.linen.Module with "
      "__call__(images [n, h, w, 3], *, train) that returns logits [n, classes]."
    )


def describe_model(model: AnyModel) -> str:
  """A module as NAME(FIELD=VALUE, ...), the same in every process; its dtype is the run's."""
  fields: Any = dataclasses.fields(model) if dataclasses.is_dataclass(model) else ()
  names = [field.name for field in fields]
  values = [f"{n}={_stable(getattr(model, n))}" for n in names if n not in NO_FIELDS]
  text = printable(" ".join(f"{type(model).__name__}({', '.join(values)})".split()))
  return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _stable(value: Any) -> str:
  """A value without its address in memory."""
  if callable(value) and hasattr(value, "__qualname__"):
    return str(value.__qualname__)
  text = repr(value)
  return f"a {type(value).__name__}" if " at 0x" in text else text


def prepared(model: AnyModel, config: ConfigDict) -> AnyModel:
  """The module that a run trains: in the dtype of `config.precision`, if it has one.

  Raises:
    UserError: it does not give logits [n, `config.data.classes`] for the run's images.
  """
  model = in_dtype(model, precision.DTYPES[config.precision])
  check_contract(model, config, "model=")
  return model


def check_contract(model: AnyModel, config: ConfigDict, name: str) -> None:
  """Makes sure that a model of the user's own can be trained, without computing anything.

  Args:
    model: the model.
    config: the config.
    name: the words for the model in a message.

  Raises:
    UserError: it does not give logits [n, `config.data.classes`] for the run's images, has nothing
      to train, or needs what a step does not have.
  """
  side, classes = config.data.image_size, config.data.classes
  images = jax.ShapeDtypeStruct((2, side, side, 3), np.float32)
  variables = _traced(name, model.init, jax.random.key(0), images, train=False)
  kept = {name: variables[name] for name in ("params", "batch_stats") if name in variables}
  logits = _traced(name, model.apply, kept, images, train=False)
  rngs, mutable = {"dropout": jax.random.key(0)}, ["batch_stats"]
  training, _ = _traced(name, model.apply, kept, images, train=True, rngs=rngs, mutable=mutable)
  for found in (logits, training):
    if getattr(found, "shape", None) != (2, classes):
      shape = getattr(found, "shape", None) or type(found).__name__
      raise UserError(
        f"{name} gives {shape} for 2 images, and the data have {classes} classes: it must give "
        f"logits of shape (2, {classes})."
      )
    if not np.issubdtype(found.dtype, np.floating) and found.dtype != "bfloat16":
      raise UserError(f"{name} gives logits of type {found.dtype}: they must be floats.")
  trained = jax.tree.leaves(variables.get("params", {}))
  if not all(leaf.size for leaf in trained):
    raise UserError(f"{name} has a parameter without elements, which no checkpoint can hold.")
  if not trained:
    raise UserError(f"{name} has no parameters: there is nothing to train.")


def _traced(name: str, call: Any, *arguments: Any, train: bool, **options: Any) -> Any:
  """The shapes of what a model returns with what a run keeps and passes: see docs/extending.md."""
  try:
    return jax.eval_shape(functools.partial(call, train=train, **options), *arguments)
  except Exception as error:
    reason = next(iter(str(error).splitlines()), "")[:200].rstrip(".")
    raise UserError(
      f"{name} fails on images of shape {arguments[1].shape} with train={train} "
      f"({type(error).__name__}: {reason}): it must map images [n, h, w, 3] and train to logits, "
      "with the collections params and batch_stats only, and the rng dropout in training only."
    ) from error
