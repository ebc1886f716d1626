"""Each rule on driver, CUDA, cuDNN, plugin and GPU, on made facts."""

import dataclasses

import pytest

from jaxspeed.doctor import fit, nvidia

V100 = nvidia.Gpu("Tesla V100-SXM2-16GB", (7, 0), "535.1", 16384.0, 10.0)
T4 = nvidia.Gpu("Tesla T4", (7, 5), "535.1", 15360.0, 10.0)
H100 = nvidia.Gpu("NVIDIA H100 80GB HBM3", (9, 0), "580.65", 81559.0, 4.0, 1980.0, 1980.0)
PIP = {
  "jaxlib": "0.10.2",
  "jax-cuda13-plugin": "0.10.2",
  "jax-cuda13-pjrt": "0.10.2",
  "nvidia-cudnn-cu13": "9.12.0",
}
GOOD = fit.Facts(
  nvidia=nvidia.Nvidia("", (H100,), "580.65.06", ("/dev/nvidia0",)),
  seen=fit.Seen("gpu", ("NVIDIA H100 80GB HBM3",)),
  packages=PIP,
  asked={13: {"nvidia-cudnn-cu13": ">=9.8,<10"}},
  environment={},
)
ON_CPU = dataclasses.replace(GOOD, seen=fit.Seen("cpu", ("cpu",)))


def volta(cudnn="9.10.2.21", **changes):
  packages = {
    "jaxlib": "0.10.2",
    "jax-cuda12-plugin": "0.10.2",
    "jax-cuda12-pjrt": "0.10.2",
    "nvidia-cudnn-cu12": cudnn,
  }
  seen = fit.Seen("gpu", ("Tesla V100-SXM2-16GB",))
  there = nvidia.Nvidia("", (V100,), "535.1", ("/dev/nvidia0",))
  facts = dataclasses.replace(GOOD, nvidia=there, seen=seen, packages=packages, asked={})
  return dataclasses.replace(facts, **changes)


def types(facts):
  return [advice.type for advice in fit.examine(facts).advice]


def test_a_good_machine_has_nothing_to_mend():
  part = fit.examine(GOOD)
  assert part.advice == []
  assert part.lines == [
    "JAX sees GPU: 1 x NVIDIA H100 80GB HBM3",
    "GPU 0: NVIDIA H100 80GB HBM3, compute capability 9.0, 85.5 GB of memory, 4.19 MB in "
    "use, bfloat16",
    "driver 580.65.06",
    "CUDA 13: jax-cuda13-plugin 0.10.2 for jaxlib 0.10.2, cuDNN 9.12.0",
  ]


def test_no_gpu_and_no_plugin_is_no_defect():
  facts = dataclasses.replace(
    ON_CPU, nvidia=nvidia.Nvidia("nvidia-smi is not installed here"), packages={"jaxlib": "0.10.2"}
  )
  part = fit.examine(facts)
  assert part.advice == [] and "no plugin for CUDA is installed" in part.lines


def test_a_v100_with_its_last_cudnn_is_fine_and_its_dtype_is_told():
  part = fit.examine(volta())
  assert part.advice == []
  assert "no bfloat16 in hardware" in part.lines[1]


@pytest.mark.parametrize("cudnn, fits", [("9.10.2.21", True), ("9.11.0.98", False), ("9.8", True)])
def test_volta_needs_a_cudnn_before_9_11(cudnn, fits):
  assert types(volta(cudnn)) == ([] if fits else ["pip install 'nvidia-cudnn-cu12==9.10.2.21'"])


def test_turing_takes_later_ones():
  there = nvidia.Nvidia("", (T4,), "535.1")
  assert types(volta("9.12", nvidia=there)) == []


def test_bfloat16_on_a_v100():
  assert types(volta(precision="bfloat16")) == ["--config.precision=float16"]
  assert types(volta(precision="auto")) == []
  assert types(dataclasses.replace(GOOD, precision="bfloat16")) == []


def test_cuda_13_has_no_volta():
  facts = volta(packages=PIP, nvidia=nvidia.Nvidia("", (V100,), "580.1"))
  (line,) = types(facts)
  assert line.startswith("pip uninstall -y jax-cuda13-plugin") and "jaxspeed[volta]" in line


@pytest.mark.parametrize(
  "driver, line",
  [
    ("580.65", None),
    ("570.124", "pip install 'jaxspeed[cuda12]'"),
    ("470.82", "sudo apt-get install nvidia-driver-580"),
  ],
)
def test_a_driver_is_as_new_as_cuda_asks(driver, line):
  facts = dataclasses.replace(GOOD, nvidia=nvidia.Nvidia("", (H100,), driver))
  assert types(facts) == ([line] if line else [])


