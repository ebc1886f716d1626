"""Devices, hosts and networks, with published rates and one that was measured here."""

import dataclasses
from typing import Any

# Image side in pixels to which rates refer.
REFERENCE_SIDE = 224
# Seconds to launch the 870 to 1,000 kernels of a compiled step (results/allreduce_groups.json), at
# an assumed 5 us each.
LAUNCH_S = 1000 * 5e-6
# Share of the network bandwidth that NCCL reaches: 41 of 100 Gbit/s over TCP (NVIDIA/nccl issue
# 209, two p3dn.24xlarge), 600 of 800 over RDMA (issue 495, RoCE).
TCP, RDMA = 0.41, 0.75
# Seconds per hop: 4 bytes over 32 hosts take 71 us in 10 hops of a tree (NVIDIA/nccl issue 652,
# InfiniBand). For TCP no such figure was found; 50 us is assumed.
RDMA_HOP, TCP_HOP, LOCAL_HOP = 7e-6, 50e-6, 1e-6
# (share of bytes, share of work): the share of a step's work (forward, backward, optimizer) before
# this share of the gradient's bytes is sent, last layers first. From steps compiled for 2,048
# GPUs, without the devices, with groups of 4 MB (results/allreduce_groups.json). XLA knows the time
# of a collective only on Hopper and later; for a V100 it puts collectives after most of the
# backward pass.
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
# Images/s that one core decodes, by source and image side: the rate without antialiasing
# (results/input.json, AMD EPYC), divided by the slowdown of antialiasing (results/antialias.json).
INPUT = {
  "originals": {128: 916 / 1.25, 224: 729 / 1.256},
  "copies of 160 px": {128: 3469 / 1.265},
  "copies of 352 px": {224: 1091 / 1.305},
}


@dataclasses.dataclass(frozen=True)
class Device:
  """A kind of accelerator and its usual hosts.

  Attributes:
    images_per_s: one device's share of the images/s of a server of eight that trains ResNet-50 at
      224 px in half precision from a real input pipeline, unless `source` says otherwise.
    batch: images per device in that measurement.
    memory_gb: memory of one device.
    tflops: data sheet's matrix products in half precision, dense, 1e12 operations per second; in
      float32 for a P40, which has no fast half precision.
    memory_gb_s: data sheet's memory bandwidth.
    local_gb_s: bus bandwidth of an all-reduce inside a host, GB/s.
    network_gb_s: network bandwidth of a host, GB/s.
    share: share of the network bandwidth that is reached.
    price: USD per device and hour; 0: not stated.
    source: source of the rates.
  """

  images_per_s: float
  batch: int
  memory_gb: float
  tflops: float
  memory_gb_s: float
  local_gb_s: float
  network_gb_s: float
  share: float
  price: float
  source: str


# GB of memory, TFLOP/s in bfloat16, GB/s of memory, GB/s from a chip to all its neighbours, half
# of what both directions have; of 256 v5e or v6e these are the all-reduce bandwidth of the pod.
# Source: docs.cloud.google.com/tpu/docs/v4, v5e, v5p and v6e.
TPUS = {
  "v4": (32, 275, 1200, 300),
  "v5e": (16, 197, 819, 200),
  "v5p": (95, 459, 2765, 600),
  "v6e": (32, 918, 1638, 400),
}
DEVICES = {
  "v100": Device(
    8322 / 8, 256, 32, 125, 900, 130, 3.125, TCP, 24.48 / 8,
    "NVIDIA DeepLearningExamples, PyTorch, AMP: 8,322 images/s of 8; p3.16xlarge, 25 Gbit/s",
  ),
  "a100": Device(
    16_621 / 8, 256, 80, 312, 2039, 231, 50, RDMA, 0,
    "NVIDIA DeepLearningExamples, PyTorch, AMP: 16,621 images/s of 8; NVIDIA/nccl issue 527: "
    "231 GB/s inside, 400 Gbit/s between p4d.24xlarge",
  ),
  "h100": Device(
    256 / 29.2e-3 * 3350 / 4800, 256, 80, 989, 3350, 450, 400, RDMA, 0,
    "an H200's times 3,350 / 4,800, the data sheets' memory bandwidths, which bind a step; "
    "3,200 Gbit/s of p5.48xlarge",
  ),
  "h200": Device(
    256 / 29.2e-3, 256, 141, 989, 4800, 450, 400, RDMA, 0,
    "this package's step of 256 images on one H200 under the profiler, 29.2 ms "
    "(results/gpu_day/profile_resnet50.json), without input; networks as an H100's",
  ),
  **{
    f"tpu_{kind}": Device(
      16_621 / 8 * bandwidth / 2039, 256, memory, tflops, bandwidth, ici, 8 * ici, RDMA, 0,
      f"the A100's times {bandwidth:,} / 2,039, the memory bandwidths: a bound by memory, not a "
      f"measurement; links between chips of {ici} GB/s each way, also between hosts",
    )
    for kind, (memory, tflops, bandwidth, ici) in TPUS.items()
  },
  "titan_rtx": Device(
    0.55 / 0.71 * 8322 / 8, 256, 24, 130, 672, 10, 1.25, TCP, 0,
    "0.55 / 0.71 of a V100 in half precision (Lambda, 2080 Ti benchmarks); PCIe 3",
  ),
  "p40": Device(
    209, 64, 24, 12, 346, 10, 12.5, RDMA, 0,
    "a GTX 1080 Ti's in float32 (Lambda, 2080 Ti benchmarks): the same chip, no tensor cores",
  ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cluster:
  """Devices in hosts, and the networks that connect them.

  Attributes:
    images_per_s: images/s of one device at 224 px, without `launch_s`.
    launch_s: seconds of a step that do not depend on the batch.
    per_host: devices per host.
    local_gb_s: bus bandwidth of an all-reduce inside a host, GB/s.
    network_gb_s: network bandwidth that a host reaches, GB/s.
    hop_s: latency from host to host, seconds.
    in_flight: all-reduces in flight before the kernels wait for one; 0: none overlaps with kernels.
    ready: share of a step's work before gradients are sent.
    cores: decoding cores per host; 0: enough.
    price: USD per device and hour; 0: not stated.
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
  """Return the usual cluster of a device, with `fields` replaced."""
  usual = dict(
    images_per_s=large_batch_rate(device.images_per_s, device.batch),
    local_gb_s=device.local_gb_s,
    network_gb_s=device.share * device.network_gb_s,
    hop_s=RDMA_HOP if device.share == RDMA else TCP_HOP,
    price=device.price,
  )
  return Cluster(**(usual | fields))


def large_batch_rate(images_per_s: float, batch: int, launch_s: float = LAUNCH_S) -> float:
  """Return images/s without the launches, from the images/s of a batch with them."""
  return batch / (batch / images_per_s - launch_s)
