"""Agreement of all processes of a run on what follows a step: continue, save or stop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxspeed.cluster.signals import RunAction
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import compile_program
from jaxspeed.devices.mesh import AXIS


class Agreement:
  """Asks all processes what follows a step; the answer is the largest action.

  A separate all-reduce of four bytes after the step's carries the action. It is read some steps
  later, like the losses, so that no process waits for it.

  Args:
    mesh: the run's mesh.
  """

  def __init__(self, mesh: Mesh) -> None:
    self._mesh = mesh
    self._several = len({device.process_index for device in mesh.devices.flat}) > 1
    if self._several:
      largest = jax.shard_map(
        functools.partial(lax.pmax, axis_name=AXIS), mesh=mesh, in_specs=P(AXIS), out_specs=P()
      )
      array = jax.ShapeDtypeStruct((mesh.size,), jnp.int32, sharding=mesh_lib.sharded(mesh))
      self._program = compile_program(largest, (array,))

  def ask(self, action: RunAction) -> jax.Array | RunAction:
    """Asks without waiting; `read` waits for the answer. All processes ask after the same steps."""
    if not self._several:
      return action
    own = np.full(len(self._mesh.local_devices), action, np.int32)
    return self._program.call(mesh_lib.split(own, self._mesh))

  @staticmethod
  def read(answer: jax.Array | RunAction) -> RunAction:
    """Waits for the answer and returns it."""
    return RunAction(int(np.max(np.asarray(answer))))
