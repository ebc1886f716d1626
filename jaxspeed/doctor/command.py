"""The order of the examination, and what each part of it may take of the time."""

import contextlib
import dataclasses
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.cluster.peers import Peers
from jaxspeed.config import output
from jaxspeed.devices.cpus import usable_cpus
from jaxspeed.devices.program_folder import program_folder
from jaxspeed.doctor import cache, fit, jax_devices, machine, nvidia, report, software
from jaxspeed.doctor.part import Advice, Part
from jaxspeed.errors import INTERRUPTED, UserError, printable
from jaxspeed.files import dump_json, expanded
from jaxspeed.records.clock import process_age

# Seconds for everything but Python's start; parts that do not fit are named.
_LIMIT = 18.0
# Seconds in which JAX must find its devices, and those kept for the recipe's prediction.
_DEVICES_S, _RECIPE_S = 10.0, 3.0


@dataclasses.dataclass(frozen=True)
class Wish:
  """What the command line asks for.

  Attributes:
    config: a recipe to predict; None: none.
    published: what is published of it.
    data: a data path to time; "": none.
    as_json: whether to print one JSON object.
    peers: the processes, if there are several.
  """

  config: ConfigDict | None = None
  published: Any = None
  data: str = ""
  as_json: bool = False
  peers: Peers | None = None


class Examination:
  """The parts that are done, and the facts that later parts need."""

  def __init__(self, wish: Wish) -> None:
    self.wish = wish
    self.parts: list[Part] = []
    self._until = time.monotonic() + _LIMIT
    self._nvidia = nvidia.Nvidia("")
    self._seen = fit.Seen("")
    self._found: list[Any] = []
    self._free = 0
    self._measured: Any = None
    self._exchanged: list[Any] = []
    self._decoded: dict[int, float] = {}

  @property
  def left(self) -> float:
    """Seconds that are left."""
    return self._until - time.monotonic()

  def run(self) -> Iterator[Part]:
    """Examines part after part; a part that fails is reported and the next one follows."""
    silent = self.wish.peers is not None and self.wish.peers.process > 0
    steps: list[tuple[str, Callable[[], Iterator[Part]]]] = [("devices", self._devices)]
    if not silent:
      steps.insert(0, ("software", self._software))
      steps.insert(1, ("machine", self._machine))
      steps.insert(2, ("compile cache", self._cache))
    steps.append(("all-reduce", self._all_reduce))
    if not silent:
      steps += [("ceilings", self._ceilings), ("data", self._data), ("recipe", self._recipe)]
    for name, step in steps:
      try:
        for part in step():
          self.parts.append(part)
          yield part
      except Exception as error:
        self.parts.append(_failed(name, error))
        yield self.parts[-1]

  def _software(self) -> Iterator[Part]:
    config = self.wish.config
    streams = bool(self.wish.data) or (config is not None and config.data.feed == "stream")
    yield software.examine(software.installed(), streams=streams)

  def _machine(self) -> Iterator[Part]:
    self._free = machine.host_memory()[1]
    yield machine.examine()

  def _cache(self) -> Iterator[Part]:
    folder = self.wish.config.compile_cache if self.wish.config is not None else ""
    yield cache.examine(cache.look_at(program_folder(folder), mounts=_mounts()))

  def _devices(self) -> Iterator[Part]:
    self._nvidia = nvidia.look()
    self._seen, self._found = jax_devices.find(seconds=_DEVICES_S)
    packages = software.installed()
    yield fit.examine(
      fit.Facts(
        nvidia=self._nvidia,
        seen=self._seen,
        packages=packages,
        asked={cuda: software.requirements(f"jax-cuda{cuda}-plugin") for cuda in (12, 13)},
        environment=os.environ,
        precision=self.wish.config.precision if self.wish.config is not None else "",
      )
    )

  def _all_reduce(self) -> Iterator[Part]:
    if not self._found:
      return
    import jax

    from jaxspeed.doctor import ceilings

    local = jax.local_devices()
    sizes = ceilings.CPU if local[0].platform == "cpu" else ceilings.GPU
    groups = [local] if len(local) == len(self._found) else [local, self._found]
    timed = [ceilings.all_reduce(group, sizes.reduced) for group in groups]
    self._exchanged = [each for each in timed if each is not None]
    virtual = local[0].platform == "cpu"
    if not (self.wish.peers and self.wish.peers.process):
      yield ceilings.exchange_part(self._exchanged, virtual)

  def _ceilings(self) -> Iterator[Part]:
    if not self._found:
      return
    from concurrent.futures import ThreadPoolExecutor

    import jax

    from jaxspeed.doctor import ceilings

    local = jax.local_devices()
    firsts = {device.device_kind: device for device in reversed(local)}
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
      under_load = pool.submit(_clocks, begun) if self._nvidia.gpus else None
      found = []
      try:
        for kind, device in firsts.items():
          sizes = ceilings.sizes_of(device, ceilings.free_memory(device, self._free))
          count = sum(each.device_kind == kind for each in local)
          found.append(ceilings.measure(device, count, sizes, begun=begun.set))
      finally:
        begun.set()
    self._measured = max(found, key=lambda each: each.tflops)
    yield ceilings.examine(found)
    if under_load:
      gpus, reasons, problem = under_load.result()
      on_gpu = self._seen.platform in ("gpu", "cuda")
      gpus = gpus or self._nvidia.gpus
      yield fit.clocks(gpus, reasons, problem, nvidia.REASONS, under_load=on_gpu)
    else:
      lines = ["clock throttling: unknown, nvidia-smi shows no GPU"]
      yield Part("clocks", lines, {"reasons": [], "problem": "nvidia-smi shows no GPU"})

  def _data(self) -> Iterator[Part]:
    if not self.wish.data:
      return
    from jaxspeed.doctor import images

    root = expanded(self.wish.data, "--data").absolute()
    samples = images.samples_for(root)
    readings = {s.what: images.read(s) for s in dict.fromkeys(samples.values()) if s.images}
    rates: dict[int, dict[str, Any]] = {}
    problem = ""
    if readings:
      kept = _RECIPE_S if self.wish.config is not None else 0.5
      rates, problem = images.decode(samples, seconds=max(1.0, self.left - kept))
    self._decoded = {side: float(row["images_per_s"]) for side, row in rates.items()}
    gpu, gpu_rates = _fastest(self._measured)
    yield images.examine(
      root, samples, readings, rates, problem,
      gpu=gpu, gpu_rates=gpu_rates, kind=machine.file_system(root, _mounts()),
    )  # fmt: skip

  def _recipe(self) -> Iterator[Part]:
    config = self.wish.config
    if config is None:
      return
    if self._measured is None:
      lines = ["not predicted: no device was measured"]
      yield Part("recipe", lines, {"recipe": config.name, "problem": lines[0]})
      return
    import jax

    from jaxspeed.doctor import ceilings, forecast
    from jaxspeed.planning.make import make_plan

    on_cpu = self._found[0].platform == "cpu"
    hosts = jax.process_count()
    devices = hosts if on_cpu else len(self._found)
    here = forecast.Here(
      ceiling=self._measured,
      devices=devices,
      hosts=hosts,
      memory=ceilings.free_memory(jax.local_devices()[0], self._free),
      cores=usable_cpus(),
      on_cpu=on_cpu,
      exchanged=self._exchanged,
      decoded=self._decoded,
    )
    yield forecast.examine(config, make_plan(config, devices=devices), self.wish.published, here)


