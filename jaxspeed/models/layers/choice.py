"""The choice between a layer's fused form and its plain one (`plain.py`), for a model at once."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

Layers = Literal["auto", "fused", "plain"]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_plain = contextvars.ContextVar("plain", default=False)


@contextlib.contextmanager
def layers_in(form: Layers) -> Iterator[None]:
  """A block that computes layers in a form; "auto" is "fused" (`models.make.for_device`)."""
  token = _plain.set(form == "plain")
  try:
    yield
  finally:
    _plain.reset(token)


def or_plain(plain: Callable[..., Any]) -> Callable[[_Function], _Function]:
  """A decorator of a fused layer, for `plain` with the same arguments in place of it."""

  def decorate(fused: _Function) -> _Function:
    @functools.wraps(fused)
    def either(*args: Any, **kwargs: Any) -> Any:
      return (plain if _plain.get() else fused)(*args, **kwargs)

    for define in ("defjvp", "defvjp"):  # of the fused form's derivative
      if hasattr(fused, define):
        setattr(either, define, getattr(fused, define))
    return either  # type: ignore[return-value]

  return decorate


def with_layers(call: _Function) -> _Function:
  """A decorator of a model's `__call__`, for the form in the model's field `layers`."""

  @functools.wraps(call)
  def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
    with layers_in(self.layers):
      return call(self, *args, **kwargs)

  return chosen  # type: ignore[return-value]
