"""Eight CPU devices for every test; strict dtypes; a compile inside the clock is an error."""

import atexit
import os
import shutil
import tempfile
from importlib.metadata import version

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# Collectives of several virtual devices deadlock on a pool of as many threads as a small machine
# has cores (jax 0.10, 0.11).
os.environ["PJRT_NPROC"] = "16"
# Most seconds are the compiler's: 15.4 s of CPU time for the programs of a toy run, 10.9 s without
# LLVM's optimisation, 5.9 s with the fusions' earlier emitters too, which jaxlib has before 0.11.
# With XLA_FLAGS of one's own, tests run what users run.
if "XLA_FLAGS" not in os.environ:
  os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
  if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
# For evaluations and predictions, whose runs do not say where; workers inherit it.
if "JAXSPEED_COMPILE_CACHE" not in os.environ:
  os.environ["JAXSPEED_COMPILE_CACHE"] = tempfile.mkdtemp(prefix="jaxspeed_programs_")
  atexit.register(shutil.rmtree, os.environ["JAXSPEED_COMPILE_CACHE"], ignore_errors=True)

import contextlib
import pathlib
import re
import signal
import sys
from collections.abc import Iterator

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

jax.config.update("jax_numpy_dtype_promotion", "strict")
with contextlib.suppress(ValueError):  # not in the main thread
  # A shell lets a command behind & ignore Ctrl-C, and so its children, which tests interrupt.
  signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).parents[1]


# Files that take a minute and more without a slow test.
LONG = ("step", "stream", "weights", "cifar_nets", "trainer", "signals")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Long files first: at the end no worker waits minutes for another."""
  long = {item.path for item in items if item.get_closest_marker("slow")}
  long |= {item.path for item in items if item.path.stem.removeprefix("test_") in LONG}
  items.sort(key=lambda item: item.path not in long)
  # XLA turns float16 into float32 with instructions that came after SSE (F16C), or not at all.
  if "xla_cpu_max_isa=SSE4_2" in os.environ["XLA_FLAGS"]:
    for item in items:
      if item.get_closest_marker("float16") or re.search("(?<!b)float16", item.nodeid):
        item.add_marker(pytest.mark.skip("XLA has no float16 for processors without F16C"))


@pytest.fixture(scope="module", autouse=True)
def _programs_of_one_file() -> Iterator[None]:
  """What runs of one file compiled is not found by those of the next in the same process."""
  before = jax.config.jax_compilation_cache_dir
  yield
  jax.config.update("jax_compilation_cache_dir", before)
  compilation_cache.reset_cache()
  jax.clear_caches()  # a process of half of the tests had 5 GB otherwise


@pytest.fixture
def float64() -> Iterator[None]:
  """JAX with its 64-bit types, as a run of precision float64 has them."""
  from jaxspeed.devices import precision

  with precision.wide_enough("float64"):
    yield


@pytest.fixture(autouse=True)
def _equal_programs_are_in_float64(request: pytest.FixtureRequest) -> None:
  if request.node.get_closest_marker("equivalence"):
    request.getfixturevalue("float64")


@pytest.fixture
def shared_data() -> pathlib.Path:
  """The folder of real data beside the checkout."""
  folder = ROOT.parent / "shared" / "data"
  if not folder.is_dir():
    pytest.skip(f"no real data: {folder.name} is not beside the checkout")
  return folder


@pytest.fixture
def module_folder(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pathlib.Path]:
  """The current folder, for modules my_... ; what they register is forgotten afterwards."""
  import jaxspeed.models.make  # noqa: F401  registers the package's own
  from jaxspeed.config import registry

  tables = [each for each in vars(registry).values() if isinstance(each, registry.Registry)]
  known, modules = [dict(table) for table in tables], set(sys.modules)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
  monkeypatch.setattr(sys, "dont_write_bytecode", True)
  yield tmp_path
  for table, before in zip(tables, known, strict=True):
    table.clear()
    table.update(before)
  for name in set(sys.modules) - modules:
    if name.startswith("my_"):
      del sys.modules[name]
