"""Parts of a day on a GPU (`gpu_day.py`): what each runs, in order of value, and what it needs.

On an H200 (November 2026, jax 0.11.2) whole runs with their starts took 1.1 to 1.7 minutes and
profiles 0.4 to 0.5; a peer of max-autotune warmed up in 3.8, and ResNet-50 beside torch.compile was
not ready after 2.1. The other minutes are estimates.
"""

import dataclasses

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
)
_TOY_RESNET = (
  "--size=32",
  "--batch=8",
  "--depth=18",
  "--width=2",
  "--precision=float32",
  "--mode=eager",
  "--turns=2",
  "--turn_seconds=0.01",
)
_TOY_STEP = ("--config=configs/quickstart.py", "--config.model.width=4", "--batch_size=16")
_TOY_TURNS = ("--turns=2", "--turn_seconds=0.01")
_CIFAR10 = ("--config=configs/cifar10.py",)
_MUON = ("--config=configs/cifar10_airbench.py:94_muon",)
_FLIP_TTA = ("--config=configs/cifar10_resnet9.py:flip_tta",)
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
    least: minutes; with less left it is not begun.
    most: minutes after which it is cut off.
    toy: the arguments in a dry run; None: left out there, since another part takes the same path.
    trains: whether it takes a data set in --config.data.path.
    peers: whether it takes PyTorch scripts in --peer.
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
  peers: bool = False
  torch: bool = False
  devices: int = 1


def _runs(name: str, config: tuple[str, ...], least: float, most: float, **more: object) -> Part:
  title = f"whole runs and start-up of {config[0].rpartition('/')[2]}"
  arguments = (*config, "--runs=10", "--cold_starts=1")
  return Part(name, title, "bench_cifar.py", arguments, least, most, trains=True, **more)


def _profile(name: str, config: tuple[str, ...], toy: tuple[str, ...] | None = None) -> Part:
  title = f"a step of {config[0].rpartition('/')[2]} by class of kernel"
  return Part(name, title, "profile_step.py", (*config, "--steps=20"), 0.75, 2, toy)


def _resnet(
  name: str,
  arguments: tuple[str, ...],
  least: float,
  most: float,
  toy: tuple[str, ...] | None = None,
) -> Part:
  title = f"ResNet-50's step beside torch.compile, {' '.join(arguments)}"
  return Part(name, title, "bench_resnet50.py", arguments, least, most, toy, torch=True)


def _options(name: str, config: tuple[str, ...], options: tuple[str, ...], **more: object) -> Part:
  title = f"a step of {config[0].rpartition('/')[2]} and its options ({name.partition('_')[0]})"
  arguments = (*config, "--steps=20", *options)
  return Part(name, title, "bench_options.py", arguments, 1.5, 3, **more)


PARTS = (
  # Our own figures, so that a short lease has them all.
  _runs("cifar10", _CIFAR10, 1.5, 4, toy=(*_TOY_CIFAR, "--cold_starts=1")),
  _runs("cifar10_muon", _MUON, 2, 5),
  _runs("cifar10_flip_tta", _FLIP_TTA, 2, 6),
  _profile("profile_cifar10", _CIFAR10, (*_TOY_STEP, "--steps=2", "--top=3")),
  _profile("profile_resnet50", _IMAGENET),
  Part(
    "cifar10_peers",
    "runs of cifar10.py beside PyTorch's, peer after peer",
    "bench_cifar.py",
    (*_CIFAR10, "--runs=10", "--cold_starts=0"),
    6,
    15,
    (*_TOY_CIFAR, "--cold_starts=0"),
    trains=True,
    peers=True,
  ),
  _resnet("resnet50_224", ("--size=224",), 3, 6, _TOY_RESNET),
  _options("overlap_resnet50", _IMAGENET[:2], (_NO_ESTIMATOR,), devices=2),
  _resnet("resnet50_224_max_autotune", ("--size=224", "--mode=max-autotune"), 6, 10),
  _options(
    "buffers_cifar10",
    _CIFAR10,
    _BUFFERS,
    toy=(
      *(*_TOY_STEP, *_TOY_TURNS, _BUFFER),
      *("--option=xla_no_such=1", "--option=config.deterministic=True"),
    ),
  ),
  _options("buffers_resnet50", _IMAGENET, _BUFFERS),
  _options("fusion_resnet50", _IMAGENET, ("--option=config.conv_fusion=on",)),
  _profile("profile_muon", _MUON),
  _resnet("resnet50_sizes", tuple(f"--size={side}" for side in (128, 288, 160, 192)), 3, 15),
)
