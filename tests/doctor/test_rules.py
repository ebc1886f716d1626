"""Each rule on driver, CUDA, cuDNN, plugin and GPU, on made facts."""

import dataclasses

import pytest
from packaging.requirements import Requirement

from jaxspeed.doctor import rules
from jaxspeed.doctor.rules import Facts, Gpu

V100 = Gpu("Tesla V100-SXM2-16GB", (7, 0))
T4 = Gpu("Tesla T4", (7, 5))
H100 = Gpu("NVIDIA H100 80GB HBM3", (9, 0))
K80 = Gpu("Tesla K80", (3, 7))
CUDA_13 = {name: "0.10.2" for name in ("jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt")}
CUDA_12 = {name: "0.10.2" for name in ("jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt")}
BARE = {"jaxlib": "0.10.2"}
GOOD = Facts(gpus=(H100,), driver="580.65.06", files=("/dev/nvidia0",), platform="gpu")
ON_CPU = dataclasses.replace(GOOD, platform="cpu")
OLD = dataclasses.replace(GOOD, gpus=(V100,), driver="535.1")
NOTHING = Facts(platform="cpu")
AGAIN = "pip install --force-reinstall 'jaxspeed[cuda13]'"


def but(facts, **changes):
  return dataclasses.replace(facts, **changes)


def gpus(*there, driver="580.1"):
  return but(GOOD, gpus=there, driver=driver)


@pytest.fixture(autouse=True)
def packages(monkeypatch):
  """A function that sets the installed packages, and the environment's variables."""
  for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "XLA_FLAGS"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr(rules, "unmet", lambda *_: ())

  def install(there, **environment):
    monkeypatch.setattr(rules, "version_of", lambda name: there.get(name, ""))
    for name, value in environment.items():
      monkeypatch.setenv(name, value)

  return install


@pytest.mark.parametrize(
  "there, facts",
  [
    (CUDA_13, GOOD),
    (BARE, NOTHING),
    (BARE, Facts(platform="tpu", tpu=True)),
    (CUDA_13, NOTHING),
    (CUDA_12 | {"nvidia-cudnn-cu12": "9.10.2.21"}, OLD),
    (CUDA_12 | {"nvidia-cudnn-cu12": "9.12"}, gpus(T4, driver="535.1")),
    (CUDA_12, but(OLD, precision="auto")),
    (CUDA_13, but(GOOD, precision="bfloat16")),
    (CUDA_12, gpus(Gpu("GTX 970", (5, 2)), driver="535.1")),
  ],
)
def test_a_machine_whose_parts_fit_has_nothing_to_mend(packages, there, facts):
  packages(there)
  assert [*rules.broken(facts)] == []


@pytest.mark.parametrize(
  "there, facts, words, line",
  [
    (
      CUDA_12 | {"nvidia-cudnn-cu12": "9.11.0.98"}, OLD,
      "cuDNN 9.11.0.98 has no kernels", "pip install 'nvidia-cudnn-cu12==9.10.2.21'",
    ),
    (CUDA_12, but(OLD, precision="bfloat16"), "no bfloat16", "--config.precision=float16"),
    (
      CUDA_13, gpus(V100), "CUDA 13 needs compute capability 7.5",
      "pip uninstall -y jax-cuda13-plugin jax-cuda13-pjrt && pip install 'jaxspeed[volta]'",
    ),
    (CUDA_12, gpus(K80), "needs compute capability 5.2", "export JAX_PLATFORMS=cpu"),
    (CUDA_13, gpus(H100, driver="570.124"), "driver 580", "pip install 'jaxspeed[cuda12]'"),
    (BARE, but(NOTHING, tpu=True), "There is a TPU", "pip install 'jaxspeed[tpu]'"),
    (BARE, ON_CPU, "JAX sees only the CPU: no plugin", "pip install 'jaxspeed[cuda13]'"),
    (BARE, but(OLD, platform="cpu"), "no plugin", "pip install 'jaxspeed[volta]'"),
    (
      BARE, but(ON_CPU, driver="470.82.01"), "its driver, 470.82.01, is older",
      "sudo apt-get install nvidia-driver-580",
    ),
    (CUDA_13, but(ON_CPU, gpus=(), driver=""), "--gpus=all", "nvidia-smi"),
    (
      CUDA_13, ON_CPU, "JAX sees only the CPU",
      "JAX_PLATFORMS=cuda python -c 'import jax; jax.devices()'",
    ),
    (
      CUDA_13 | {"jax-cuda13-pjrt": "0.9.1"}, GOOD,
      "jax-cuda13-pjrt is 0.9.1, but jaxlib is 0.10.2",
      "pip install jax-cuda13-plugin==0.10.2 jax-cuda13-pjrt==0.10.2",
    ),
    (CUDA_13, but(NOTHING, failed_plugins={"xla_cuda13": "x"}), "failed: x", AGAIN),
    (
      CUDA_13, but(NOTHING, problem="x", failed_plugins={"own": "x"}), "own failed: x",
      "python -c 'import jax_plugins.own as plugin; plugin.initialize()'",
    ),
    (BARE, Facts(problem="no backend"), "no backend", "pip install -U jax jaxlib"),
    (
      CUDA_13, but(GOOD, platform="", problem="none within 30 s", hangs=True), "JAX hangs",
      "JAX_PLATFORMS=cpu python -m jaxspeed.doctor",
    ),
  ],
)  # fmt: skip
def test_what_does_not_fit_is_to_mend(packages, there, facts, words, line):
  packages(there)
  (found,) = rules.broken(facts)
  assert (found.level, found.advice) == ("mend", line) and words in found.what


@pytest.mark.parametrize(
  "facts, name, value",
  [
    (ON_CPU, "JAX_PLATFORMS", "cpu"),
    (ON_CPU, "CUDA_VISIBLE_DEVICES", "-1"),
    (ON_CPU, "LD_LIBRARY_PATH", "/usr/local/cuda/lib64"),
    (Facts(problem="JAX_PLATFORMS=cuda asks for more"), "JAX_PLATFORMS", "cuda"),
    (Facts(problem="Unknown flag in XLA_FLAGS: --xla_nope"), "XLA_FLAGS", "--xla_nope"),
  ],
)
def test_a_variable_that_hides_a_gpu_is_named(packages, facts, name, value):
  packages(CUDA_13, **{name: value})
  (found,) = rules.broken(facts)
  assert found.advice == f"unset {name}" and name in found.what


def test_a_package_that_the_plugin_does_not_take(packages, monkeypatch):
  packages(CUDA_13)
  asked = Requirement("nvidia-cudnn-cu13>=9.8,<10")
  missing = Requirement("nvidia-nccl-cu13>=2")  # CUDA of the system, not from pip
  monkeypatch.setattr(rules, "unmet", lambda *_: ((asked, "9.5.1"), (missing, "")))
  (found,) = rules.broken(GOOD)
  assert found.advice == "pip install 'nvidia-cudnn-cu13<10,>=9.8'"
