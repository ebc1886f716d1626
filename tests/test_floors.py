"""The house of the package, measured: rooms without circles, nothing evaluated, nothing unpickled.

A room is a folder of the package, or a file at its top.
"""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "jaxspeed"

# Rooms on top of each other, from a command down to the ground.
FLOORS = 8
# Files at the top that are no commands.
GROUND = {"", "errors", "files"}

# Folders from which users import: their __init__.py names what there is.
FACES = {"", "launch"}

# The most lines of a file, a function and a class.
LINES = {ast.Module: 400, ast.FunctionDef: 80, ast.ClassDef: 200}

FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal"}


def name_of(path):
  """data/batch.py to data.batch; an __init__.py to the name of its folder."""
  parts = path.relative_to(PACKAGE).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
PARSED = {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}
FOLDERS = {name for name, path in SOURCES.items() if path.name == "__init__.py"}
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


def room_of(module):
  """The folder that a file lies in; of one at the top the file itself."""
  return module.rpartition(".")[0] or module


def imports_of_files():
  """Each file with the files that it imports."""
  return {name: own_imports(tree) - FOLDERS for name, tree in PARSED.items()}


def imports_of_rooms():
  """Each room with the other rooms that its files import from."""
  rooms = {room_of(name): set() for name in SOURCES if name not in FOLDERS}
  for name, imports in imports_of_files().items():
    if name not in FOLDERS:
      rooms[room_of(name)] |= {room_of(other) for other in imports} - {room_of(name)}
  return rooms


def circle_in(graph):
  """The nodes of a circle, its first one also last; none without a circle."""
  done = set()

  def follow(path):
    for following in sorted(graph[path[-1]]):
      if following in path:
        return [*path[path.index(following) :], following]
      if following not in done and (found := follow([*path, following])):
        return found
    done.add(path[-1])
    return []

  return next((found for node in sorted(graph) if (found := follow([node]))), [])


def longest_chain(graph):
  """The nodes of the longest way down a graph without circles."""

  @functools.cache
  def below(node):
    return [node, *max((below(other) for other in sorted(graph[node])), key=len, default=[])]

  return max((below(node) for node in graph), key=len)


def floors_of(graph):
  """Each node with the length of the longest way down from it: the floor that it stands on."""

  @functools.cache
  def floor(node):
    return 1 + max((floor(other) for other in graph[node]), default=0)

  return {node: floor(node) for node in graph}


def is_command(tree):
  """Whether a file does something when it is run."""
  return any(
    isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
    for node in tree.body
  )


def test_no_circle_between_files():
  assert circle_in(imports_of_files()) == []


def test_no_circle_between_rooms():
  assert circle_in(imports_of_rooms()) == []


def test_the_longest_chain_of_rooms_is_no_longer_than_the_house_is_high():
  chain = longest_chain(imports_of_rooms())
  assert len(chain) <= FLOORS, " -> ".join(chain)


def test_the_documented_floors_are_those_of_the_imports():
  rows = re.findall(r"^\| (\d) \| (.+?) \|", (ROOT / "docs/architecture.md").read_text(), re.M)
  documented = {
    name.removesuffix(".py").rstrip("/").replace("/", "."): int(floor)
    for floor, names in rows
    for name in re.findall("`(.+?)`", names)
  }
  assert documented == floors_of(imports_of_rooms())


def test_the_top_holds_commands_and_the_ground():
  top = {name for name in SOURCES if "." not in name and name not in FOLDERS | GROUND}
  assert [name for name in sorted(top) if not is_command(PARSED[name])] == []


def test_nothing_imports_a_command():
  at_top = {name for name in SOURCES if "." not in name or name.endswith(".__main__")}
  commands = {name for name in at_top - FOLDERS if is_command(PARSED[name])}
  importing = {name: imports & commands for name, imports in imports_of_files().items()}
  assert {name: imports for name, imports in importing.items() if imports} == {}


def names_only(node):
  """Whether a statement of a face imports, lists names, or imports a name at its first use."""
  if isinstance(node, ast.FunctionDef):
    return node.name in ("__getattr__", "__dir__")
  typed = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
  return typed or isinstance(node, ast.Import | ast.ImportFrom | ast.Assign)


def test_the_folders_hold_no_code_and_faces_only_names():
  for name in FOLDERS:
    for node in PARSED[name].body:
      if name in FACES and names_only(node):
        continue
      assert isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Constant)


@pytest.mark.parametrize(
  "path",
  [*SOURCES.values(), *sorted((ROOT / "scripts").glob("*.py"))],
  ids=lambda path: str(path.relative_to(ROOT)),
)
def test_files_functions_and_classes_are_short(path):
  text = path.read_text()
  assert text.count("\n") <= LINES[ast.Module]
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
      most = LINES[ast.ClassDef if isinstance(node, ast.ClassDef) else ast.FunctionDef]
      assert node.end_lineno - node.lineno < most, node.name


def test_most_functions_are_short():
  functions = [
    node
    for tree in PARSED.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
  ]
  lines = sorted(node.end_lineno - node.lineno + 1 for node in functions)
  assert lines[len(lines) // 2] <= 9 and lines[len(lines) * 9 // 10] <= 25


def test_no_two_test_files_have_one_name():
  """pytest imports them as modules of one namespace: of two, it takes the first and refuses the
  second.
  """
  names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
  assert sorted(set(names)) == sorted(names)


def test_the_tests_mirror_the_folders():
  folders = {
    path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")
  }
  others = {pathlib.Path(name) for name in (".", "scripts", "configs", "campaign")}
  strangers = {f for f in folders - others if ".".join(f.parts) not in FOLDERS}
  assert strangers == set()


def test_a_run_asks_no_feed_and_no_data_for_its_type():
  """Only the table of feeds in run/setup.py names them (`feeds.protocol`)."""
  kinds = {"ResidentFeed", "StreamFeed", "Arrays", "ImageSets"}
  naming = {
    name: {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & kinds
    for name, tree in PARSED.items()
    if room_of(name) == "run"
  }
  assert {name: used for name, used in naming.items() if used} == {
    "run.setup": {"ResidentFeed", "StreamFeed"}
  }


def test_circles_and_chains_are_found():
  assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
  graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
  assert circle_in(graph) == [] and longest_chain(graph) == ["a", "b", "c"]
  assert floors_of(graph) == {"a": 3, "b": 2, "c": 1}


def test_imports_of_every_form_are_seen():
  tree = ast.parse(
    "import jaxspeed.run.trainer\nfrom jaxspeed.steps import update as u\n"
    "def f():\n  from jaxspeed.data.batch import Batch\n"
  )
  assert own_imports(tree) - FOLDERS == {"run.trainer", "steps.update", "data.batch"}


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_errors_without_a_number_are_not_told_as_none(path):
  """OSError("words") has no strerror: it is never formatted without another choice."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Attribute):
      assert node.value.attr != "strerror", f"line {node.lineno}"
