"""What may end a run before its last step: signals, the other processes, a later start."""

import jax

from jaxspeed.cluster.agreement import Agreement
from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.cluster.signals import RunAction, Signals
from jaxspeed.cluster.watchdog import heartbeat
from jaxspeed.run.folder import RunFolder


class RunControl:
  """What all processes of one run do after a step: continue, save, or stop.

  Args:
    signals: that this process has got.
    agreement: with the other processes.
    owned: the folder that this start has taken, in process 0.
    incarnation: which start of the run this is, the same in all processes.

  Attributes:
    decided: by all processes, since the last checkpoint.
    incarnation: as above.
  """

  def __init__(
    self, signals: Signals, agreement: Agreement, owned: RunFolder | None, incarnation: int
  ) -> None:
    self._signals = signals
    self._agreement = agreement
    self._owned = owned
    self.incarnation = incarnation
    self.decided = RunAction.CONTINUE

  @property
  def lock(self) -> FolderLock | None:
    """The lock of the folder, in process 0."""
    return self._owned.lock if self._owned else None

  def ask(self, *, save_due: bool) -> jax.Array | RunAction:
    """Asks all processes what follows the step that was taken; `note` reads the answer.

    A process that is alone has decided when this returns.

    Args:
      save_due: whether this process wants a checkpoint.
    """
    own = self._signals.action
    if own is RunAction.CONTINUE and save_due:
      own = RunAction.SAVE
    answer = self._agreement.ask(own)
    if isinstance(answer, RunAction):  # a process that is alone need not wait for the step
      self.note(answer)
    return answer

  def note(self, answer: jax.Array | RunAction) -> None:
    """Waits for an answer, and decides what it says."""
    self.decided = max(self.decided, self._agreement.read(answer))

  def agree(self, *, save_due: bool) -> RunAction:
    """What all processes do now; waits for them."""
    self.note(self.ask(save_due=save_due))
    return self.decided

  def saved(self) -> None:
    """Notes that a checkpoint was tried, so that none is asked for."""
    if self.decided is RunAction.SAVE:
      self.decided = RunAction.CONTINUE

  def step_taken(self) -> None:
    """Notes that the run gets on, and that its folder now holds something to keep."""
    heartbeat()
    self.keep_folder()

  def keep_folder(self) -> None:
    """Notes that the folder holds something to keep."""
    if self._owned is not None:
      self._owned.begun()

  def check_owner(self) -> None:
    """Makes sure that no later start has taken the folder."""
    if self._owned is not None:
      self._owned.lock.check()
