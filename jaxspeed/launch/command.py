"""The commands of `python -m jaxspeed.launch`."""

import codecs
import contextlib
import importlib.util
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from jaxspeed.config import output
from jaxspeed.errors import UserError, mend, printable, some
from jaxspeed.files import dump_json, open_regular, to_json
from jaxspeed.launch import local, record, results, runs, state, submit
from jaxspeed.launch.executor import executor_of
from jaxspeed.launch.record import RECORD
from jaxspeed.launch.run import Run, load_sweep
from jaxspeed.launch.runs import RUN_FILE

FILES = pathlib.Path(__file__).parent / "files"
_POLL = 0.5  # seconds between two looks at a log
# Where train_k8s.yaml has its numbers, of machines and of GPUs.
_IN_NODES = ("parallelism: {}", "completions: {}", "imagenet18.py:{}", 'value: "{}"', "on {} m")
_IN_GPUS = ("nvidia.com/gpu: {}", "of {} GPUs")


def define_flags() -> None:
  """Defines the flags of all commands."""
  flags.DEFINE_bool("dry-run", False, "submit: print the scripts; write and submit nothing.")
  flags.DEFINE_string("root", "", "submit: the folder of runs, in place of the sweep's.")
  flags.DEFINE_bool("wait", False, "submit: wait until all jobs have ended.")
  flags.DEFINE_bool("json", False, "status, results: print JSON.")
  flags.DEFINE_bool("follow", False, "logs: go on until the job ends.", short_name="f")
  flags.DEFINE_integer("task", 0, "logs: the number of the task.", lower_bound=0)
  flags.DEFINE_bool("all", False, "cancel: all jobs of the run.")
  flags.DEFINE_bool("failed", False, "retry: all jobs that failed or were cancelled.")
  flags.DEFINE_enum("metric", "top1", [*results.METRICS], "results: the figure to sort by.")
  flags.DEFINE_integer("port", 6006, "tensorboard: the port.", lower_bound=1, upper_bound=65_535)
  flags.DEFINE_integer("nodes", 2, "script kubernetes: the number of machines.", lower_bound=1)
  flags.DEFINE_integer("gpus", 8, "script kubernetes: GPUs of each machine.", lower_bound=1)


def _flag(name: str) -> Any:
  return flags.FLAGS[name].value


def run(arguments: Sequence[str], overrides: Mapping[str, Any]) -> None:
  """Runs a command; `overrides` are fields of all jobs that `submit` gets.

  Raises:
    UserError: the command or its arguments are not valid, or it fails.
  """
  command, *rest = arguments or [""]
  if command not in _COMMANDS:
    raise UserError(
      f"{command!r} is not a command: write one of {', '.join(_COMMANDS)}; see --help."
    )
  function, own = _COMMANDS[command]
  for name in sorted({name for _, names in _COMMANDS.values() for name in names} - {*own}):
    if flags.FLAGS[name].present:
      raise UserError(f"--{name} has no effect with {command}; see --help.")
  if command != "submit" and overrides:
    raise UserError(
      f"--config.{min(overrides)} has no effect with {command}: only submit takes it."
    )
  try:
    if command == "submit":
      _submit(rest, overrides)
    else:
      function(*([rest] if command == "script" else _run_and_jobs(rest)))
  except OSError as error:
    name, reason = error.filename or "a file of the run", error.strerror or error
    advice = f"{mend(error)}, and repeat the command"
    raise UserError(f"{name} cannot be used ({reason}): {advice}.") from error


def _submit(arguments: list[str], overrides: Mapping[str, Any]) -> None:
  if len(arguments) != 1:
    raise UserError("submit needs one file, which defines sweep(): submit SWEEP.py; see --help.")
  run = load_sweep(arguments[0])
  if flags.FLAGS["root"].present:
    run.root = runs.absolute(str(_flag("root")))
  run.override(overrides)
  if _flag("dry-run"):
    for path, text in run.scripts().items():
      print(f"# ---- {printable(path)}\n{text}")
    try:
      run.check_executors()
    except UserError as error:
      output.say(f"note: submit would refuse: {error}")
    return
  run.start()
  if _flag("wait") and (left := [each.name for each in run.wait() if each.state != "done"]):
    raise UserError(f"{some(left, 3)}: no result; status {run.folder} says why.")