def test_a_gpu_without_a_plugin():
  bare = {"jaxlib": "0.10.2"}
  facts = dataclasses.replace(ON_CPU, packages=bare)
  (advice,) = fit.examine(facts).advice
  assert advice.type == "pip install 'jaxspeed[cuda13]'"
  assert advice.what.startswith("There is an NVIDIA GPU, but JAX sees only the CPU")
  old = dataclasses.replace(facts, nvidia=nvidia.Nvidia("", (H100,), "470.82.01"))
  (advice,) = fit.examine(old).advice  # no extra fits it
  assert "CUDA 12 needs driver 525 or later; this is 470.82.01" in advice.what
  assert advice.type == "sudo apt-get install nvidia-driver-580"
  old = nvidia.Nvidia("", (H100,), "550.1")
  assert types(dataclasses.replace(facts, nvidia=old)) == ["pip install 'jaxspeed[cuda12]'"]
  older = nvidia.Nvidia("", (V100,), "550.1")
  assert types(dataclasses.replace(facts, nvidia=older)) == ["pip install 'jaxspeed[volta]'"]


def test_an_nvidia_smi_that_fails_without_a_gpu_is_a_hint():
  failed = nvidia.Nvidia("nvidia-smi ended with code 9: NVIDIA-SMI has failed")
  part = fit.examine(dataclasses.replace(ON_CPU, nvidia=failed, packages={"jaxlib": "0.10.2"}))
  (advice,) = part.advice
  assert not advice.mend and "its driver does not work" in advice.what


def test_a_gpu_that_only_dev_names():
  only = nvidia.Nvidia("nvidia-smi is not installed here", (), "535.1", ("/dev/nvidia0",))
  part = fit.examine(dataclasses.replace(ON_CPU, nvidia=only, packages={"jaxlib": "0.10.2"}))
  assert [each.type for each in part.advice] == ["pip install 'jaxspeed[cuda12]'"]
  assert "NVIDIA's GPUs by their files: /dev/nvidia0" in part.lines