def _failed(name: str, error: Exception) -> Part:
  """A part that could not be examined: a user's mistake in its sentence, else the exception."""
  first = next(iter(str(error).strip().splitlines()), "")[:200]
  reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
  what = printable(f"{name} could not be examined: {reason}")
  fix = "JAX_PLATFORMS=cpu python -m jaxspeed.doctor"
  return Part(name, [what], {"problem": what}, [Advice(what, fix)])


def _clocks(begun: threading.Event) -> tuple[tuple[nvidia.Gpu, ...], list[int], str]:
  """Clocks and reasons for lower ones, asked when a device has begun to work."""
  begun.wait()
  time.sleep(0.1)  # the clocks rise first
  reasons, problem = nvidia.throttling()
  return nvidia.look().gpus, reasons, problem


def _mounts() -> str:
  try:
    return pathlib.Path("/proc/mounts").read_text(errors="replace")
  except OSError:
    return ""


def _fastest(measured: Any) -> tuple[str, Mapping[int, float]]:
  """The kind of GPU to feed, this machine's or the fastest that is known, and its images/s."""
  from jaxspeed.doctor import images
  from jaxspeed.scaling.hardware import DEVICES, cluster_of
  from jaxspeed.scaling.predict import compute_s

  own = measured.sheet.kind if measured is not None and measured.sheet is not None else ""
  kind = own or max(DEVICES, key=lambda each: DEVICES[each].images_per_s)
  device, cluster = DEVICES[kind], cluster_of(DEVICES[kind])
  rates = {side: device.batch / compute_s(device.batch, side, cluster) for side in images.SIDES}
  return f"one {kind.upper()}", rates


def run(wish: Wish) -> int:
  """Prints the report; returns 0, or 1 if something is to be mended."""
  jax_devices.prepare()
  if wish.peers is not None:
    from jaxspeed.cluster import processes

    with _libraries_silent():
      processes.connect(wish.peers, heartbeat_seconds=60, timeout=60)
  examination = Examination(wish)
  silent = wish.peers is not None and wish.peers.process > 0
  found = examination.run()
  while True:
    with _libraries_silent():
      part = next(found, None)
    if part is None:
      break
    if not (wish.as_json or silent):
      print(report.text_of(part))
    if output.is_closed():
      break
  seconds = process_age()
  if wish.as_json and not silent:
    print(dump_json(report.object_of(examination.parts, seconds), indent=1))
  elif not silent:
    print(report.summary(examination.parts))
    print(f"examined in {seconds:.1f} s")
  return 0 if report.is_well(examination.parts) else 1


@contextlib.contextmanager
def _libraries_silent() -> Iterator[None]:
  """Drops what libraries write to descriptor 1 in the block, as gloo does, beside the report."""
  sys.stdout.flush()
  before, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
  os.dup2(nowhere, 1)
  os.close(nowhere)
  try:
    yield
  finally:
    os.dup2(before, 1)
    os.close(before)


def main(wish: Wish) -> None:
  """Prints the report and ends the process, at once if a thread of JAX's may hang in a driver."""
  try:
    code = run(wish)
  except KeyboardInterrupt:
    if not _hangs():
      raise
    output.say("stopped by Ctrl-C.")
    code = INTERRUPTED
  sys.stdout.flush()
  if _hangs():
    os._exit(code)  # JAX's own end would wait for the driver
  if code:
    sys.exit(code)


def _hangs() -> bool:
  """Whether the thread that looks for devices has not ended."""
  return any(thread.name == jax_devices.THREAD for thread in threading.enumerate())
