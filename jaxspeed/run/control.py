"""The control of a run: what may end it early (a signal, another process, a later start)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxspeed.cluster import processes
from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.cluster.signals import RunAction, Signals
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import Program, compile_program


class RunControl:
  """Decides, together with all processes, what follows a step: continue, save, or stop.

  The largest action that any of them asks for wins. It travels in an all-reduce of four bytes after
  the step's, which is read some steps later, like the losses, so that no process waits for it.

  Attributes:
    lock: the lock of the run's folder; None except in process 0.
    decided: what all processes have decided since the last checkpoint.
  """

  def __init__(self, signals: Signals, lock: FolderLock | None, mesh: Mesh) -> None:
    self._signals, self.lock, self._mesh = signals, lock, mesh
    self.decided = RunAction.CONTINUE
    self._largest: Program | None = None
    if processes.several():
      array = jax.ShapeDtypeStruct((mesh.size,), jnp.int32, sharding=mesh_lib.sharded(mesh))
      self._largest = compile_program(jnp.max, (array,))

  def ask(self, *, save_due: bool) -> jax.Array | RunAction:
    """Asks all processes what follows the step just taken; `note` reads the answer.

    All ask after the same steps. A lone process has decided when this returns.
    """
    own = max(self._signals.action, RunAction.SAVE if save_due else RunAction.CONTINUE)
    if self._largest is None:
      self.note(own)
      return own
    values = np.full(len(self._mesh.local_devices), own, np.int32)
    return self._largest.call(mesh_lib.split(values, self._mesh))

  def note(self, answer: jax.Array | RunAction) -> None:
    """Waits for an answer of `ask`, and updates `decided`."""
    self.decided = max(self.decided, RunAction(int(answer)))

  def agree(self, *, save_due: bool) -> RunAction:
    """Waits for all processes; returns what they do now."""
    self.note(self.ask(save_due=save_due))
    return self.decided

  def stop(self) -> None:
    """Asks all processes to save and stop."""
    self._signals.action = max(self._signals.action, RunAction.STOP)

  def saved(self) -> None:
    """Notes that a checkpoint was tried, so that none is due any longer."""
    if self.decided is RunAction.SAVE:
      self.decided = RunAction.CONTINUE

  def check_owner(self) -> None:
    """Makes sure that no later start has taken the folder."""
    if self.lock is not None:
      self.lock.check()