@pytest.mark.parametrize(
  "environment, line",
  [
    ({"JAX_PLATFORMS": "cpu"}, "unset JAX_PLATFORMS"),
    ({"CUDA_VISIBLE_DEVICES": ""}, "unset CUDA_VISIBLE_DEVICES"),
    ({"CUDA_VISIBLE_DEVICES": "-1"}, "unset CUDA_VISIBLE_DEVICES"),
    ({"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}, "unset LD_LIBRARY_PATH"),
    ({}, "JAX_PLATFORMS=cuda python -c 'import jax; jax.devices()'"),
  ],
)
def test_what_hides_a_gpu_from_jax(environment, line):
  assert types(dataclasses.replace(ON_CPU, environment=environment)) == [line]


K80 = nvidia.Gpu("Tesla K80", (3, 7), "470.82", 11441.0, 10.0)


def test_a_gpu_that_is_too_old_for_jax():
  alone = nvidia.Nvidia("", (K80,), "470.82", ("/dev/nvidia0",))
  facts = dataclasses.replace(ON_CPU, nvidia=alone)
  part = fit.examine(facts)
  assert part.lines[1].endswith("too old for JAX")
  (advice,) = part.advice  # neither another driver nor the extra volta helps
  assert advice.mend and advice.type == "export JAX_PLATFORMS=cpu"
  assert advice.what == ("JAX cannot use GPU 0 (Tesla K80, 3.7): it needs compute capability 5.2.")
  for changes in ({"environment": {"JAX_PLATFORMS": "cpu"}}, {"packages": {"jaxlib": "0.10.2"}}):
    (advice,) = fit.examine(dataclasses.replace(facts, **changes)).advice
    assert not advice.mend  # JAX does not try it
  beside = dataclasses.replace(GOOD, nvidia=nvidia.Nvidia("", (K80, H100), "580.1"))
  assert types(beside) == ["export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1"]
  maxwell = dataclasses.replace(K80, name="GTX 970", capability=(5, 2))
  assert types(volta(nvidia=nvidia.Nvidia("", (maxwell,), "535.1"))) == []


def test_a_gpu_without_a_driver():
  there = nvidia.Nvidia("nvidia-smi is not installed here", (), "", ("/dev/nvidia0",))
  (advice,) = fit.examine(dataclasses.replace(ON_CPU, nvidia=there)).advice
  assert "--gpus=all" in advice.what and advice.type == "nvidia-smi"


@pytest.mark.parametrize("name", ["plugin", "pjrt"])
def test_a_plugin_of_another_version_than_jaxlib(name):
  packages = PIP | {f"jax-cuda13-{name}": "0.9.1"}
  (advice,) = fit.examine(dataclasses.replace(GOOD, packages=packages)).advice
  assert advice.what.startswith(f"jax-cuda13-{name} is 0.9.1, but jaxlib is 0.10.2")
  assert advice.type == "pip install jax-cuda13-plugin==0.10.2 jax-cuda13-pjrt==0.10.2"


def test_a_cudnn_that_the_plugin_does_not_take():
  packages = PIP | {"nvidia-cudnn-cu13": "9.5.1"}
  assert types(dataclasses.replace(GOOD, packages=packages)) == [
    "pip install 'nvidia-cudnn-cu13>=9.8,<10'"
  ]


def test_a_plugin_that_fails():
  seen = fit.Seen("cpu", ("cpu",), complaints=("Exception when calling initialize: boom",))
  alone = nvidia.Nvidia("nvidia-smi is not installed here")
  (advice,) = fit.examine(dataclasses.replace(GOOD, seen=seen, nvidia=alone)).advice
  assert advice.what == "A plugin of JAX failed: Exception when calling initialize: boom"
  assert advice.type == "pip install --force-reinstall 'jaxspeed[cuda13]'"


def test_a_broken_plugin_that_is_not_cuda_s_is_not_mended_by_cuda_s():
  alone = nvidia.Nvidia("nvidia-smi is not installed here")
  for module, begin in (
    ("jax_plugins.own", "python -c 'import jax_plugins.own as plugin"),
    ("jax_plugins.xla_cuda13", "pip install --force-reinstall 'jaxspeed[cuda13]'"),
  ):
    said = f"Plugin module {module} could not be loaded: ImportError: x"
    problem = f"its plugin {module} fails (SyntaxError: x)"
    for seen in (
      fit.Seen("cpu", ("cpu",), complaints=(said,), broken={said: module}),
      fit.Seen("", problem=problem, broken={problem: module}),
    ):
      (advice,) = fit.examine(dataclasses.replace(GOOD, seen=seen, nvidia=alone)).advice
      assert module in advice.what and advice.type.startswith(begin)


def test_no_device_at_all():
  none = nvidia.Nvidia("nvidia-smi is not installed here")
  facts = dataclasses.replace(GOOD, nvidia=none, seen=fit.Seen("", problem="no backend"))
  assert types(facts) == ["pip install -U jax jaxlib"]
  named = dataclasses.replace(facts, environment={"JAX_PLATFORMS": "cuda"})
  assert types(named) == ["unset JAX_PLATFORMS"]
  late = dataclasses.replace(facts, seen=fit.Seen("", problem="no device in 10 s", late=True))
  assert types(late) == ["JAX_PLATFORMS=cpu python -m jaxspeed.doctor"]


def test_clocks_and_their_reasons():
  hot = dataclasses.replace(H100, clock_mhz=1200.0, celsius=88.0, watts=650.0, most_watts=700.0)
  part = fit.clocks([hot, H100], [0x4 | 0x40, 0x1], "", nvidia.REASONS)
  assert part.lines[0] == (
    "GPU 0 during the measurement: 1200 of 1980 MHz, 88 C, 650 of 700 W: power limit, hardware's "
    "thermal limit"
  )
  (advice,) = part.advice
  assert advice.type == "nvidia-smi -q -d PERFORMANCE" and advice.mend
  assert advice.what == "GPU 0 runs slower: power limit, hardware's thermal limit."
  # A power limit is how GPUs work under load.
  assert fit.clocks([H100], [0x4], "", nvidia.REASONS).advice == []
  assert fit.clocks([H100], [0x0], "", nvidia.REASONS).lines[-1] == "no GPU is throttled"
  unasked = fit.clocks([hot], [0x0], "", nvidia.REASONS, under_load=False)
  assert unasked.lines[0].startswith("GPU 0 without load from here: 1200 of 1980 MHz")
  unknown = fit.clocks([], [], "nvidia-smi did not answer", nvidia.REASONS)
  assert unknown.lines == ["clock throttling: unknown, nvidia-smi did not answer"]


def test_gpus_with_the_same_reasons_are_one_line_and_idle_ones_are_a_hint():
  hot = dataclasses.replace(H100, clock_mhz=345.0)
  (one,) = fit.clocks([hot] * 8, [0x40] * 8, "", nvidia.REASONS).advice
  assert one.mend and one.what == (
    "GPUs 0, 1, 2, 3, 4, 5, 6 and 7 run slower: hardware's thermal limit."
  )
  # JAX measures one GPU of a kind; the others of this machine are idle.
  part = fit.clocks([hot] * 3, [0x40, 0x41, 0x41], "", nvidia.REASONS)
  assert part.lines[1] == "GPU 1 idle: 345 of 1980 MHz: hardware's thermal limit"
  assert [(each.mend, each.what.partition(":")[0]) for each in part.advice] == [
    (True, "GPU 0 runs slower"),
    (False, "GPUs 1 and 2 run slower"),
  ]
  # JAX measured the CPU.
  (hint,) = fit.clocks([hot], [0x8], "", nvidia.REASONS, under_load=False).advice
  assert not hint.mend and hint.what.endswith("though nothing here was measured on it.")
  assert fit.clocks([hot], [0x1], "", nvidia.REASONS, under_load=False).advice == []
