"""Devices, their hosts and what joins them, with published rates."""

import dataclasses
from typing import Any

# Side in pixels at which rates are quoted.
REFERENCE_SIDE = 224
# About 870 to 1,000 kernels of a compiled step (results/allreduce_groups.json), and 5 us for each
# to be launched, which is assumed.
LAUNCH_S = 1000 * 5e-6
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
# Images a second of a core, by the copies that are read and the side from which on: without
# antialiasing (results/input.json, AMD EPYC), over the times that antialiasing takes as long
# (results/antialias.json).
INPUT = {
  "originals": {128: 916 / 1.25, 224: 729 / 1.256},
  "copies of 160 px": {128: 3469 / 1.265},
  "copies of 352 px": {224: 1091 / 1.305},
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
  launch_s: float = LAUNCH_S
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


def large_batch_rate(images_per_s: float, batch: int, launch_s: float = LAUNCH_S) -> float:
  """Images a second without the launches, from those of a batch with them."""
  return batch / (batch / images_per_s - launch_s)
