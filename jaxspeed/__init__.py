"""jaxspeed: image classifiers to a target accuracy in the least time and money, in JAX.

From a script, a notebook or a thread:

    import jaxspeed

    config = jaxspeed.recipe("quickstart", epochs=4)      # a shipped recipe, with changes
    data = jaxspeed.Arrays(x, y, x_val, y_val)            # or the path of a data set
    run = jaxspeed.fit(config, data=data, workdir="runs/a")

    run.result["top1"], run.history[-1]["train_loss"]     # the result; a row for each epoch
    run.evaluate(x_val, y_val)                            # {"images", "loss", "top1", "top5"}
    run.predict(x_val)                                    # probabilities [n, classes]
    run.model, run.variables                              # a Flax module and its variables
    run = jaxspeed.load("runs/a")                         # the same object, from the folder

The same call resumes a run that was stopped. A call prints nothing unless asked, never ends the
process, and raises jaxspeed.UserError, one sentence, for a mistake. Importing jaxspeed is quick:
JAX is imported at the first use. docs/library.md is the guide; `jaxspeed --help` lists commands.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxspeed.errors import UserError

if TYPE_CHECKING:
  from jaxspeed.library.arrays import Arrays
  from jaxspeed.library.fit import fit
  from jaxspeed.library.loaded import Run, load
  from jaxspeed.library.recipes import recipe

__version__ = "0.1.0"
__all__ = ["Arrays", "Run", "UserError", "fit", "load", "recipe"]

_HOMES = {"Arrays": "arrays", "Run": "loaded", "fit": "fit", "load": "loaded", "recipe": "recipes"}


def __getattr__(name: str) -> Any:
  """Imports a name of the library at its first use."""
  if name not in _HOMES:
    raise AttributeError(f"module 'jaxspeed' has no attribute {name!r}")
  value = getattr(importlib.import_module(f"jaxspeed.library.{_HOMES[name]}"), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
