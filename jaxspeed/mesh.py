"""The one axis of data parallelism: the mesh, and arrays from the host to all of its devices."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "data"


def make_mesh(devices: int = 0) -> Mesh:
  """The first `devices` devices (0: all) on the axis "data"; one device is a mesh of one."""
  chosen = jax.devices()[: devices or None]
  return jax.make_mesh(
    (len(chosen),), (AXIS,), devices=chosen, axis_types=(jax.sharding.AxisType.Auto,)
  )


def replicated(mesh: Mesh) -> NamedSharding:
  """The whole array on every device."""
  return NamedSharding(mesh, P())


def sharded(mesh: Mesh) -> NamedSharding:
  """The leading dimension split over the devices."""
  return NamedSharding(mesh, P(AXIS))


def replicate(tree: Any, mesh: Mesh) -> Any:
  """Host arrays, whole on every device."""
  return jax.device_put(tree, replicated(mesh))


def shard(tree: Any, mesh: Mesh) -> Any:
  """Host arrays, their leading dimension (a multiple of the devices) split over the devices."""
  return jax.device_put(tree, sharded(mesh))


def to_host(tree: Any) -> Any:
  """NumPy arrays of replicated device arrays; waits for the device."""
  return jax.tree.map(np.asarray, tree)


def abstract(tree: Any, sharding: NamedSharding) -> Any:
  """Shapes and dtypes with a sharding, as ahead-of-time compilation wants them.

  Without the real sharding the first call would compile a second time.
  """
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)
