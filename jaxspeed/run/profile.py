"""A trace of some steps of a run, for TensorBoard and Perfetto: `--profile=FIRST:LAST`."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

import jax

from jaxspeed.cluster import processes
from jaxspeed.cluster.watchdog import watchdog_paused
from jaxspeed.errors import UserError
from jaxspeed.run.run import Run
from jaxspeed.steps.state import StepOutput

FOLDER = "profile"  # in the run's folder
# The first and the last step to trace, counted from 1, as `step` in metrics.jsonl.
Steps = tuple[int, int]


def parse_steps(text: str) -> Steps:
  """The steps that a flag --profile=FIRST:LAST names; a UserError if it names none."""
  found = re.fullmatch("([0-9]{1,9}):([0-9]{1,9})", text)
  if found is None or not 1 <= int(found[1]) <= int(found[2]):
    raise UserError(
      f"--profile={text}: name the first and the last step to trace, counted from 1, as in "
      "--profile=20:24."
    )
  return int(found[1]), int(found[2])


def check_steps(steps: Steps | None, total: int) -> None:
  """Makes sure that a run of `total` steps has the steps to trace; a UserError if it has not."""
  if steps is not None and steps[1] > total:
    raise UserError(
      f"steps {steps[0]} to {steps[1]} cannot be traced (--profile): the run has {total} steps."
    )


class Profile:
  """Traces some steps of a run with JAX's profiler, in process 0 alone."""

  def __init__(self, run: Run) -> None:
    steps = run.hooks.profile
    self._steps = steps if processes.is_primary() else None  # None: nothing is left to trace
    self._folder, self._say = run.folder / FOLDER, run.screen.line
    self._whole_epochs = run.feed.whole_epochs
    self._name = "steps_{}_to_{}".format(*steps or (0, 0))
    self._begun: int | None = None  # steps done before the trace that is under way
    self._done = 0

  @contextlib.contextmanager
  def open(self) -> Iterator[None]:
    """The block of a run; a trace under way at its end is written."""
    try:
      yield
    finally:
      if self._begun is not None:
        self._stop()
    if self._steps is not None:
      first, last = self._steps
      self._say(f"no trace is written: this start took none of the steps {first} to {last}")

  def traced(
    self, outputs: Iterator[StepOutput], carry: Any, step: int, end: int
  ) -> Iterator[StepOutput]:
    """The steps of `Feed.train`, with the trace around those to trace and whatever comes between.

    `carry` is that after `step` steps, before the first of them; their epoch ends with `end`.
    """
    while self._steps is not None and step < end:
      following = end if self._whole_epochs else step + 1
      if self._begun is None and step < self._steps[1] and following >= self._steps[0]:
        jax.block_until_ready(carry)
        self._start(step)
      with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
        output = next(outputs, None)
      if output is None:
        return
      carry, step = output.carry, output.step
      self._done = step
      if self._begun is not None and step >= self._steps[1]:
        jax.block_until_ready(carry)
        self._stop()
      yield output
    yield from outputs

  def _start(self, step: int) -> None:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # else Python's events would far outnumber the devices'
    options.session_id = self._name
    # JAX expects one host's files in it, when it makes Perfetto's.
    shutil.rmtree(self._folder / "plugins" / "profile" / self._name, ignore_errors=True)
    self._folder.mkdir(exist_ok=True)
    jax.profiler.start_trace(self._folder, create_perfetto_trace=True, profiler_options=options)
    self._begun = step

  def _stop(self) -> None:
    with watchdog_paused():
      jax.profiler.stop_trace()
    self._say(
      f"a trace of steps {(self._begun or 0) + 1} to {self._done} is in {self._folder}: "
      f"tensorboard --logdir={self._folder} shows it (pip install xprof), and "
      f"https://ui.perfetto.dev opens its plugins/profile/{self._name}/perfetto_trace.json.gz"
    )
    self._steps = self._begun = None
