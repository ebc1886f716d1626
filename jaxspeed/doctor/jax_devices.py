"""JAX's devices, found without a traceback and within a limited time."""

import functools
import logging
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from jaxspeed.config.output import held
from jaxspeed.doctor import child
from jaxspeed.doctor.fit import Seen
from jaxspeed.errors import UserError, printable

# The thread that waits for devices, which may hang in a driver.
THREAD = "find devices"


class _Complaints(logging.Filter):
  """Keeps what JAX logs of its plugins, with the exception's last line, instead of printing it."""

  def __init__(self) -> None:
    super().__init__()
    self.found: list[str] = []
    self.broken: dict[str, str] = {}

  def filter(self, record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    # JAX logs a missing module without its exception, which is handled meanwhile.
    module = plugin_of(error or sys.exception())
    try:
      text = record.getMessage()
    except (TypeError, ValueError):
      text = str(record.msg)
    # JAX logs one message without its argument, the module.
    text = text.replace("%s", module or "?")
    if error is not None:
      text = f"{text.rstrip('.: ')}: {_in_words(error)}"
    # Its hint that there may be a GPU is a rule of the doctor's own.
    if record.levelno >= logging.WARNING and "may be present" not in text:
      sentence = printable(" ".join(text.split())[:300])
      self.found.append(sentence)
      if module:
        self.broken[sentence] = module
    return False


def _in_words(error: BaseException) -> str:
  """An exception's type and the first line of its message."""
  first = next(iter(str(error).strip().splitlines()), "")
  return f"{type(error).__name__}{f': {first[:200]}' if first else ''}"


def plugin_of(error: BaseException | None) -> str:
  """The module of JAX's plugin in whose import or start an exception arose; "" if in none."""
  while error is not None:
    for frame, _ in traceback.walk_tb(error.__traceback__):
      if frame.f_code.co_name == "discover_pjrt_plugins":
        return printable(str(frame.f_locals.get("plugin_module_name", "")))
    error = error.__cause__
  return ""


def prepare() -> None:
  """Sets what must be set before JAX starts: no memory taken ahead, and nothing written."""
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def find(*, seconds: float) -> tuple[Seen, list[Any]]:
  """What JAX sees, and its devices; [] if it finds none, or does not answer in time."""
  if refused := _refused_flags(os.environ, seconds):
    return Seen("", problem=refused, variable="XLA_FLAGS"), []
  complaints = _Complaints()
  logger = logging.getLogger("jax._src.xla_bridge")
  logger.addFilter(complaints)
  found: list[Any] = []
  problem: list[str] = []

  def search(step: Callable[[], Any]) -> None:
    try:
      step()
    except (Exception, SystemExit) as error:  # a broken installation raises anything
      if module := plugin_of(error):
        cause = error.__cause__ if isinstance(error, UserError) and error.__cause__ else error
        problem.append(printable(f"its plugin {module} fails ({_in_words(cause)})"))
        complaints.broken[problem[0]] = module
      elif isinstance(error, UserError):
        problem.append(str(error))
      else:
        problem.append(printable(f"it cannot be used ({_in_words(error)})"))

  late = False
  try:
    with warnings.catch_warnings(record=True) as told, held():
      warnings.simplefilter("always", RuntimeWarning)
      search(_import)
      if not problem:
        look = functools.partial(search, lambda: found.extend(_devices()))
        thread = threading.Thread(target=look, name=THREAD, daemon=True)
        thread.start()
        thread.join(seconds)
        late = thread.is_alive()
    if late:
      problem.append(f"it found no device within {seconds:.0f} s")
  finally:
    logger.removeFilter(complaints)
  said = [str(each.message) for each in told if "plugin" in str(each.message)]
  said = list(dict.fromkeys([*complaints.found, *(printable(each[:300]) for each in said)]))
  if problem:
    broken = complaints.broken
    return Seen("", problem=problem[0], complaints=tuple(said), late=late, broken=broken), []
  kinds = tuple(str(device.device_kind) for device in found)
  platform = found[0].platform
  return Seen(platform, kinds, complaints=tuple(said), broken=complaints.broken), found


def _refused_flags(environment: Mapping[str, str], seconds: float) -> str:
  """What XLA says of XLA_FLAGS that it does not take, for which it ends the process; "" if it does.

  Only another process can tell.
  """
  if not environment.get("XLA_FLAGS"):
    return ""
  command = (sys.executable, "-c", "import jax; jax.devices()")
  on_cpu = {**environment, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "0"}
  try:
    ended = child.run(command, seconds=seconds, environment=on_cpu)
  except OSError:
    return ""
  known = (
    "Unknown flags? in XLA_FLAGS: .*|Couldn't interpret value .*|"
    'Could not open file .* to read flags for environment variable "XLA_FLAGS"'
  )
  found = re.search(known, ended.error)
  if not ended.code or not found:
    return ""
  return printable(f"XLA refuses XLA_FLAGS and ends every program: {found[0].strip(' .')}")


def _import() -> None:
  """Imports JAX; where JAX_COMPILATION_CACHE_DIR is set, it would keep the doctor's programs.

  jaxlib's C code imports NumPy, and turns a Ctrl-C meanwhile into an ImportError: NumPy is first.
  """
  import numpy  # noqa: F401, I001
  import jax

  jax.config.update("jax_enable_compilation_cache", False)


def _devices() -> list[Any]:
  from jaxspeed.devices.mesh import find_devices

  return find_devices()
