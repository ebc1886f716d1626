"""Bytes that devices send in a step, and the time this takes beside the kernels."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from jaxspeed.config.registry import AnyModel
from jaxspeed.devices import allreduce, precision
from jaxspeed.models.make import make_model
from jaxspeed.scaling.hardware import LOCAL_HOP, Cluster, Curve
from jaxspeed.steps.losses import MetricSums


@dataclasses.dataclass(frozen=True)
class Exchange:
  """The data that devices all-reduce in a step.

  Attributes:
    tensors: the bytes of each gradient, in the order of the backward pass.
    rest: the bytes of running statistics and sums.
  """

  tensors: tuple[int, ...]
  rest: int

  def groups(self, group_mb: float) -> list[tuple[float, float]]:
    """Return (cumulative share of the tensors' bytes, bytes) of each all-reduce.

    `rest` is sent at the end of the forward pass, with share 0.
    """
    total, before = sum(self.tensors), 0
    found = [(0.0, float(self.rest))]
    for group in allreduce.make_groups(self.tensors, group_mb * 1e6):
      size = sum(self.tensors[i] for i in group)
      before += size
      found.append((before / total, float(size)))
    return found


def exchange_of(config: ConfigDict) -> Exchange:
  """Return the bytes that a config sends, from the shapes of its model; nothing is computed."""
  config = config.copy_and_resolve_references()
  config.precision = "float32"
  side = (*config.phases.image_size, config.data.image_size)[0]
  sizes, rest = _sizes(make_model(config), side)
  width = jnp.dtype(precision.DTYPES[config.allreduce.dtype]).itemsize
  return Exchange(tensors=tuple(width * size for size in sizes), rest=4 * rest)


@functools.cache
def _sizes(model: AnyModel, side: int) -> tuple[tuple[int, ...], int]:
  """Count the elements of each gradient, in backward order, and of statistics and sums."""
  images = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
  shapes = jax.eval_shape(lambda x: model.init(jax.random.key(0), x, train=False), images)
  leaves = jax.tree.leaves(shapes["params"])
  rest = jax.tree.leaves((shapes.get("batch_stats", {}), jax.eval_shape(MetricSums.zero)))
  backward = reversed(allreduce.layer_order(model.init, side))
  return tuple(leaves[i].size for i in backward), sum(leaf.size for leaf in rest)


def ring_s(size: float, hosts: int, cluster: Cluster) -> float:
  """Return the seconds of one ring over all devices: each link carries 2 (n - 1) / n of the bytes.

  Source: Patarasuk and Yuan 2009. Between hosts the ring uses the full bandwidth once in each
  direction.
  """
  n = hosts * cluster.per_host
  if n == 1:
    return 0.0
  slowest = cluster.local_gb_s if hosts == 1 else min(cluster.local_gb_s, cluster.network_gb_s)
  crossings = hosts if hosts > 1 else 0
  latency = 2 * (n - 1) / n * (crossings * cluster.hop_s + (n - crossings) * LOCAL_HOP)
  return 2 * (n - 1) / n * size / (slowest * 1e9) + latency


def hierarchical_s(size: float, hosts: int, cluster: Cluster) -> float:
  """Return the seconds of reduce-scatter in hosts, all-reduce between hosts, all-gather in hosts.

  Sources: Jia et al. 2018 (1807.11205), Mikami et al. 2018 (1811.05233). Hosts form a tree, up and
  down: 2 log2(hosts) hops, and each host sends and receives the bytes once each way.
  """
  g = cluster.per_host
  local = 2 * (g - 1) / g * size / (cluster.local_gb_s * 1e9) + 2 * (g - 1) * LOCAL_HOP
  if hosts == 1:
    return local
  between = 2 * (hosts - 1) / hosts * size / (cluster.network_gb_s * 1e9)
  return local + between + 2 * math.ceil(math.log2(hosts)) * cluster.hop_s


def all_reduce_s(size: float, hosts: int, cluster: Cluster) -> float:
  """Return the seconds of an all-reduce of `size` bytes, by the faster of both methods."""
  return min(ring_s(size, hosts, cluster), hierarchical_s(size, hosts, cluster))


def overlapped_s(compute: float, groups: Sequence[tuple[float, float]], *, in_flight: int) -> float:
  """Return the seconds of a step whose all-reduces run beside its kernels.

  Args:
    compute: the seconds of the kernels alone.
    groups: the share of the step's work before each all-reduce, and its seconds, in order. The work
      after the last one's start is the optimizer's, which waits for all of them.
    in_flight: the most all-reduces in flight before the kernels wait for the oldest; 0: all
      all-reduces start after the kernels.
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
  """Return the share of a step's work done before this share of the gradient's bytes is sent."""
  bytes_of, work = zip(*curve, strict=True)
  return float(np.interp(share, bytes_of, work))