def _status(folder: pathlib.Path, names: list[str]) -> None:
  found = state.statuses(folder, record.read_jobs(folder, names))
  if _flag("json"):
    rows = [{**vars(status), "folder": str(status.folder)} for status in found]
    print(dump_json(to_json({"jobs": rows, "notes": found.notes}), indent=1))
  else:
    print(found)


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def _logs(folder: pathlib.Path, names: list[str]) -> None:
  if len(names) != 1:
    raise UserError("logs needs one job: logs RUN/JOB, or logs RUN JOB.")
  logs = folder / names[0] / RECORD / "logs"
  path = logs / f"{_flag('task')}.log"
  # A job that could not start its tasks has only the log of its script.
  if not path.exists() and not _flag("follow"):
    path = logs / "batch.log"
    if not path.exists():
      raise UserError(f"{folder / names[0]} has no log yet: it has not started.")
  if path.is_symlink():
    raise UserError(f"{path} is a link, which no job writes: look at it yourself.")
  at, decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
  is_last, next_look = not _flag("follow"), 0.0
  while True:
    if not is_last and time.monotonic() >= next_look:
      found = state.statuses(folder, record.read_jobs(folder, names))
      is_last, next_look = found[0].state in state.ENDED, time.monotonic() + found.pause
    content = b""
    with contextlib.suppress(FileNotFoundError), open_regular(path) as file:
      file.seek(at)
      content = file.read()
    at += len(content)
    text = decoder.decode(content, final=is_last)
    # A log may be a stranger's: what moves the cursor or sets a title is shown, not done.
    print(_CONTROL.sub(lambda found: printable(found[0]), text), end="", flush=True)
    if is_last or output.is_closed():
      return
    time.sleep(_POLL)


def _cancel(folder: pathlib.Path, names: list[str]) -> None:
  found = ", ".join(Run.load(folder).cancel(names, every=_flag("all")))
  nothing = "none to cancel: all have ended or were cancelled before"
  print(f"cancelled {printable(found)}" if found else nothing)


def _retry(folder: pathlib.Path, names: list[str]) -> None:
  found = ", ".join(Run.load(folder).retry(names, failed=_flag("failed")))
  print(f"submitted {printable(found)} again" if found else "no job failed")


def _resume(folder: pathlib.Path, names: list[str]) -> None:
  if names:
    raise UserError("resume takes a run: resume RUN; a single job is started by retry RUN/JOB.")
  jobs = record.read_jobs(folder)
  if not all(isinstance(executor_of(facts.job), local.Local) for facts in jobs):
    raise UserError(f"{folder} has no jobs of this machine: its scheduler starts them by itself.")
  submit.check_own(jobs)
  begun = submit.begin(folder)
  print("the run goes on" if begun else "nothing waits: retry --failed starts what failed again")


def _results(folder: pathlib.Path, names: list[str]) -> None:
  jobs = record.read_jobs(folder, names)
  found = results.results_of(jobs, str(_flag("metric")))
  if _flag("json"):
    rows = {"jobs": found, "over_seeds": results.groups_of(found)}
    print(dump_json(to_json(rows), indent=1))
  else:
    print(results.results_table(found, len(jobs) - len(found)))


def _tensorboard(folder: pathlib.Path, names: list[str]) -> None:
  if importlib.util.find_spec("tensorboard") is None:
    raise UserError("tensorboard is not installed: pip install tensorboard.")
  words = ["-m", "tensorboard.main", f"--logdir={folder}", f"--port={_flag('port')}"]
  os.execv(sys.executable, [sys.executable, *words])


def _script(arguments: list[str]) -> None:
  if arguments == ["kubernetes"]:
    print(jobset(_flag("nodes"), _flag("gpus")), end="")
  elif arguments != ["slurm"]:
    raise UserError("script needs one of slurm, kubernetes: see --help.")
  elif flags.FLAGS["nodes"].present or flags.FLAGS["gpus"].present:
    raise UserError("script slurm takes no --nodes and no --gpus: sbatch does.")
  else:
    print((FILES / "train.sbatch").read_text(), end="")


def jobset(nodes: int = 2, gpus: int = 8) -> str:
  """The YAML of a run on Kubernetes without SkyPilot, for machines of some GPUs each."""
  text = (FILES / "train_k8s.yaml").read_text()
  for places, before, number in ((_IN_NODES, 2, nodes), (_IN_GPUS, 8, gpus)):
    for place in places:
      text = text.replace(place.format(before), place.format(number))
  return text


def _run_and_jobs(arguments: Sequence[str]) -> tuple[pathlib.Path, list[str]]:
  """The run's folder and the names of jobs that arguments name as RUN, RUN/JOB or JOB.

  Raises:
    UserError: the first one names no run or job of one, or another no job of the same run.
  """
  paths = {argument: pathlib.Path(os.path.abspath(argument)) for argument in arguments or ["."]}
  first = next(iter(paths.values()))
  holds = [path for path in (first, first.parent) if os.path.exists(path / RUN_FILE)]
  folder = next(iter(holds), first)
  others = {argument: path for argument, path in paths.items() if path != folder}
  names = [path.name if path.parent == folder else name for name, path in others.items()]
  record.read_jobs(folder, names)
  return folder, names


# Each command with the flags that it takes.
_COMMANDS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
  "submit": (_submit, ("dry-run", "root", "wait")),
  "status": (_status, ("json",)),
  "logs": (_logs, ("follow", "task")),
  "cancel": (_cancel, ("all",)),
  "retry": (_retry, ("failed",)),
  "resume": (_resume, ()),
  "results": (_results, ("metric", "json")),
  "tensorboard": (_tensorboard, ("port",)),
  "script": (_script, ("nodes", "gpus")),
}
