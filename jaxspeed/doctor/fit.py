"""Whether driver, CUDA, cuDNN and JAX's plugin fit each other and the GPU: rules on facts.

Sources: JAX's installation guide (driver 525 for CUDA 12, 580 for CUDA 13; compute capability 5.2
and 7.5), cuDNN's support matrix (9.11 and later need 7.5), `jaxlib.plugin_support` (a plugin of
another version than jaxlib is not used).
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence

from jaxspeed.doctor.nvidia import IDLE, SLOWING, Gpu, Nvidia
from jaxspeed.doctor.part import Advice, Part, amount
from jaxspeed.doctor.software import numbers, satisfies

DRIVERS = {12: (525,), 13: (580,)}
CAPABILITIES = {12: (5, 2), 13: (7, 5)}
# The first cuDNN without kernels for GPUs before Turing, such as the V100.
CUDNN_TURING = (9, 11)
TURING, AMPERE = (7, 5), (8, 0)
# Older GPUs, such as the K80 with 3.7, have no current JAX.
_LEAST = min(CAPABILITIES.values())
_CUDNN = {12: "nvidia-cudnn-cu12", 13: "nvidia-cudnn-cu13"}


@dataclasses.dataclass(frozen=True)
class Seen:
  """What JAX sees.

  Attributes:
    platform: "gpu", "cpu", ...; "" if JAX found no device.
    kinds: the kind of each device.
    problem: why JAX found no device, or did not answer; "" if it did.
    complaints: what JAX said of its plugins while it looked.
    late: whether it did not answer in time.
    broken: the plugin's module that a complaint, or the problem, is about, where that is known.
    variable: the variable of the environment that keeps JAX from starting; "" without one.
  """

  platform: str
  kinds: tuple[str, ...] = ()
  problem: str = ""
  complaints: tuple[str, ...] = ()
  late: bool = False
  broken: Mapping[str, str] = dataclasses.field(default_factory=dict)
  variable: str = ""


@dataclasses.dataclass(frozen=True)
class Facts:
  """All that the rules need.

  Attributes:
    packages: versions of packages (`software.installed`).
    asked: the versions that each plugin for CUDA asks of NVIDIA's packages, by the plugin's CUDA.
    environment: the environment's variables.
    precision: the precision of a recipe that is asked about; "" without one.
  """

  nvidia: Nvidia
  seen: Seen
  packages: Mapping[str, str]
  asked: Mapping[int, Mapping[str, str]]
  environment: Mapping[str, str]
  precision: str = ""

  @property
  def plugins(self) -> dict[int, str]:
    """The version of each installed plugin, by its CUDA."""
    names = {cuda: f"jax-cuda{cuda}-plugin" for cuda in (12, 13)}
    return {cuda: self.packages[name] for cuda, name in names.items() if name in self.packages}


def examine(facts: Facts) -> Part:
  """Lines on devices, driver, CUDA and cuDNN, and what to mend."""
  seen, nvidia = facts.seen, facts.nvidia
  lines = [_devices_line(seen)]
  lines += [_gpu_line(number, gpu) for number, gpu in enumerate(nvidia.gpus)]
  if nvidia.smi:
    lines.append(nvidia.smi)
  if not nvidia.present:
    lines.append(
      "no NVIDIA GPU: neither nvidia-smi nor /dev, /proc/driver/nvidia or /sys names one"
    )
  elif not nvidia.gpus:
    lines.append(f"NVIDIA's GPUs by their files: {', '.join(nvidia.nodes[:8])}")
  if nvidia.driver:
    lines.append(f"driver {nvidia.driver}")
  lines += [_plugin_line(facts, cuda) for cuda in facts.plugins]
  if not facts.plugins:
    lines.append("no plugin for CUDA is installed")
  rest = _without_old(facts)
  advice = [*_too_old(facts), *_plugins(rest), *_unseen(rest), *_volta(rest), *_drivers(rest)]
  known = {
    "platform": seen.platform,
    "devices": list(seen.kinds),
    "problem": seen.problem,
    "complaints": list(seen.complaints),
    "broken_plugins": sorted(set(seen.broken.values())),
    "nvidia_smi": nvidia.smi or "ok",
    "gpus": [dataclasses.asdict(gpu) | {"capability": list(gpu.capability)} for gpu in nvidia.gpus],
    "device_files": list(nvidia.nodes),
    "driver": nvidia.driver,
    "plugins": {str(cuda): version for cuda, version in facts.plugins.items()},
  }
  return Part("devices", lines, known, advice)


def _devices_line(seen: Seen) -> str:
  if seen.problem:
    return f"JAX: {seen.problem}"
  kinds = dict.fromkeys(seen.kinds)
  named = ", ".join(f"{seen.kinds.count(kind)} x {kind}" for kind in kinds)
  return f"JAX sees {seen.platform.upper()}: {named}"


def _gpu_line(number: int, gpu: Gpu) -> str:
  memory = f"{amount(gpu.memory_mib * 2**20)} of memory" if gpu.memory_mib else "memory unknown"
  used = f", {amount(gpu.used_mib * 2**20)} in use" if gpu.used_mib is not None else ""
  if not gpu.capability:
    return f"GPU {number}: {gpu.name}, {memory}{used}"
  half = "bfloat16" if gpu.capability >= AMPERE else "float16; no bfloat16 in hardware"
  half = "too old for JAX" if _is_old(gpu) else half
  return f"GPU {number}: {gpu.name}, compute capability {_dotted(gpu)}, {memory}{used}, {half}"


def _plugin_line(facts: Facts, cuda: int) -> str:
  cudnn = facts.packages.get(_CUDNN[cuda])
  return (
    f"CUDA {cuda}: jax-cuda{cuda}-plugin {facts.plugins[cuda]} for jaxlib "
    f"{facts.packages.get('jaxlib', 'missing')}, cuDNN {cudnn or 'not from pip'}"
  )


def _dotted(gpu: Gpu) -> str:
  return ".".join(map(str, gpu.capability))


def _is_old(gpu: Gpu) -> bool:
  """Whether no current JAX can use a GPU."""
  return bool(gpu.capability) and gpu.capability < _LEAST


def _without_old(facts: Facts) -> Facts:
  """The facts as if GPUs that are too old for JAX were not there, nor a driver for them alone."""
  gpus = tuple(gpu for gpu in facts.nvidia.gpus if not _is_old(gpu))
  if facts.nvidia.gpus and not gpus:
    return dataclasses.replace(facts, nvidia=Nvidia(facts.nvidia.smi))
  return dataclasses.replace(facts, nvidia=dataclasses.replace(facts.nvidia, gpus=gpus))


def _too_old(facts: Facts) -> list[Advice]:
  """GPUs that no current JAX can use, and how to keep it from trying."""
  gpus, environment = list(enumerate(facts.nvidia.gpus)), facts.environment
  old = [f"GPU {number} ({gpu.name}, {_dotted(gpu)})" for number, gpu in gpus if _is_old(gpu)]
  if not old:
    return []
  what = (
    f"JAX cannot use {', '.join(old)}: it needs compute capability {'.'.join(map(str, _LEAST))}."
  )
  others = ",".join(str(number) for number, gpu in gpus if not _is_old(gpu))
  hidden = environment.get("JAX_PLATFORMS") == "cpu" or "CUDA_VISIBLE_DEVICES" in environment
  # CUDA counts the fastest GPU first, nvidia-smi by the bus.
  line = f"export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={others}"
  fix = line if others else "export JAX_PLATFORMS=cpu"
  return [Advice(what, fix, mend=bool(facts.plugins) and not hidden)]


def extra_for(nvidia: Nvidia) -> str:
  """The extra of jaxspeed that fits the GPUs and the driver: volta, cuda12 or cuda13."""
  oldest = min((gpu.capability for gpu in nvidia.gpus if gpu.capability), default=())
  if oldest and oldest < TURING:
    return "volta"
  driver = numbers(nvidia.driver)
  return "cuda13" if not driver or driver >= DRIVERS[13] else "cuda12"


def _plugins(facts: Facts) -> list[Advice]:
  """A plugin of another version than jaxlib, and packages that it does not fit."""
  jaxlib, found = facts.packages.get("jaxlib", ""), []
  for cuda, version in facts.plugins.items():
    both = f"jax-cuda{cuda}-plugin=={jaxlib} jax-cuda{cuda}-pjrt=={jaxlib}"
    pjrt = facts.packages.get(f"jax-cuda{cuda}-pjrt", version)
    for name, each in (("plugin", version), ("pjrt", pjrt)):
      if numbers(each) != numbers(jaxlib):
        what = f"jax-cuda{cuda}-{name} is {each}, but jaxlib is {jaxlib}: JAX does not use it."
        found.append(Advice(what, f"pip install {both}"))
        break
    for name, asked in facts.asked.get(cuda, {}).items():
      have = facts.packages.get(name)
      if have and name.startswith("nvidia-") and not satisfies(have, asked):
        what = f"{name} is {have}, but jax-cuda{cuda}-plugin {version} asks for {asked}."
        found.append(Advice(what, f"pip install '{name}{asked}'"))
  for complaint in facts.seen.complaints:
    if not found:
      found.append(Advice(f"A plugin of JAX failed: {complaint}", _repair(facts, complaint)))
  return found


def _repair(facts: Facts, sentence: str) -> str:
  """The line to type for a plugin that failed: CUDA's is installed anew, another one says why."""
  module = facts.seen.broken.get(sentence, "")
  if module and not module.startswith("jax_plugins.xla_cuda"):
    return f"python -c {shlex.quote(f'import {module} as plugin; plugin.initialize()')}"
  return f"pip install --force-reinstall 'jaxspeed[{extra_for(facts.nvidia)}]'"


