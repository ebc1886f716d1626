"""What a recipe takes on more devices, on paper: step, epoch, run, cost, input, memory.

  python -m jaxspeed.scaling --config=configs/imagenet_lars.py:81920 --devices=8,128,2048 \\
      --device=v100
  python -m jaxspeed.scaling --published      # the same arithmetic beside eight published runs

A step is compute and what of the gradient's all-reduces the backward pass does not hide:

  compute     launches + images a device * (side / 224)^2 / images_per_s, from a published rate of
              ResNet-50, or from a measured step: --step-ms is that of the first phase on the first
              number of --devices, without the exchange
  exchange    groups of layers (`allreduce.make_groups`), each begun where it stands in the
              compiled step (READY, LATE), one after the other; a ring or a hierarchy, whichever is
              shorter
  input       decoded images a second over what a core decodes; with --cores it bounds the step
  validation  a forward pass, a third of a training step: the backward pass has two products for
              each of its own

Not in it: what differs from step to step, waiting for the slowest of many hosts, loading files,
checkpoints, compilation. So it is rather a bound from below; results/scaling.json says by how much
against published runs.
"""

import dataclasses
import functools
import importlib.util
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config import fields as config_lib
from jaxspeed.devices import allreduce, precision
from jaxspeed.errors import UserError
from jaxspeed.planning.plan import Phase, Plan, make_plan
from jaxspeed.records.provenance import versions
from jaxspeed.records.writer import write_atomically
from jaxspeed.steps import spec as build
from jaxspeed.steps.losses import Sums

# Side in pixels at which rates are quoted.
_SIDE = 224
# About 870 to 1,000 kernels of a compiled step (results/allreduce_groups.json), and 5 us for each
# to be launched, which is assumed.
_LAUNCH_S = 1000 * 5e-6
_FORWARD = 1 / 3
# Of 224-pixel images by the forward pass of rectangles: 288 px ones have 1.37 times their square.
_RECTANGLES = 1.37
# Share of the line that NCCL moves: over TCP 41 of 100 Gbit/s (NVIDIA/nccl issue 209, two
# p3dn.24xlarge), over RDMA 600 of 800 (issue 495, RoCE).
TCP, RDMA = 0.41, 0.75
# Seconds a hop: 4 bytes over 32 hosts take 71 us in 10 hops of a tree (NVIDIA/nccl issue 652,
# InfiniBand). Of TCP no such figure was found; 50 us is assumed.
RDMA_HOP, TCP_HOP, LOCAL_HOP = 7e-6, 50e-6, 1e-6

# Share of a step's work (forward, backward, optimizer) before the gradients of the last layers, up
# to a share of all bytes, are sent: of the steps compiled for 2,048 described GPUs, groups of 4 MB
# (results/allreduce_groups.json): (share of bytes, share of work). XLA knows how long a collective
# takes on Hopper and later; for a V100 it puts them behind most of the backward pass.
Curve = tuple[tuple[float, float], ...]
READY: Curve = (
  (0.0, 0.316), (0.08, 0.318), (0.121, 0.326), (0.214, 0.333), (0.255, 0.339),
  (0.296, 0.347), (0.388, 0.354), (0.429, 0.361), (0.471, 0.371), (0.553, 0.377),
  (0.645, 0.384), (0.699, 0.411), (0.743, 0.433), (0.787, 0.456), (0.83, 0.479),
  (0.874, 0.501), (0.915, 0.524), (0.954, 0.576), (0.994, 0.746), (1.0, 0.886),
)  # fmt: skip

LATE: Curve = (
  (0.0, 0.643), (0.039, 0.767), (0.119, 0.784), (0.125, 0.805), (0.165, 0.819),
  (0.206, 0.829), (0.25, 0.838), (0.294, 0.848), (0.337, 0.858), (0.381, 0.868),
  (0.435, 0.88), (0.527, 0.885), (0.569, 0.888), (0.651, 0.893), (0.692, 0.895),
  (0.784, 0.901), (0.825, 0.904), (0.866, 0.906), (0.959, 0.912), (1.0, 0.919),
)  # fmt: skip

# Images a second of a core, by the copies that are read and the side from which on: ours
# (results/input.json, AMD EPYC).
INPUT = {
  "originals": {128: 916.0, 224: 729.0},
  "copies of 160 px": {128: 3469.0},
  "copies of 352 px": {224: 1091.0},
}


