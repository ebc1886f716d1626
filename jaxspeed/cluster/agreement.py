"""What all processes of a run do after the same step, whoever of them wanted it."""

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

  The number travels in an all-reduce of its own, four bytes behind the step's, and is read some
  steps later like the losses are, so that no process waits for it.

  Args:
    mesh: of the run.
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
    """What `read` makes the answer of; to be asked after the same steps in all processes."""
    if not self._several:
      return action
    own = np.full(len(self._mesh.local_devices), action, np.int32)
    return self._program.call(mesh_lib.split(own, self._mesh))

  @staticmethod
  def read(answer: jax.Array | RunAction) -> RunAction:
    """Waits for an answer."""
    return RunAction(int(np.max(np.asarray(answer))))