def _unseen(facts: Facts) -> list[Advice]:
  """A GPU that is there while JAX does not see it, or no device at all."""
  seen, environment = facts.seen, facts.environment
  named = environment.get("JAX_PLATFORMS", "")
  if seen.late:
    what = f"JAX hangs or the machine is busy: {seen.problem}; this one examines the CPU."
    return [Advice(what, "JAX_PLATFORMS=cpu python -m jaxspeed.doctor")]
  if seen.variable:
    return [Advice(f"JAX has no device: {seen.problem}.", f"unset {seen.variable}")]
  if seen.problem in seen.broken:
    return [Advice(f"JAX has no device: {seen.problem}", _repair(facts, seen.problem))]
  if seen.problem and not facts.nvidia.present:
    fix = "unset JAX_PLATFORMS" if named else "pip install -U jax jaxlib"
    return [Advice(f"JAX has no device: {seen.problem}", fix)]
  silent = facts.nvidia.smi and "is not installed" not in facts.nvidia.smi
  if not facts.nvidia.present and silent and seen.platform not in ("gpu", "cuda"):
    what = f"{facts.nvidia.smi}: if this machine has an NVIDIA GPU, its driver does not work."
    return [Advice(what, "nvidia-smi", mend=False)]
  if not facts.nvidia.present or seen.platform in ("gpu", "cuda"):
    return []
  what = "There is an NVIDIA GPU, but JAX " + (
    "found no device" if seen.problem else f"sees only the {seen.platform.upper()}"
  )
  if named and named.split(",")[0] not in ("cuda", "gpu"):
    return [Advice(f"{what}: JAX_PLATFORMS={named} hides it.", "unset JAX_PLATFORMS")]
  if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
    hidden = f"CUDA_VISIBLE_DEVICES={environment['CUDA_VISIBLE_DEVICES']}"
    return [Advice(f"{what}: {hidden} hides it.", "unset CUDA_VISIBLE_DEVICES")]
  if not facts.plugins:
    driver = numbers(facts.nvidia.driver)
    if driver and driver < DRIVERS[12]:
      old = f"CUDA 12 needs driver {DRIVERS[12][0]} or later; this is {facts.nvidia.driver}"
      line = f"sudo apt-get install nvidia-driver-{DRIVERS[13][0]}"
      return [Advice(f"{what}: no plugin for CUDA is installed, and {old}.", line)]
    line = f"pip install 'jaxspeed[{extra_for(facts.nvidia)}]'"
    return [Advice(f"{what}: no plugin for CUDA is installed.", line)]
  if not facts.nvidia.driver:
    what += ": no driver answers, and in a container it comes from the host"
    return [Advice(f"{what} (docker run --gpus=all).", "nvidia-smi")]
  libraries = "LD_LIBRARY_PATH names other libraries than the plugin's"
  if environment.get("LD_LIBRARY_PATH"):
    return [Advice(f"{what}: perhaps {libraries}.", "unset LD_LIBRARY_PATH")]
  verbose = "JAX_PLATFORMS=cuda python -c 'import jax; jax.devices()'"
  return [Advice(f"{what}; this line prints why.", verbose)]


