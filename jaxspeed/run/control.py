"""The control of a run: what may end it early (a signal, another process, a later start)."""

import jax

from jaxspeed.cluster.agreement import Agreement
from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.cluster.signals import RunAction, Signals
from jaxspeed.cluster.watchdog import heartbeat
from jaxspeed.run.folder import RunFolder


class RunControl:
  """Decides, together with all processes, what follows a step: continue, save, or stop.

  Args:
    signals: the signals that this process has received.
    agreement: the means of agreeing with the other processes.
    owned: the folder that this start owns; None except in process 0.
    incarnation: the number of this start of the run, the same in all processes.

  Attributes:
    decided: what all processes have decided since the last checkpoint.
    incarnation: as above.
  """

  def __init__(
    self,
    signals: Signals,
    agreement: Agreement,
    owned: RunFolder | None,
    incarnation: int,
  ) -> None:
    self._signals = signals
    self._agreement = agreement
    self._owned = owned
    self.incarnation = incarnation
    self.decided = RunAction.CONTINUE

  @property
  def lock(self) -> FolderLock | None:
    """The lock of the folder; None except in process 0."""
    return self._owned.lock if self._owned else None

  def ask(self, *, save_due: bool) -> jax.Array | RunAction:
    """Asks all processes what follows the step just taken; `note` reads the answer.

    A lone process has decided when this returns.

    Args:
      save_due: whether this process wants a checkpoint.
    """
    own = self._signals.action
    if own is RunAction.CONTINUE and save_due:
      own = RunAction.SAVE
    answer = self._agreement.ask(own)
    if isinstance(answer, RunAction):  # a lone process need not wait for the step
      self.note(answer)
    return answer

  def note(self, answer: jax.Array | RunAction) -> None:
    """Waits for an answer of `ask`, and updates `decided`."""
    self.decided = max(self.decided, self._agreement.read(answer))

  def stop(self) -> None:
    """Asks all processes to save and stop."""
    self._signals.action = max(self._signals.action, RunAction.STOP)

  def agree(self, *, save_due: bool) -> RunAction:
    """Waits for all processes; returns what they do now."""
    self.note(self.ask(save_due=save_due))
    return self.decided

  def saved(self) -> None:
    """Notes that a checkpoint was tried, so that none is due any longer."""
    if self.decided is RunAction.SAVE:
      self.decided = RunAction.CONTINUE

  def step_taken(self) -> None:
    """Notes that the run makes progress, and that its folder is worth keeping."""
    heartbeat()
    self.keep_folder()

  def keep_folder(self) -> None:
    """Notes that the folder is worth keeping."""
    if self._owned is not None:
      self._owned.begun()

  def check_owner(self) -> None:
    """Makes sure that no later start has taken the folder."""
    if self._owned is not None:
      self._owned.lock.check()