@dataclasses.dataclass(frozen=True)
class Device:
  """A kind of accelerator and the hosts that it usually stands in.

  Attributes:
    images_per_s: of ResNet-50 at 224 px in training, one device's part of a server of eight that
      is fed by a real pipeline, in half precision.
    batch: images a device at which that was taken.
    memory_gb: of one device.
    local_gb_s: bus bandwidth of an all-reduce inside a host, GB/s.
    network_gb_s: of a host's line, GB/s.
    share: of the line that is reached.
    price: USD a device and hour; 0: not stated.
    source: of the rates.
  """

  images_per_s: float
  batch: int
  memory_gb: float
  local_gb_s: float
  network_gb_s: float
  share: float
  price: float
  source: str


DEVICES = {
  "v100": Device(
    8322 / 8, 256, 32, 130, 3.125, TCP, 24.48 / 8,
    "NVIDIA DeepLearningExamples, PyTorch, AMP: 8,322 images/s of 8; p3.16xlarge, 25 Gbit/s",
  ),
  "a100": Device(
    16_621 / 8, 256, 80, 231, 50, RDMA, 0,
    "NVIDIA DeepLearningExamples, PyTorch, AMP: 16,621 images/s of 8; NVIDIA/nccl issue 527: "
    "231 GB/s inside, 400 Gbit/s between p4d.24xlarge",
  ),
  "h100": Device(
    2 * 16_621 / 8, 256, 80, 450, 400, RDMA, 0,
    "assumed twice the A100's (1.8 to 2.3 are named, none verified); 3,200 Gbit/s of p5.48xlarge",
  ),
  "titan_rtx": Device(
    0.55 / 0.71 * 8322 / 8, 256, 24, 10, 1.25, TCP, 0,
    "0.55 / 0.71 of a V100 in half precision (Lambda, 2080 Ti benchmarks); PCIe 3",
  ),
  "p40": Device(
    209, 64, 24, 10, 12.5, RDMA, 0,
    "a GTX 1080 Ti's in float32 (Lambda, 2080 Ti benchmarks): the same chip, no tensor cores",
  ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cluster:
  """Devices in hosts and what joins them.

  Attributes:
    images_per_s: as `Device`'s.
    launch_s: seconds of a step that do not depend on the batch.
    per_host: devices of a host.
    local_gb_s: bus bandwidth of an all-reduce inside a host, GB/s.
    network_gb_s: that a host's line reaches, GB/s.
    hop_s: latency from host to host, seconds.
    in_flight: all-reduces begun before the kernels wait for one; 0: none overlaps with kernels.
    ready: when gradients are sent.
    cores: of a host that decode; 0: enough.
    price: USD a device and hour; 0: not stated.
  """

  images_per_s: float
  launch_s: float = _LAUNCH_S
  per_host: int = 8
  local_gb_s: float = 130
  network_gb_s: float = 12.5
  hop_s: float = RDMA_HOP
  in_flight: int = 1
  ready: Curve = READY
  cores: float = 0
  price: float = 0


def cluster_of(device: Device, **fields: Any) -> Cluster:
  """Usual hosts of a device, with what differs from them."""
  usual = dict(
    images_per_s=large_batch_rate(device.images_per_s, device.batch),
    local_gb_s=device.local_gb_s,
    network_gb_s=device.share * device.network_gb_s,
    hop_s=RDMA_HOP if device.share == RDMA else TCP_HOP,
    price=device.price,
  )
  return Cluster(**(usual | fields))


def large_batch_rate(images_per_s: float, batch: int, launch_s: float = _LAUNCH_S) -> float:
  """Images a second without the launches, from those of a batch with them."""
  return batch / (batch / images_per_s - launch_s)


# The gradient


@dataclasses.dataclass(frozen=True)
class Exchange:
  """What devices send in a step.

  Attributes:
    tensors: bytes of each gradient, in the order in which the backward pass has them.
    rest: bytes of running statistics and sums.
  """

  tensors: tuple[int, ...]
  rest: int

  def groups(self, group_mb: float) -> list[tuple[float, float]]:
    """(share of the tensors' bytes up to its end, bytes) of each all-reduce.

    The rest, which the forward pass has, travels at its end: share 0.
    """
    total, before = sum(self.tensors), 0
    found = [(0.0, float(self.rest))]
    for group in allreduce.make_groups(self.tensors, group_mb * 1e6):
      size = sum(self.tensors[i] for i in group)
      before += size
      found.append((before / total, float(size)))
    return found


def exchange_of(config: ConfigDict) -> Exchange:
  """Bytes of a config's net, from its shapes; nothing is computed."""
  config = config.copy_and_resolve_references()
  config.precision = "float32"
  side = (*config.phases.image_size, config.data.image_size)[0]
  sizes, rest = _sizes(build.make_model(config), side)
  width = jnp.dtype(precision.DTYPES[config.allreduce.dtype]).itemsize
  return Exchange(tensors=tuple(width * size for size in sizes), rest=4 * rest)


@functools.cache
def _sizes(model: nn.Module, side: int) -> tuple[tuple[int, ...], int]:
  """Numbers in each gradient, in the order of the backward pass; in statistics and sums."""
  images = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
  shapes = jax.eval_shape(lambda x: model.init(jax.random.key(0), x, train=False), images)
  leaves = jax.tree.leaves(shapes["params"])
  rest = jax.tree.leaves((shapes["batch_stats"], jax.eval_shape(Sums.zero)))
  backward = reversed(allreduce.layer_order(model, side))
  return tuple(leaves[i].size for i in backward), sum(leaf.size for leaf in rest)


# Seconds


def ring_s(size: float, hosts: int, cluster: Cluster) -> float:
  """Seconds of one ring over all devices: 2 (n - 1) / n of the bytes pass each link.

  Patarasuk and Yuan 2009. Between hosts the ring uses the whole line once in each direction.
  """
  n = hosts * cluster.per_host
  if n == 1:
    return 0.0
  slowest = cluster.local_gb_s if hosts == 1 else min(cluster.local_gb_s, cluster.network_gb_s)
  crossings = hosts if hosts > 1 else 0
  latency = 2 * (n - 1) / n * (crossings * cluster.hop_s + (n - crossings) * LOCAL_HOP)
  return 2 * (n - 1) / n * size / (slowest * 1e9) + latency


def hierarchical_s(size: float, hosts: int, cluster: Cluster) -> float:
  """Seconds of a reduce-scatter in each host, an all-reduce between hosts, an all-gather in each.

  Jia et al. 2018 (1807.11205), Mikami et al. 2018 (1811.05233). Between hosts by a tree up and
  down: 2 log2(hosts) hops, on which every host's line carries the bytes once each way.
  """
  g = cluster.per_host
  local = 2 * (g - 1) / g * size / (cluster.local_gb_s * 1e9) + 2 * (g - 1) * LOCAL_HOP
  if hosts == 1:
    return local
  between = 2 * (hosts - 1) / hosts * size / (cluster.network_gb_s * 1e9)
  return local + between + 2 * math.ceil(math.log2(hosts)) * cluster.hop_s


def all_reduce_s(size: float, hosts: int, cluster: Cluster) -> float:
  """Seconds of an all-reduce of `size` bytes, by the shorter of both ways."""
  return min(ring_s(size, hosts, cluster), hierarchical_s(size, hosts, cluster))


def compute_s(images: float, side: int, cluster: Cluster) -> float:
  """Seconds of a training step of one device on `images` of `side` pixels, without exchange."""
  return cluster.launch_s + images * (side / _SIDE) ** 2 / cluster.images_per_s


def overlapped_s(compute: float, groups: Sequence[tuple[float, float]], *, in_flight: int) -> float:
  """Seconds of a step whose all-reduces run beside its kernels.

  Args:
    compute: seconds of the kernels alone.
    groups: of each all-reduce, in order, the share of the step's work before it and its seconds.
      What is left of the work after the last one's start is the optimizer's, which waits for all.
    in_flight: how many are under way before the kernels wait for the oldest; 0: all wait until
      the kernels are done.
  """
  if in_flight == 0:
    return compute + sum(seconds for _, seconds in groups)
  now, position = 0.0, 0.0
  ends: list[float] = []
  for share, seconds in groups:
    now += (share - position) * compute
    position = share
    if len(ends) >= in_flight:
      now = max(now, ends[-in_flight])
    ends.append(max(now, ends[-1] if ends else 0.0) + seconds)
  return max(now, *ends, 0.0) + (1 - position) * compute


def ready_at(share: float, curve: Curve) -> float:
  """Share of a step's work before that share of the gradient's bytes is sent."""
  bytes_of, work = zip(*curve, strict=True)
  return float(np.interp(share, bytes_of, work))


@dataclasses.dataclass(frozen=True)
class Step:
  """One phase's step on some number of devices; times in seconds.

  Attributes:
    images: of one device.
    exposed: of the exchange, what the kernels do not hide.
    exchange: of all all-reduces, one after the other.
    input_bound: whether decoding takes longer than the rest.
    cores: of each host that decode as fast as the step goes.
    memory_gb: of one device.
  """

  images: float
  seconds: float
  compute: float
  exposed: float
  exchange: float
  input_bound: bool
  cores: float
  memory_gb: float


def step_of(
  phase: Phase, devices: int, cluster: Cluster, exchange: Exchange, *, group_mb: float
) -> Step:
  """The step of a phase."""
  images = phase.batch_size / devices
  hosts, cluster = _hosts(devices, cluster)
  compute = compute_s(images, phase.image_size, cluster)
  groups = [
    (ready_at(share, cluster.ready), all_reduce_s(size, hosts, cluster))
    for share, size in (exchange.groups(group_mb) if devices > 1 else ())
  ]
  seconds = overlapped_s(compute, groups, in_flight=cluster.in_flight)
  rate = decoded_per_core(phase)
  decode = phase.batch_size / hosts / (cluster.cores * rate) if cluster.cores else 0.0
  exposed, seconds = seconds - compute, max(seconds, decode)
  return Step(
    images=images,
    seconds=seconds,
    compute=compute,
    exposed=exposed,
    exchange=sum(each for _, each in groups),
    input_bound=decode >= seconds,
    cores=phase.batch_size / hosts / seconds / rate,
    memory_gb=memory_gb(images, phase.image_size),
  )


def _hosts(devices: int, cluster: Cluster) -> tuple[int, Cluster]:
  """Hosts, and the cluster with as many devices in each as there are."""
  per_host = min(cluster.per_host, devices)
  if devices % per_host:
    raise UserError(
      f"--devices={devices} does not divide over hosts of {per_host}: set --per-host to a divisor."
    )
  return devices // per_host, dataclasses.replace(cluster, per_host=per_host)


def decoded_per_core(phase: Phase) -> float:
  """Images a second that a core decodes for a phase."""
  if not phase.copies:
    source = "originals"
  else:
    source = "copies of 160 px" if phase.copies <= 160 else "copies of 352 px"
  rates = INPUT[source]
  side = min(rates, key=lambda side: abs(side - phase.image_size))
  return rates[side]


def memory_gb(images: float, side: int) -> float:
  """Gigabytes of one device: parameters and momentum, and activations in proportion to pixels.

  Of the step compiled for described H100s, 40 images of 224 px in half precision
  (results/allreduce_groups.json): 0.21 GB and 1.8.
  """
  return 0.21 + 1.8 * images / 40 * (side / _SIDE) ** 2


def validation_s(phase: Phase, images: int, devices: int, cluster: Cluster) -> float:
  """Seconds in which all devices evaluate `images` as a phase does."""
  area = (phase.eval_size / _SIDE) ** 2 * (_RECTANGLES if "rect" in phase.eval_mode else 1)
  passes = 2 if "flip" in phase.eval_mode else 5 if phase.eval_mode == "five" else 1
  each = math.ceil(images / devices)
  return _FORWARD * cluster.launch_s + passes * _FORWARD * each * area / cluster.images_per_s


@dataclasses.dataclass(frozen=True)
class Prediction:
  """A run on some number of devices; times in seconds.

  Attributes:
    steps: of each phase.
    epochs: of each phase, seconds of one with its validation where there is one.
    training: without validation.
    cost: in USD; 0 where no price is stated.
  """

  devices: int
  steps: tuple[Step, ...]
  epochs: tuple[float, ...]
  training: float
  validation: float
  seconds: float
  cost: float


def predict(
  config: ConfigDict,
  plan: Plan,
  cluster: Cluster,
  exchange: Exchange,
  *,
  devices: int,
  epochs: int = 0,
) -> Prediction:
  """A run of a plan.

  Args:
    config: its groups and how often it evaluates.
    plan: phases, batches, steps.
    cluster: what the devices are.
    exchange: what they send.
    devices: how many.
    epochs: after which the target is reached; 0: all.
  """
  steps = tuple(
    step_of(phase, devices, cluster, exchange, group_mb=config.allreduce.group_mb)
    for phase in plan.phases
  )
  evaluation = [validation_s(phase, plan.eval_images, devices, cluster) for phase in plan.phases]
  training = validation = 0.0
  last = min(epochs or plan.epochs, plan.epochs)
  for epoch in range(last):
    number = plan.phases.index(plan.phase_of(plan.first_step_of(epoch)))
    training += plan.steps_in_epoch(epoch) * steps[number].seconds
    if (epoch + 1) % config.eval.every_epochs == 0 or epoch + 1 == last:
      validation += evaluation[number]
  seconds = training + validation
  return Prediction(
    devices=devices,
    steps=steps,
    epochs=tuple(
      phase.steps_per_epoch * step.seconds + each / config.eval.every_epochs
      for phase, step, each in zip(plan.phases, steps, evaluation, strict=True)
    ),
    training=training,
    validation=validation,
    seconds=seconds,
    cost=seconds / 3600 * devices * cluster.price,
  )


def fit_step(rows: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
  """Seconds of a step that no batch changes, and images a second of 224 px beyond them.

  Args:
    rows: (side, images a device, images a second of one device); least squares of the relative
      error of a step's time.
  """
  seconds = np.array([images / rate for _, images, rate in rows])
  terms = np.array([[1.0, images * (side / _SIDE) ** 2] for side, images, _ in rows])
  (fixed, each), *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(rows)), rcond=None)
  return float(fixed), float(1 / each)


# Published runs


@dataclasses.dataclass(frozen=True)
class Published:
  """A run whose time to its target is published.

  Attributes:
    recipe: file in configs/ and variant.
    changes: fields of the config that differ.
    epochs: until the target; of entries that number them from 0, the number and 1.
    seconds: published.
    why: of an error beyond 25 %, what the arithmetic leaves out.
  """

  name: str
  recipe: tuple[str, str]
  devices: int
  epochs: int
  seconds: float
  cluster: Cluster
  source: str
  changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  calibrated: Cluster | None = None
  why: str = ""


# (side, images a GPU, mean images/s a GPU) of imagenet18's 8 machines by phase: its
# dawn/logs/single_machine, which is a run of 64 V100s. Two numbers fit the four within 2 %, and the
# one that no batch changes is 118 ms: its exchange was not hidden.
_FASTAI = (
  (128, 128, 47.4e3 / 64),
  (128, 256, 70.2e3 / 64),
  (224, 224, 35e3 / 64),
  (288, 128, 20.1e3 / 64),
)


_OLD_CODE = (
  "By data sheets: the code of 2018 made 748 images/s of a V100 beside 118 ms a step that it did "
  "not hide, where 1,062 and an exchange under the backward pass are counted."
)


def fastai_cluster(**fields: Any) -> Cluster:
  """What imagenet18 made of p3.16xlarge: rate and network of its 8 machines, no overlap."""
  fixed, rate = fit_step(_FASTAI)
  # 8 hosts send 2 * 7 / 8 of 51.1 MB, the gradient in half precision, in what the launches leave.
  network = 2 * 7 / 8 * 0.0511 / (fixed - _LAUNCH_S)
  return cluster_of(DEVICES["v100"], images_per_s=rate, network_gb_s=network, in_flight=0, **fields)


def published_runs() -> tuple[Published, ...]:
  """The eight runs of the design, and one of another kind of GPU.

  Every cluster is that of the run by data sheets, its gradients sent as soon as they are there;
  `calibrated` is imagenet18's code as its 8 machines ran it. No run's own total time is used for
  it, of 8 machines its images/s.
  """
  v100, p40, titan = DEVICES["v100"], DEVICES["p40"], DEVICES["titan_rtx"]
  aws = cluster_of(v100, in_flight=8)
  dawnbench = "DAWNBench entry"
  # As many images a second of a TITAN RTX to a V100 as of Lambda's other benchmarks.
  slower = titan.images_per_s / v100.images_per_s
  fast = fastai_cluster()
  lambda_fast = cluster_of(titan, images_per_s=fast.images_per_s * slower, in_flight=0)
  # gn6e: 32 Gbit/s a host.
  alibaba = cluster_of(v100, network_gb_s=TCP * 4.0, in_flight=8, price=20.6 / 8)
  return (
    Published(
      "fast.ai, 4 machines", ("imagenet18.py", "4"), 32, 29, 0.49509 * 3600, aws, dawnbench,
      calibrated=fast, why=_OLD_CODE,
    ),
    Published(
      "fast.ai, 8 machines", ("imagenet18.py", "8"), 64, 30, 0.31472 * 3600, aws, dawnbench,
      calibrated=fast, why=_OLD_CODE,
    ),
    Published(
      "fast.ai, 16 machines", ("imagenet18.py", "16"), 128, 38, 0.30144 * 3600, aws, dawnbench,
      calibrated=fast,
      why=f"{_OLD_CODE} Calibrated it still lacks what 38 epochs take beside their steps: the log "
      "of 8 machines has 4 to 8 s each for validation and loaders that start anew, and 53 s more "
      "in the first epoch of rectangles, together about 250 of the 280 s that are missing.",
    ),
    Published(
      "Lambda, 8 TITAN RTX", ("imagenet18_lambda.py", "8"), 8, 27, 2.3657 * 3600,
      cluster_of(titan, in_flight=8), dawnbench, calibrated=lambda_fast,
      why="Eight of these cards in one server without NVLink do not run like eight times one: "
      "Lambda's own benchmark has 5.1 times for eight 2080 Ti, where the arithmetic takes the "
      "exchange alone, at PCIe's full rate, and counts nothing for the host.",
    ),
    Published(
      "Fujitsu, 2,048 V100", ("imagenet_lars.py", "81920"), 2048, 90, 74.7,
      # ABCI: 4 GPUs and two EDR lines of 12.5 GB/s a host.
      cluster_of(v100, per_host=4, network_gb_s=RDMA * 25, hop_s=RDMA_HOP, in_flight=8, price=0),
      "arXiv 1903.12650",
    ),
    Published(
      "Tencent, 2,048 P40", ("imagenet_lars.py", "65536"), 2048, 90, 6.6 * 60,
      # 8 GPUs and 100 Gbit/s a host are assumed.
      cluster_of(p40, in_flight=8), "arXiv 1807.11205", changes={"epochs": 90.0},
      why="No rate of a P40 is published: it has the 1080 Ti's chip and 346 of its 484 GB/s. Were "
      "its steps bound by memory, as ours compiled for newer GPUs are, the rate would be 149 "
      "images/s and the error -4 %. Epochs and batch are known, network and stack are not.",
    ),
    Published(
      "Alibaba, 1 machine", ("imagenet_21epochs.py", ""), 8, 21, 0.36046 * 3600, alibaba, dawnbench
    ),
    Published(
      "Alibaba, 16 machines", ("imagenet_21epochs.py", ""), 128, 28, 0.043764 * 3600, alibaba,
      dawnbench,
      changes={
        "epochs": 28.0,
        "batch_size": 32_768,
        "phases.first_epoch": (0, 13, 24, 27),
        "phases.batch_size": (32_768, 32_768, 32_768, 16_384),
        "schedule.pieces": ((0, 28, 1.0, 1.0),),
        "optimizer.momentum_pieces": (),
      },
    ),
    Published(
      "FFCV, 8 A100, 16 epochs", ("imagenet_ffcv.py", "16"), 8, 16, 14.9 * 60,
      cluster_of(DEVICES["a100"], in_flight=8), "libffcv/ffcv-imagenet",
    ),
  )  # fmt: skip


def recipe(file: str, variant: str) -> ConfigDict:
  """`get_config` of a file of this checkout's configs/."""
  path = pathlib.Path(__file__).parents[1] / "configs" / file
  spec = importlib.util.spec_from_file_location(path.stem, path)
  if not path.is_file() or spec is None or spec.loader is None:
    raise UserError(f"{path} is missing: --published needs a checkout with its configs.")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(*([variant] if variant else []))


def compare(run: Published) -> dict[str, Any]:
  """A published run beside its prediction, seconds."""
  config = recipe(*run.recipe)
  config.update_from_flattened_dict(dict(run.changes))
  config.allreduce.dtype = "float16"
  plan = make_plan(config, devices=run.devices)
  exchange = exchange_of(config)

  def seconds(cluster: Cluster) -> float:
    return predict(config, plan, cluster, exchange, devices=run.devices, epochs=run.epochs).seconds

  def row(cluster: Cluster) -> dict[str, float]:
    predicted = seconds(cluster)
    return {
      "predicted_s": round(predicted, 1),
      "error_percent": round(100 * (predicted / run.seconds - 1), 1),
    }

  found: dict[str, Any] = {
    "run": run.name,
    "devices": run.devices,
    "epochs": run.epochs,
    "published_s": round(run.seconds, 1),
    "source": run.source,
    "by_data_sheets": row(run.cluster),
  }
  if run.calibrated is not None:
    found["by_imagenet18_on_8_machines"] = row(run.calibrated)
  if run.why:
    found["why"] = run.why
  return found


def published_table() -> dict[str, Any]:
  """All published runs beside their predictions, as results/scaling.json holds them."""
  what = (
    "python -m jaxspeed.scaling --published: time to the target of published runs beside that of "
    "the arithmetic in jaxspeed/scaling.py, with validation. by_data_sheets: published images/s "
    "of the device in somebody else's code, lines by data sheet; by_imagenet18_on_8_machines: "
    "rate and network of imagenet18's code from the mean images/s by phase of its run on 8 "
    "machines, not from its total. Nothing was run for it. why: of errors beyond 25 %."
  )
  return {"what": what, "runs": [compare(run) for run in published_runs()]}


# The command


def describe(config: ConfigDict, plan: Plan, prediction: Prediction, device: Device) -> list[str]:
  """A prediction as lines of text."""
  lines = []
  for phase, step, epoch in zip(plan.phases, prediction.steps, prediction.epochs, strict=True):
    hidden = step.exchange - step.exposed
    bound = ", bound by its input" if step.input_bound else ""
    over = " (more than it has)" if step.memory_gb > device.memory_gb else ""
    lines.append(
      f"  epochs {phase.first_epoch + 1}-{phase.first_epoch + phase.epochs}, "
      f"{phase.image_size} px, {step.images:g} a device: step "
      f"{1e3 * step.seconds:.1f} ms{bound} (compute {1e3 * step.compute:.1f}, exchange "
      f"{1e3 * step.exchange:.1f} of which "
      f"{1e3 * hidden:.1f} hidden), {phase.batch_size / step.seconds:,.0f} images/s, "
      f"{step.cores:.3g} cores a host, {step.memory_gb:.1f} GB a device{over}; epoch {epoch:.1f} s"
    )
  cost = f", ${prediction.cost:,.2f}" if prediction.cost else ""
  lines.insert(
    0,
    f"{prediction.devices} devices: {_duration(prediction.seconds)}, of which validation "
    f"{_duration(prediction.validation)}{cost}",
  )
  return lines


def _duration(seconds: float) -> str:
  if seconds < 120:
    return f"{seconds:.1f} s"
  return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"


def describe_published(table: Mapping[str, Any]) -> list[str]:
  """The published runs as lines of text."""
  lines = [
    f"{'run':<26}{'published':>10}  {'by data sheets':>20}  {'calibrated on 8 machines':>26}"
  ]
  for row in table["runs"]:
    cells = []
    for name in ("by_data_sheets", "by_imagenet18_on_8_machines"):
      cell = row.get(name)
      cells.append(f"{cell['predicted_s']:.0f} s ({cell['error_percent']:+.0f} %)" if cell else "")
    lines.append(f"{row['run']:<26}{row['published_s']:>8.0f} s  {cells[0]:>20}  {cells[1]:>26}")
  return lines


def measured_rate(milliseconds: float, images: float, side: int) -> float:
  """Images of 224 px a second beyond the launches, from a measured step.

  Raises:
    UserError: the step is shorter than the launches that are counted.
  """
  if milliseconds / 1e3 <= _LAUNCH_S:
    raise UserError(
      f"--step-ms={milliseconds:g}: a step takes more than the {1e3 * _LAUNCH_S:g} ms that its "
      f"launches are counted with; measure a larger batch."
    )
  return images * (side / _SIDE) ** 2 / (milliseconds / 1e3 - _LAUNCH_S)


def _device_counts(flag: flags.FlagHolder) -> list[int]:
  if all(text.strip().isdecimal() and int(text) for text in flag.value) and flag.value:
    return [int(text) for text in flag.value]
  raise UserError(f"--devices={','.join(flag.value)}: give numbers, as in --devices=8,128,2048.")


def _cluster(plan: Plan, devices: int) -> Cluster:
  fields: dict[str, Any] = dict(
    per_host=_PER_HOST.value,
    in_flight=_IN_FLIGHT.value,
    ready=READY if _DEVICE.value == "h100" else LATE,
    cores=_CORES.value,
  )
  device = DEVICES[_DEVICE.value]
  if _STEP_MS.value:
    phase = plan.phases[0]
    fields["images_per_s"] = measured_rate(
      _STEP_MS.value, phase.batch_size / devices, phase.image_size
    )
  if _NETWORK.value:
    fields["network_gb_s"] = device.share * _NETWORK.value / 8
  if _LATENCY.value:
    fields["hop_s"] = _LATENCY.value * 1e-6
  if _PRICE.value:
    fields["price"] = _PRICE.value
  return cluster_of(device, **fields)


def _main(arguments: list[str]) -> None:
  config_lib.nothing_left(arguments)
  if _PUBLISHED.value:
    table = published_table()
    print("\n".join(describe_published(table)))
    if _OUT.value:
      text = json.dumps(table | {"versions": versions()}, indent=1)
      write_atomically(pathlib.Path(_OUT.value), text + "\n")
    return
  config = _CONFIG.value
  if config is None:
    raise UserError("--config=FILE.py names the recipe, or --published compares published runs.")
  counts, device = _device_counts(_DEVICES), DEVICES[_DEVICE.value]
  cluster = _cluster(make_plan(config, devices=counts[0]), counts[0])
  exchange = exchange_of(config)
  print(
    f"{config.name} on {_DEVICE.value}: {cluster.images_per_s:,.0f} images/s of 224 px a device, "
    f"{'measured' if _STEP_MS.value else device.source}"
  )
  groups = exchange.groups(config.allreduce.group_mb)
  print(
    f"a step sends {sum(size for _, size in groups) / 1e6:.1f} MB in {len(groups)} all-reduces; "
    f"{cluster.network_gb_s:.3g} GB/s a host, {cluster.local_gb_s:g} GB/s inside"
  )
  for devices in counts:
    plan = make_plan(config, devices=devices)
    prediction = predict(config, plan, cluster, exchange, devices=devices, epochs=_EPOCHS.value)
    print("\n".join(describe(config, plan, prediction, device)))


if __name__ == "__main__":
  _CONFIG = config_lib.define_config_flag()
  _DEVICES = flags.DEFINE_list("devices", ["8"], "How many devices, one number or several.")
  _DEVICE = flags.DEFINE_enum("device", "v100", list(DEVICES), "Their kind.")
  _STEP_MS = flags.DEFINE_float(
    "step-ms", 0.0, "A measured step of the first phase on the first number of --devices.", 0.0
  )
  _EPOCHS = flags.DEFINE_integer("epochs", 0, "At which the target is reached; 0: all.", 0)
  _PER_HOST = flags.DEFINE_integer("per-host", 8, "Devices of a host.", 1)
  _NETWORK = flags.DEFINE_float("network", 0.0, "A host's line in Gbit/s; 0: as usual.", 0.0)
  _LATENCY = flags.DEFINE_float("latency", 0.0, "From host to host in us; 0: as usual.", 0.0)
  _IN_FLIGHT = flags.DEFINE_integer("in-flight", 1, "All-reduces under way at a time.", 0)
  _CORES = flags.DEFINE_float("cores", 0.0, "Of a host that decode; 0: enough.", 0.0)
  _PRICE = flags.DEFINE_float("price", 0.0, "USD a device and hour; 0: as usual.", 0.0)
  _PUBLISHED = flags.DEFINE_bool("published", False, "Compares with published runs.")
  _OUT = flags.DEFINE_string("out", "", "With --published, a JSON file for the table.")
  config_lib.run(_main)