def _volta(facts: Facts) -> list[Advice]:
  """GPUs that are too old for the plugin's CUDA, for its cuDNN, or for the recipe's dtype."""
  found = []
  olds = {gpu.name: gpu for gpu in facts.nvidia.gpus if gpu.capability and gpu.capability < AMPERE}
  for gpu in olds.values():
    fixed = f"pip install 'jaxspeed[{extra_for(Nvidia('', (gpu,), facts.nvidia.driver))}]'"
    for cuda in facts.plugins:
      if gpu.capability < CAPABILITIES[cuda]:
        least = ".".join(map(str, CAPABILITIES[cuda]))
        what = f"CUDA {cuda} needs compute capability {least}; {gpu.name} has {_dotted(gpu)}."
        removed = f"pip uninstall -y jax-cuda{cuda}-plugin jax-cuda{cuda}-pjrt && {fixed}"
        found.append(Advice(what, removed))
    cudnn = facts.packages.get(_CUDNN[12], "")
    if gpu.capability < TURING and cudnn and numbers(cudnn) >= CUDNN_TURING:
      what = f"cuDNN {cudnn} has no kernels for {gpu.name}; 9.10.2 is the last that has."
      found.append(Advice(what, "pip install 'nvidia-cudnn-cu12==9.10.2.21'"))
    if facts.precision == "bfloat16":
      what = f"{gpu.name} has no bfloat16 in hardware; the recipe asks for it."
      found.append(Advice(what, "--config.precision=float16"))
  return found


