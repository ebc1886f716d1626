"""The house of the package: no module imports upward, nothing is evaluated, nothing unpickled."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "jaxspeed"

# From the ground up; inside a floor a module may import those before it.
FLOORS = (
  (
    "errors",
    "clock",
    "meters",
    "screen",
    "provenance",
    "records",
    "dawnbench",
    "config",
    "schedules",
    "losses",
    "precision",
    "mesh",
    "checks",
    "plan",
    "distributed",
    "stopping",
    "fence",
  ),
  (
    "data.tfrecord",
    "data.cifar",
    "data.array_cache",
    "data.arrays",
    "data.augment",
    "data.feed",
    "data.sizes",
    "data.imageset",
    "data.rectangles",
    "data.crops",
    "data.images",
    "data.noise",
    "data.sets",
    "data.writing",
    "data.resize",
    "data.shards",
    "models.layers",
    "models.resnet9",
    "models.airbench",
    "models.resnet",
    "models.pretrained",
  ),
  ("optim", "averaging", "state"),
  ("allreduce", "build", "step", "compile"),
  ("agreement", "checkpoint", "validate", "programs", "streaming"),
  ("loop", "restore", "scaling"),
  ("train", "evaluate", "predict", "prepare", "plan.__main__"),
)
ORDER = [module for floor in FLOORS for module in floor]

FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal"}


def name_of(path):
  """data/feed.py to data.feed; a package's __init__.py to the package's name."""
  parts = path.relative_to(PACKAGE).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
PACKAGES = {"", "data", "models"}  # whose __init__.py hold no code
PARSED = {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}
FILES = [*SOURCES.values(), *sorted((ROOT / "configs").glob("*.py"))]


def imported(node):
  """Dotted names that an import statement may bring in, modules and attributes alike."""
  if isinstance(node, ast.Import):
    return [alias.name for alias in node.names]
  if isinstance(node, ast.ImportFrom):
    assert node.level == 0, f"line {node.lineno}: a relative import"
    return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
  return []


def own_imports(tree):
  """Modules of this package that a module imports, inside functions too."""
  names = {name for node in ast.walk(tree) for name in imported(node)}
  own = {name.removeprefix("jaxspeed.") for name in names if name.startswith("jaxspeed.")}
  return own & set(SOURCES)


def outside_functions(tree):
  """Every node that runs when the module is imported."""
  for node in ast.iter_child_nodes(tree):
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
      yield node
      yield from outside_functions(node)


def test_every_module_has_its_place_and_every_place_a_module():
  assert sorted(SOURCES) == sorted([*ORDER, *PACKAGES])


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_what_lies_below_it(module):
  allowed = {*ORDER[: ORDER.index(module)], *PACKAGES}
  assert own_imports(PARSED[module]) - allowed == set()


def test_the_packages_hold_no_code():
  for name in PACKAGES:
    for node in PARSED[name].body:
      assert isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Constant)


def test_the_floors_see_imports_of_every_form():
  tree = ast.parse(
    "import jaxspeed.run.loop\nfrom jaxspeed import step as s\n"
    "def f():\n  from jaxspeed.data.batch import Batch\n"
  )
  assert own_imports(tree) == {"loop", "step", "data.feed"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_torch_and_tensorflow_only_inside_functions(path):
  tree = ast.parse(path.read_text())
  everywhere = {n.split(".")[0] for node in ast.walk(tree) for n in imported(node)}
  assert not everywhere & {"torch", "torchvision"}
  at_import = {n.split(".")[0] for node in outside_functions(tree) for n in imported(node)}
  assert not at_import & {"tensorflow", "tensorflow_datasets", "tf_keras", "keras"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_evaluated_and_nothing_unpickled(path):
  for node in ast.walk(ast.parse(path.read_text())):
    where = f"line {getattr(node, 'lineno', 0)}"
    assert not {n.split(".")[0] for n in imported(node)} & FORBIDDEN_MODULES, where
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
      assert node.func.id not in FORBIDDEN_CALLS, where
    if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
      assert isinstance(node.value, ast.Constant) and node.value.value is False, where
