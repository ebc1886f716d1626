"""--import: modules of the user's own, and the mistakes in them."""

import sys

import pytest
from in_process import command

from jaxspeed.config import imports, registry
from jaxspeed.errors import UserError

MODEL = """
from flax import linen as nn
from jaxspeed.config import registry
@registry.model({name!r})
class Mine(nn.Module):
  {fields}
"""
BAD = {
  "no such module": (None, "my_mod", "there is no module my_mod in the current folder, "),
  "no such submodule": ("", "my_mod.sub", "there is no module my_mod.sub in the current"),
  "a file": ("", "my_mod.py", "is not a module's name: write --import=my_models for my_models.py."),
  "a path": ("", "./my_mod", "is not a module's name: write --import="),
  "raises": ("\n\n1 / 0\n", "my_mod", "my_mod.py, line 3: ZeroDivisionError: division by zero."),
  "syntax": ("x = 1\ndef f(:\n", "my_mod", "my_mod.py, line 2: SyntaxError: invalid syntax."),
  "exits": ("import sys\nsys.exit(3)\n", "my_mod", "line 2: SystemExit: 3."),
  "a parent that raises": ("1 / 0\n", "my_mod.sub", "ZeroDivisionError: division by zero."),
  "imports nothing": ("import my_none\n", "my_mod", "line 1: ModuleNotFoundError: No module named"),
  "no module": (
    "from jaxspeed.config import registry\n\nregistry.model('x')(dict)\n",
    "my_mod",
    "line 3: the model 'x' must be a flax.linen.Module, not dict.",
  ),
  "no dtype": (
    MODEL.format(name="x", fields="classes: int"),
    "my_mod",
    "my_mod.py, line 4: the model 'x': Mine has no attribute dtype; a model has `classes: int`",
  ),
  "a name that is taken": (
    MODEL.format(name="resnet", fields="classes: int\n  dtype: object = None"),
    "my_mod",
    "line 4: the name 'resnet' is that of another model already: choose another name.",
  ),
  "an optimizer's name": (
    "from jaxspeed.config import registry\nregistry.optimizer('sgd')(print)\n",
    "my_mod",
    "line 2: the name 'sgd' is that of another optimizer already",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_one_sentence_with_module_and_line(name, module_folder):
  code, module, sentence = BAD[name]
  import jaxspeed.models.make  # noqa: F401  registers the package's own

  if code is not None:
    (module_folder / "my_mod.py").write_text(code)
  done = command("plan", "--config=x.py", f"--import={module}")
  *_, found = done.stderr.splitlines()
  assert done.returncode == 2
  assert found.startswith(f"jaxspeed: --import={module}") and sentence in found


def test_a_package_and_several_modules(module_folder):
  (module_folder / "my_pack").mkdir()
  (module_folder / "my_pack" / "__init__.py").write_text("")
  (module_folder / "my_pack" / "deep.py").write_text(
    "from jaxspeed.config import registry\nregistry.optimizer('my_one')(print)\n"
  )
  (module_folder / "my_two.py").write_text(
    "from jaxspeed.config import registry\nregistry.data_set('my_two')(print)\n"
  )
  imports.import_modules(["my_pack.deep", "my_two"])
  assert "my_one" in registry.OPTIMIZERS and "my_two" in registry.DATA_SETS
  assert str(module_folder) == sys.path[0]
  registry.optimizer("my_one")(print)  # a cell of a notebook may run twice
  with pytest.raises(UserError, match="the name 'my_one' is that of another optimizer already"):
    registry.optimizer("my_one")(len)
