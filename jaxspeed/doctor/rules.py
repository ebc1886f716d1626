"""Whether packages are of the right versions, and driver, CUDA, cuDNN and plugin fit the GPU.

Sources: JAX's installation guide (driver 525 for CUDA 12, 580 for CUDA 13; compute capability 5.2
and 7.5), cuDNN's support matrix (9.11 and later need 7.5), `jaxlib.plugin_support` (a plugin of
another version than jaxlib is not used).
"""

import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from jaxspeed.doctor.findings import Finding, mend
from jaxspeed.records.provenance import version_of, versions

DRIVERS = {12: Version("525"), 13: Version("580")}
CAPABILITIES = {12: (5, 2), 13: (7, 5)}
TURING, AMPERE = (7, 5), (8, 0)
# The first cuDNN without kernels for GPUs before Turing, such as the V100.
CUDNN_TURING = Version("9.11")


@dataclasses.dataclass(frozen=True)
class Gpu:
  """A GPU of NVIDIA's driver: its compute capability, and bytes of memory, all and in use."""

  name: str
  capability: tuple[int, ...]
  memory: int = 0
  used: int = 0


@dataclasses.dataclass(frozen=True)
class Facts:
  """What is known of the devices (`devices.probe`).

  Attributes:
    gpus: the GPUs that the driver lists.
    driver: the driver's version; "" if it does not answer.
    files: GPUs that /dev or the bus names.
    tpu: whether the bus names TPUs.
    platform: "gpu", "cpu", ...; "" if JAX found no device.
    kinds: the kind of each device that JAX found.
    problem: why JAX found no device; "" if it did.
    hangs: whether that is because its time was over.
    unmeasured: why not all was measured.
    failed_plugins: the exception of each plugin of JAX that failed, by its module.
    ceilings: the measured devices, one of each kind, the fastest first (`ceilings.measure`).
    all_reduce: as `ceilings.all_reduce`; None for one device.
    environment: the text of `jax.print_environment_info`.
    precision: the precision of a recipe that is asked about; "" without one.
  """

  gpus: tuple[Gpu, ...] = ()
  driver: str = ""
  files: tuple[str, ...] = ()
  tpu: bool = False
  platform: str = ""
  kinds: tuple[str, ...] = ()
  problem: str = ""
  hangs: bool = False
  unmeasured: str = ""
  failed_plugins: Mapping[str, str] = dataclasses.field(default_factory=dict)
  ceilings: tuple[dict[str, Any], ...] = ()
  all_reduce: dict[str, Any] | None = None
  environment: str = ""
  precision: str = ""

  @property
  def is_there(self) -> bool:
    """Whether the machine has an NVIDIA GPU, whatever JAX sees."""
    return bool(self.gpus or self.files)

  def has_driver(self, cuda: int) -> bool:
    """Whether the driver is new enough for a CUDA; an unknown one counts as new."""
    return not self.driver or Version(self.driver) >= DRIVERS[cuda]

  @property
  def extra(self) -> str:
    """The extra of jaxspeed that fits the GPUs and the driver: volta, cuda12 or cuda13."""
    if min((gpu.capability for gpu in self.gpus), default=TURING) < TURING:
      return "volta"
    return "cuda13" if self.has_driver(13) else "cuda12"


def unmet(package: str, extra: str = "") -> Iterator[tuple[Requirement, str | None]]:
  """What a package requires and is not there, with the version that is; None if there is none.

  Args:
    package: an installed package; of others nothing is known.
    extra: one of its extras, whose requirements count too.
  """
  try:
    lines = importlib.metadata.requires(package) or []
  except importlib.metadata.PackageNotFoundError:
    return
  for required in map(Requirement, lines):
    there = version_of(required.name)
    wanted = required.marker is None or required.marker.evaluate({"extra": extra})
    if wanted and not (there and required.specifier.contains(there, prereleases=True)):
      yield required, there


def check_software() -> Iterator[Finding]:
  """Versions, and requirements that are not met."""
  found = versions()
  named = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
  yield Finding(named, facts={"versions": found, "system": platform.platform()})
  for required, there in unmet("jaxspeed"):
    have, asked = there or "missing", f"{required.name}{required.specifier}"
    yield mend(f"{required.name} is {have}; jaxspeed asks for {asked}.", f"pip install '{asked}'")


def plugins() -> dict[int, str]:
  """The version of each installed plugin for CUDA, by its CUDA."""
  found = {cuda: version_of(f"jax-cuda{cuda}-plugin") for cuda in DRIVERS}
  return {cuda: version for cuda, version in found.items() if version}