def _drivers(facts: Facts) -> list[Advice]:
  """A driver that is too old for the plugin's CUDA."""
  driver = numbers(facts.nvidia.driver)
  found = []
  for cuda in facts.plugins:
    if driver and driver < DRIVERS[cuda]:
      what = f"CUDA {cuda} needs driver {DRIVERS[cuda][0]} or later; this is {facts.nvidia.driver}."
      if cuda == 13 and driver >= DRIVERS[12]:
        found.append(Advice(what, "pip install 'jaxspeed[cuda12]'"))
      else:
        found.append(Advice(what, f"sudo apt-get install nvidia-driver-{DRIVERS[cuda][0]}"))
  return found


def clocks(
  gpus: Sequence[Gpu],
  reasons: Sequence[int],
  problem: str,
  names: Mapping[int, str],
  *,
  under_load: bool = True,
) -> Part:
  """Clocks under the load of the measurement beside the highest, and why they are lower.

  Only a GPU that works can be slow: an idle one always lowers its clocks, so what holds it back is
  a hint.

  Args:
    gpus: the GPUs, asked during the measurement.
    reasons: each GPU's bits.
    problem: why they are unknown; "" if they are known.
    names: the meaning of each bit.
    under_load: whether JAX worked on a GPU meanwhile; else they were idle, as far as is known.
  """
  lines: list[str] = []
  slow: dict[tuple[bool, str], list[int]] = {}
  for number, gpu in enumerate(gpus):
    bits = reasons[number] if number < len(reasons) else 0
    works = under_load and not bits & IDLE
    when = (
      "during the measurement" if works else "idle" if bits & IDLE else "without load from here"
    )
    why = ", ".join(text for bit, text in names.items() if bits & bit)
    heat = f", {gpu.celsius:.0f} C" if gpu.celsius is not None else ""
    power = f", {gpu.watts:.0f} of {gpu.most_watts:.0f} W" if gpu.watts and gpu.most_watts else ""
    if gpu.clock_mhz and gpu.most_mhz:
      lines.append(
        f"GPU {number} {when}: {gpu.clock_mhz:.0f} of {gpu.most_mhz:.0f} MHz"
        f"{heat}{power}{f': {why}' if why else ''}"
      )
    if bits & SLOWING:
      slow.setdefault((works, why), []).append(number)
  if problem:
    lines.append(f"clock throttling: unknown, {problem}")
  elif reasons and not any(bits & ~IDLE for bits in reasons):
    lines.append("no GPU is throttled")
  advice = [_slow(numbers, why, works) for (works, why), numbers in slow.items()]
  return Part("clocks", lines, {"reasons": list(reasons), "problem": problem}, advice)


def _slow(numbers: Sequence[int], why: str, works: bool) -> Advice:
  """The advice on GPUs that the same reasons hold back."""
  named = " and ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))
  what = (
    f"GPU {named} runs slower: {why}." if len(numbers) == 1 else f"GPUs {named} run slower: {why}."
  )
  if not works:
    what = what.removesuffix(".") + ", though nothing here was measured on "
    what += "it." if len(numbers) == 1 else "them."
  return Advice(what, "nvidia-smi -q -d PERFORMANCE", mend=works)
