"""Parts of a day on a GPU (`gpu_day.py`): what each runs, in order of value, and what it needs.

The minutes are estimates for an H100 with an empty cache: no GPU has confirmed them.
"""

import dataclasses

_CIFAR = ("--runs=10", "--cold_starts=1")
_TOY_CIFAR = (
  "--config=configs/quickstart.py",
  "--config.data.name=cifar10",
  "--config.model.width=2",
  "--config.model.whiten=False",
  "--config.batch_size=20",
  "--config.average.kind=none",
  "--config.epochs=1",
  "--config.target=0",
  "--runs=2",
  "--cold_starts=1",
)
_TOY_RESNET = (
  "--sizes=32",
  "--batches=8",
  "--depth=18",
  "--width=2",
  "--precision=float32",
  "--mode=eager",
  "--turns=2",
  "--turn_seconds=0.01",
)
_TOY_STEP = ("--config=configs/quickstart.py", "--config.model.width=4", "--batch_size=16")
_IMAGENET = ("--config=configs/imagenet18.py:1", "--image_size=224", "--batch_size=256")
# XLA's own choice in jax 0.11.2, which leaves convolutions and loops out. An option replaces it.
_BUFFER = "--option=xla_gpu_enable_command_buffer="
_USUAL = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL"
_BUFFERS = (_BUFFER, f"{_BUFFER}{_USUAL},CONVOLUTION", f"{_BUFFER}{_USUAL},CONVOLUTION,WHILE")


# With it, XLA's schedule of several GPUs leaves no all-reduce without kernels beside it.
_NO_ESTIMATOR = "--option=xla_gpu_enable_analytical_sol_latency_estimator=false"


@dataclasses.dataclass(frozen=True)
class Part:
  """One measurement: a script with its arguments.

  Attributes:
    name: names its files.
    title: says what it measures.
    script: a file in scripts/, which writes JSON to --out.
    arguments: of the script.
    toy: the arguments in a dry run; None: left out there, since another part takes the same path.
    least: minutes; with less left it is not begun.
    most: minutes after which it is cut off.
    trains: whether it takes a data set in --config.data.path, and peers in --peer.
    torch: whether it compares with PyTorch by --frameworks.
    devices: fewest devices.
  """

  name: str
  title: str
  script: str
  arguments: tuple[str, ...]
  least: float
  most: float
  toy: tuple[str, ...] | None = None
  trains: bool = False
  torch: bool = False
  devices: int = 1


def _resnet(
  size: int, toy: tuple[str, ...] | None = None, *, mode: str = "default", most: float = 3.5
) -> Part:
  arguments = (f"--sizes={size}", "--batches=256", f"--mode={mode}")
  name = f"resnet50_{size}" if mode == "default" else f"resnet50_{size}_{mode.replace('-', '_')}"
  title = f"ResNet-50's step at {size} px beside torch.compile, mode {mode}"
  return Part(name, title, "bench_resnet50.py", arguments, most - 2, most, toy, torch=True)


def _runs(name: str, recipe: str, toy: tuple[str, ...] | None = None) -> Part:
  title = f"whole runs and start-up of {recipe}"
  arguments = (f"--config=configs/{recipe}", *_CIFAR)
  return Part(name, title, "bench_cifar.py", arguments, 2, 5, toy, trains=True)


def _profile(name: str, config: tuple[str, ...], toy: tuple[str, ...] | None = None) -> Part:
  title = f"a step of {config[0].rpartition('/')[2]} by class of kernel"
  return Part(name, title, "profile_step.py", (*config, "--steps=20"), 0.75, 2, toy)


def _options(
  name: str,
  config: tuple[str, ...],
  options: tuple[str, ...],
  toy: tuple[str, ...] | None = None,
  *,
  devices: int = 1,
) -> Part:
  title = f"a step of {config[0].rpartition('/')[2]} and its options ({name.partition('_')[0]})"
  arguments = (*config, "--steps=20", *options)
  return Part(name, title, "bench_options.py", arguments, 1.5, 3, toy, devices=devices)


_CIFAR10 = ("--config=configs/cifar10.py",)
PARTS = (
  # What README's table lacks: at most 15 minutes.
  _runs("cifar10", "cifar10.py", _TOY_CIFAR),
  _runs("cifar10_muon", "cifar10_airbench.py:94_muon"),
  _runs("cifar10_flip_tta", "cifar10_resnet9.py:flip_tta"),
  _resnet(224, _TOY_RESNET),
  _profile("profile_cifar10", _CIFAR10, (*_TOY_STEP, "--steps=2", "--top=3")),
  _profile("profile_resnet50", _IMAGENET),
  Part(
    "allreduce",
    "all-reduces between the devices, by size",
    "bench_allreduce.py",
    (),
    0.5,
    1,
    ("--megabytes=0.1,1", "--turns=2"),
    devices=2,
  ),
  _options("overlap_resnet50", _IMAGENET[:2], (_NO_ESTIMATOR,), devices=2),
  _resnet(224, mode="max-autotune", most=8),
  _options(
    "buffers_cifar10",
    _CIFAR10,
    _BUFFERS,
    (
      *(*_TOY_STEP, "--turns=2", "--turn_seconds=0.01", _BUFFER),
      *("--option=xla_no_such=1", "--option=config.deterministic=True"),
    ),
  ),
  _options("buffers_resnet50", _IMAGENET, _BUFFERS),
  _options("fusion_resnet50", _IMAGENET, ("--option=config.conv_fusion=on",)),
  _resnet(128),
  _resnet(288),
  _profile("profile_muon", ("--config=configs/cifar10_airbench.py:94_muon",)),
  _resnet(160),
  _resnet(192),
)