def broken(facts: Facts) -> Iterator[Finding]:
  """What is to mend."""
  yield from _plugins(facts)
  if facts.hangs and facts.problem:
    what = f"JAX hangs or the machine is busy: {facts.problem}."
    yield mend(what, "JAX_PLATFORMS=cpu python -m jaxspeed.doctor")
  elif facts.problem and "XLA_FLAGS" in os.environ and "flag" in facts.problem.lower():
    yield mend(f"XLA refuses XLA_FLAGS and ends every program: {facts.problem}", "unset XLA_FLAGS")
  elif facts.is_there and facts.platform not in ("gpu", "cuda"):
    why, line = _unseen(facts)
    sees = facts.problem or "JAX sees only the CPU"
    yield mend(f"There is an NVIDIA GPU, but {sees}: {why}.", line)
  elif facts.tpu and facts.platform != "tpu" and "JAX_PLATFORMS" not in os.environ:
    yield mend("There is a TPU, but JAX does not see it.", "pip install 'jaxspeed[tpu]'")
  elif facts.problem and not facts.failed_plugins:
    line = "unset JAX_PLATFORMS" if "JAX_PLATFORMS" in os.environ else "pip install -U jax jaxlib"
    yield mend(facts.problem, line)
  yield from _gpus(facts)


def _plugins(facts: Facts) -> Iterator[Finding]:
  """Plugins that do not fit jaxlib, the driver or NVIDIA's packages, and those that fail."""
  jaxlib = version_of("jaxlib") or "0"
  for cuda, version in plugins().items():
    plugin, pjrt = f"jax-cuda{cuda}-plugin", f"jax-cuda{cuda}-pjrt"
    for name, each in ((plugin, version), (pjrt, version_of(pjrt) or version)):
      if Version(each).release != Version(jaxlib).release:
        what = f"{name} is {each}, but jaxlib is {jaxlib}: JAX does not use it."
        yield mend(what, f"pip install {plugin}=={jaxlib} {pjrt}=={jaxlib}")
        break
    for required, have in unmet(plugin, "with-cuda"):
      if have and required.name.startswith("nvidia-"):
        asked = f"{required.name}{required.specifier}"
        what = f"{required.name} is {have}, but {plugin} asks for {asked}."
        yield mend(what, f"pip install '{asked}'")
    if not facts.has_driver(cuda):
      what = f"CUDA {cuda} needs driver {DRIVERS[cuda]} or later; this is {facts.driver}."
      newer = f"sudo apt-get install nvidia-driver-{DRIVERS[cuda]}"
      serves = cuda == 13 and facts.has_driver(12)
      yield mend(what, "pip install 'jaxspeed[cuda12]'" if serves else newer)
  for module, error in facts.failed_plugins.items():
    line = f"pip install --force-reinstall 'jaxspeed[{facts.extra}]'"
    if not module.startswith("xla_cuda"):
      line = f"python -c 'import jax_plugins.{module} as plugin; plugin.initialize()'"
    yield mend(f"JAX's plugin {module} failed: {error}", line)


def _unseen(facts: Facts) -> tuple[str, str]:
  """Why JAX does not see a GPU, as the end of a sentence, and the line to type."""
  platforms, visible = (os.environ.get(name) for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"))
  if platforms and platforms.split(",")[0] not in ("cuda", "gpu"):
    return f"JAX_PLATFORMS={platforms} hides it", "unset JAX_PLATFORMS"
  if visible in ("", "-1"):
    return f"CUDA_VISIBLE_DEVICES={visible} hides it", "unset CUDA_VISIBLE_DEVICES"
  if not plugins() and not facts.has_driver(12):
    old = f"its driver, {facts.driver}, is older than CUDA 12 needs"
    return old, f"sudo apt-get install nvidia-driver-{DRIVERS[13]}"
  if not plugins():
    return "no plugin for CUDA is installed", f"pip install 'jaxspeed[{facts.extra}]'"
  if not facts.driver:
    why = "no driver answers; in a container it comes from the host (docker run --gpus=all)"
    return why, "nvidia-smi"
  if os.environ.get("LD_LIBRARY_PATH"):
    why = "perhaps LD_LIBRARY_PATH names other libraries than the plugin's"
    return why, "unset LD_LIBRARY_PATH"
  return "this line prints why", "JAX_PLATFORMS=cuda python -c 'import jax; jax.devices()'"


def _gpus(facts: Facts) -> Iterator[Finding]:
  """GPUs that are too old for the plugin's CUDA, for its cuDNN, or for the recipe's dtype."""
  cudnn = version_of("nvidia-cudnn-cu12")
  for gpu in {gpu.name: gpu for gpu in facts.gpus if gpu.capability < AMPERE}.values():
    for cuda in plugins():
      if gpu.capability < CAPABILITIES[cuda]:
        least, own = (".".join(map(str, each)) for each in (CAPABILITIES[cuda], gpu.capability))
        what = f"CUDA {cuda} needs compute capability {least}; {gpu.name} has {own}."
        other = f"pip uninstall -y jax-cuda{cuda}-plugin jax-cuda{cuda}-pjrt"
        other += f" && pip install 'jaxspeed[{facts.extra}]'"
        no_jax = gpu.capability < CAPABILITIES[12]  # as a K80
        yield mend(what, "export JAX_PLATFORMS=cpu" if no_jax else other)
    if gpu.capability < TURING and cudnn and Version(cudnn) >= CUDNN_TURING:
      what = f"cuDNN {cudnn} has no kernels for {gpu.name}; 9.10.2 is the last that has."
      yield mend(what, "pip install 'nvidia-cudnn-cu12==9.10.2.21'")
    if facts.precision == "bfloat16":
      what = f"{gpu.name} has no bfloat16 in hardware; the recipe asks for it."
      yield mend(what, "--config.precision=float16")
