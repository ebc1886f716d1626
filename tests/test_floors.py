"""The house of the package, measured: rooms without circles, nothing evaluated, nothing unpickled.

A room is a folder of the package, or a file at its top. Imports inside functions count too.
"""

import ast
import functools
import graphlib
import re

import grimp
import pytest
from commands import ROOT, python

PACKAGE = ROOT / "jaxspeed"
FLOORS = 8  # rooms on top of each other, from a command down to the ground
GROUND = {"errors", "files"}  # files at the top that are no commands
FILES = [*sorted(PACKAGE.rglob("*.py")), *sorted((ROOT / "configs").glob("*.py"))]
FOLDERS = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py")}

# What no rule of ruff (pyproject.toml) refuses in package and configs.
PATTERNS = {
  "allow_pickle=True": r"allow_pickle(?!=False\b)",
  "compile(text)": r"(?<![\w.])(?:compile|__import__)\(",
  # OSError("words") has no strerror, and would be reported as None.
  "f'{error.strerror}: mend it'": r"\{[^{}]*\.strerror[}:!]",
}
# A violation of each of ruff's rules: the rule, and a line of a file.
PLANTED = [
  ("S102", "exec('1')"),
  ("S307", "eval('1')"),
  ("S301", "pickle.loads(b'')"),
  *(
    ("TID251", f"import {name}") for name in ("pickle", "dill", "cloudpickle", "marshal", "shelve")
  ),
  *(("TID251", f"import {name}") for name in ("joblib", "torch", "torchvision.models")),
  ("TID251", "from json import loads"),
  ("TID251", "fcntl.flock(0, 1)"),
  ("TID252", "from . import files"),
  *(("TID253", f"import {name}") for name in ("tensorflow", "tensorflow_datasets", "keras")),
]


@functools.cache
def imports_of_files() -> dict[str, set[str]]:
  """Each file by its dotted name, with the files of the package that it imports."""
  graph = grimp.build_graph("jaxspeed", cache_dir=None)
  files = {m for m in graph.modules if not (PACKAGE.parent / m.replace(".", "/")).is_dir()}
  return {
    name.removeprefix("jaxspeed."): {
      other.removeprefix("jaxspeed.")
      for other in graph.find_modules_directly_imported_by(name) & files
    }
    for name in files
  }


def room_of(file: str) -> str:
  return file.rpartition(".")[0] or file


def imports_of_rooms() -> dict[str, set[str]]:
  rooms: dict[str, set[str]] = {}
  for file, others in imports_of_files().items():
    rooms.setdefault(room_of(file), set()).update({room_of(o) for o in others} - {room_of(file)})
  return rooms


def floors_of(graph: dict[str, set[str]]) -> dict[str, int]:
  """Each node with the length of the longest way down from it; a CycleError names a circle."""
  floors: dict[str, int] = {}
  for node in graphlib.TopologicalSorter(graph).static_order():
    floors[node] = 1 + max((floors[other] for other in graph[node]), default=0)
  return floors


def test_no_circle_between_rooms_or_files_and_no_more_floors_than_documented():
  rows = re.findall(r"^\| (\d) \| (.+?) \|", (ROOT / "docs/architecture.md").read_text(), re.M)
  documented = {
    name.removesuffix(".py").rstrip("/").replace("/", "."): int(floor)
    for floor, names in rows
    for name in re.findall("`(.+?)`", names)
  }
  assert documented == floors_of(imports_of_rooms()) and max(documented.values()) <= FLOORS
  floors_of(imports_of_files())


def test_the_top_holds_commands_that_nothing_imports_and_the_ground():
  at_top = {name for name in imports_of_files() if "." not in name}
  commands = {n for n in at_top if '__name__ == "__main__"' in (PACKAGE / f"{n}.py").read_text()}
  assert at_top - commands == GROUND
  commands |= {name for name in imports_of_files() if name.endswith(".__main__")}
  assert {name for name, others in imports_of_files().items() if others & commands} == set()
  # Only the table of feeds names them (`feeds.protocol`).
  feeds = {"feeds.resident", "feeds.stream"}
  importing = {name for name, others in imports_of_files().items() if others & feeds}
  assert {name for name in importing if room_of(name) == "run"} == {"run.setup"}


def test_the_tests_mirror_the_folders():
  tests = {str(p.parent.relative_to(ROOT / "tests")) for p in (ROOT / "tests").rglob("test_*.py")}
  assert tests - FOLDERS <= {".", "scripts", "configs", "campaign"}


def test_files_functions_and_classes_are_short():
  most = {ast.FunctionDef: 80, ast.AsyncFunctionDef: 80, ast.ClassDef: 200}
  for path in [*FILES, *sorted((ROOT / "scripts").glob("*.py"))]:
    for node in ast.walk(ast.parse(path.read_text())):
      if type(node) in most:
        assert node.end_lineno - node.lineno < most[type(node)], (path.name, node.name)
  for folder in ("jaxspeed", "configs", "scripts", "tests"):
    for path in (ROOT / folder).rglob("*.py"):
      assert path.read_text().count("\n") <= 400, path


def test_nothing_is_unpickled_or_evaluated():
  for planted, pattern in PATTERNS.items():
    assert re.search(pattern, planted)
    for path in FILES:
      assert not re.search(pattern, path.read_text()), (path, planted)


@pytest.mark.parametrize("folder", ["jaxspeed", "configs"])
def test_ruff_finds_a_planted_violation(folder, tmp_path):
  (tmp_path / folder).mkdir()
  lines = ["import fcntl, pickle", *(line for _, line in PLANTED)]
  (tmp_path / folder / "planted.py").write_text("\n".join(lines))
  words = ("check", "--output-format=concise", "--no-cache", f"--config={ROOT / 'pyproject.toml'}")
  found = python("-m", "ruff", *words, ".", cwd=tmp_path, code=1).stdout
  for number, (rule, line) in enumerate(PLANTED, 2):
    assert re.search(rf"planted.py:{number}:\d+: {rule} ", found), (line, found)
