"""The choice between a layer's fused form and its plain one (`plain.py`), for a model at once."""

import contextvars
import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

Layers = Literal["auto", "fused", "plain"]
_Function = TypeVar("_Function", bound=Callable[..., Any])

FORM = contextvars.ContextVar[Layers]("layers", default="fused")  # of what is traced now


def or_plain(plain: Callable[..., Any]) -> Callable[[_Function], _Function]:
  """A decorator of a fused layer, for `plain` with the same arguments in place of it."""

  def decorate(fused: _Function) -> _Function:
    @functools.wraps(fused)
    def either(*args: Any, **kwargs: Any) -> Any:
      return (plain if FORM.get() == "plain" else fused)(*args, **kwargs)

    for define in ("defjvp", "defvjp"):  # of the fused form's derivative
      if hasattr(fused, define):
        setattr(either, define, getattr(fused, define))
    return either  # type: ignore[return-value]

  return decorate


def with_layers(call: _Function) -> _Function:
  """A decorator of a model's `__call__`, for the form in `layers`; "auto" is fused here."""

  @functools.wraps(call)
  def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
    token = FORM.set(self.layers)
    try:
      return call(self, *args, **kwargs)
    finally:
      FORM.reset(token)

  return chosen  # type: ignore[return-value]
