"""The commands of `python -m jaxspeed.launch`."""

import codecs
import os
import pathlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence

from absl import flags

from jaxspeed.config import output
from jaxspeed.config.overrides import parse_value
from jaxspeed.errors import UserError, printable
from jaxspeed.files import dump_json, to_json
from jaxspeed.launch import kubernetes, local, results, runs, slurm_script, state, submit
from jaxspeed.launch import root as root_lib
from jaxspeed.launch.local_queue import Queue, only_queue
from jaxspeed.launch.record import RECORD
from jaxspeed.launch.status import ENDED

_POLL = 0.5  # seconds between two looks at a log
# What the commands take: the flags of each.
_FLAGS: dict[str, tuple[str, ...]] = {
  "submit": ("dry-run", "root", "wait"),
  "status": ("json",),
  "logs": ("follow", "task"),
  "cancel": ("all",),
  "retry": ("failed",),
  "resume": ("here",),
  "results": ("metric", "json"),
  "tensorboard": ("port",),
  "script": ("nodes", "gpus"),
}
_OVERRIDE = re.compile(r"--config\.([^=]+)=(.*)", re.DOTALL)


def define_flags(arguments: Sequence[str]) -> None:
  """Defines the flags of all commands, and one for each --config.FIELD of the command line."""
  flags.DEFINE_bool("dry-run", False, "submit: print the scripts; write and submit nothing.")
  flags.DEFINE_string("root", "", "submit: the folder of runs, in place of the sweep's.")
  flags.DEFINE_bool("wait", False, "submit: wait until all jobs have ended.")
  flags.DEFINE_bool("json", False, "status, results: print JSON.")
  flags.DEFINE_bool("follow", False, "logs: go on until the job ends.", short_name="f")
  flags.DEFINE_integer("task", 0, "logs: the number of the task.", lower_bound=0)
  flags.DEFINE_bool("all", False, "cancel: all jobs of the run.")
  flags.DEFINE_bool("failed", False, "retry: all jobs that failed or were cancelled.")
  flags.DEFINE_bool("here", False, "resume: run the queue in this process.")
  flags.DEFINE_enum("metric", "top1", [*results.METRICS], "results: the figure to sort by.")
  flags.DEFINE_integer("port", 6006, "tensorboard: the port.", lower_bound=1, upper_bound=65_535)
  flags.DEFINE_integer("nodes", 2, "script kubernetes: the number of machines.", lower_bound=1)
  flags.DEFINE_integer("gpus", 8, "script kubernetes: GPUs of each machine.", lower_bound=1)
  for name, _ in _overrides(arguments):
    if f"config.{name}" not in flags.FLAGS:
      flags.DEFINE_string(f"config.{name}", None, "submit: a field of all jobs.")


def _overrides(arguments: Sequence[str]) -> list[tuple[str, str]]:
  return [(m[1], m[2]) for word in arguments if (m := _OVERRIDE.fullmatch(word))]


def _given() -> list[tuple[str, str]]:
  """Field and text of each --config.FIELD, also of a --flagfile."""
  names = [name for name in flags.FLAGS if name.startswith("config.")]
  return [(name.removeprefix("config."), str(flags.FLAGS[name].value)) for name in sorted(names)]


def run(arguments: Sequence[str]) -> None:
  """Runs a command.

  Raises:
    UserError: the command or its arguments are not valid, or it fails.
  """
  commands: dict[str, Callable[[list[str]], None]] = {
    "submit": _submit,
    "status": _status,
    "logs": _logs,
    "cancel": _cancel,
    "retry": _retry,
    "resume": _resume,
    "results": _results,
    "tensorboard": _tensorboard,
    "script": _script,
  }
  command, *rest = arguments or [""]
  if command not in commands:
    raise UserError(
      f"{command!r} is not a command: write one of {', '.join(commands)}; see --help."
    )
  own = {*_FLAGS[command]}
  for name in {name for names in _FLAGS.values() for name in names} - own:
    if flags.FLAGS[name].present:
      raise UserError(f"--{name} has no effect with {command}; see --help.")
  if command != "submit" and (given := _given()):
    raise UserError(f"--config.{given[0][0]} has no effect with {command}: only submit takes it.")
  commands[command]([*rest])


def _submit(arguments: list[str]) -> None:
  if len(arguments) != 1:
    raise UserError("submit needs one file, which defines sweep(): submit SWEEP.py; see --help.")
  # Imported here, so that what only looks at a run does not wait for JAX.
  from jaxspeed.launch.sweep import load_sweep
  from jaxspeed.models import make  # noqa: F401  the fields of config.model are its families'

  run = load_sweep(arguments[0])
  if flags.FLAGS["root"].present:
    run.root = root_lib.absolute(str(flags.FLAGS["root"].value))
  run.override({name: parse_value(name, text) for name, text in _given()})
  if flags.FLAGS["dry-run"].value:
    for path, text in run.scripts().items():
      print(f"# ---- {printable(path)}\n{text}")
    try:
      run.check_executors()
    except UserError as error:
      output.say(f"note: submit would refuse: {error}")
    return
  run.start(detach=not flags.FLAGS["wait"].value)


def _status(arguments: list[str]) -> None:
  folder, names = _run_and_jobs("status", arguments)
  jobs = [facts for facts in runs.read_jobs(folder) if not names or facts.job.name in names]
  found = state.statuses(folder, jobs)
  if flags.FLAGS["json"].value:
    rows = [{**vars(status), "folder": str(status.folder)} for status in found]
    print(dump_json(to_json({"jobs": rows, "notes": found.notes}), indent=1))
  else:
    print(found)


def _logs(arguments: list[str]) -> None:
  folder, names = _run_and_jobs("logs", arguments)
  if len(names) != 1:
    raise UserError("logs needs one job: logs RUN/JOB, or logs RUN JOB.")
  record = folder / names[0] / RECORD
  path = record / "logs" / f"{flags.FLAGS['task'].value}.log"
  follow = bool(flags.FLAGS["follow"].value)
  # A job that could not start its tasks has only the log of its script.
  if not path.exists() and not follow:
    path = record / "logs" / "batch.log"
  if not path.exists() and not follow:
    raise UserError(f"{folder / names[0]} has no log yet: it has not started.")
  at, decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
  while True:
    ended = follow and _has_ended(folder, names[0])
    content = _read_from(path, at)
    at += len(content)
    print(decoder.decode(content, final=not follow or ended), end="", flush=True)
    if not follow or ended or output.is_closed():
      return
    time.sleep(_POLL)


def _has_ended(folder: pathlib.Path, name: str) -> bool:
  jobs = [facts for facts in runs.read_jobs(folder) if facts.job.name == name]
  return state.statuses(folder, jobs)[0].state in ENDED


def _read_from(path: pathlib.Path, at: int) -> bytes:
  """What a file holds from a position on."""
  try:
    with path.open("rb") as file:
      file.seek(at)
      return file.read()
  except OSError:
    return b""


def _cancel(arguments: list[str]) -> None:
  folder, names = _run_and_jobs("cancel", arguments)
  every = bool(flags.FLAGS["all"].value)
  if every == bool(names):
    raise UserError("cancel needs either jobs or --all: cancel RUN/JOB, or cancel RUN --all.")
  cancelled = submit.cancel(folder, names, every=every)
  print(
    f"cancelled {printable(', '.join(cancelled))}"
    if cancelled
    else "none to cancel: all have ended or were cancelled before"
  )


def _retry(arguments: list[str]) -> None:
  folder, names = _run_and_jobs("retry", arguments)
  failed = bool(flags.FLAGS["failed"].value)
  if failed == bool(names):
    raise UserError("retry needs either jobs or --failed: retry RUN/JOB, or retry RUN --failed.")
  again = submit.retry(folder, names, failed=failed)
  print(f"submitted {printable(', '.join(again))} again" if again else "no job failed")


def _resume(arguments: list[str]) -> None:
  folder, names = _run_and_jobs("resume", arguments)
  if names:
    raise UserError("resume takes a run: resume RUN; a single job is started by retry RUN/JOB.")
  launcher = folder / runs.LAUNCHER
  if not any(facts.job.executor.get("kind") == "local" for facts in runs.read_jobs(folder)):
    raise UserError(f"{folder} has no jobs of a local queue: its scheduler starts them by itself.")
  if host := local.queue_elsewhere(launcher):
    output.say(f"the queue of {folder} last ran on {host}, and this machine takes it over.")
  jobs = runs.read_jobs(folder)
  waiting = [facts for facts in jobs if state.is_open(facts) and not facts.cancelled]
  if not waiting:
    print("nothing waits: all jobs have ended; retry --failed starts those without a result again")
    return
  submit.check_own(waiting)
  if not flags.FLAGS["here"].value:
    running = local.queue_runs(launcher)
    if not running:
      local.start_queue(launcher)
    print("the queue runs already" if running else "the queue runs again")
    return
  with only_queue(folder) as own:
    if not own:
      raise UserError(f"the queue of {folder} runs already.")
    Queue(folder).run()


def _results(arguments: list[str]) -> None:
  folder, names = _run_and_jobs("results", arguments)
  jobs = [facts for facts in runs.read_jobs(folder) if not names or facts.job.name in names]
  found = results.results_of(jobs, str(flags.FLAGS["metric"].value))
  if flags.FLAGS["json"].value:
    print(dump_json(to_json(results.as_json(found)), indent=1))
  else:
    print(results.results_table(found, len(jobs) - len(found)))


def _tensorboard(arguments: list[str]) -> None:
  folder, _ = _run_and_jobs("tensorboard", arguments)
  program = shutil.which("tensorboard", path=f"{pathlib.Path(sys.executable).parent}")
  program = program or shutil.which("tensorboard")
  if program is None:
    raise UserError("tensorboard is not installed: pip install tensorboard.")
  sys.stdout.flush()
  os.execv(program, [program, f"--logdir={folder}", f"--port={flags.FLAGS['port'].value}"])


def _script(arguments: list[str]) -> None:
  known = {"slurm": slurm_script.standalone, "kubernetes": _jobset}
  if len(arguments) != 1 or arguments[0] not in known:
    raise UserError(f"script needs one of {', '.join(known)}: see --help.")
  if arguments[0] == "slurm" and (flags.FLAGS["nodes"].present or flags.FLAGS["gpus"].present):
    raise UserError("script slurm takes no --nodes and no --gpus: sbatch does.")
  print(known[arguments[0]](), end="")


def _jobset() -> str:
  nodes, gpus = (flags.FLAGS[name].value for name in ("nodes", "gpus"))
  assert isinstance(nodes, int) and isinstance(gpus, int)
  return kubernetes.jobset(nodes, gpus)


def _run_and_jobs(command: str, arguments: Sequence[str]) -> tuple[pathlib.Path, list[str]]:
  """The run's folder and the names of jobs that arguments name as RUN, RUN/JOB or JOB.

  Raises:
    UserError: they name no run, or jobs of several runs.
  """
  folder: pathlib.Path | None = None
  names: list[str] = []
  for argument in arguments or ["."]:
    path = pathlib.Path(os.path.abspath(argument))
    try:
      os.stat(path)
    except PermissionError as error:
      raise UserError(
        f"{argument} cannot be read ({error.strerror or error}): ask its owner."
      ) from None
    except (OSError, ValueError):
      pass
    if (path / runs.RUN_FILE).exists():
      found, name = path, ""
    elif (path.parent / runs.RUN_FILE).exists():
      found, name = path.parent, path.name
    elif folder is not None and (folder / argument / RECORD).is_dir():
      found, name = folder, argument
    else:
      raise UserError(
        f"{argument} is neither a run nor a job of one: write {command} ROOT/RUN or "
        f"{command} ROOT/RUN/JOB."
      )
    if folder not in (None, found):
      raise UserError(f"{argument} belongs to another run than the first one: name one run.")
    folder = found
    names += [name] if name else []
  assert folder is not None
  known = [facts.job.name for facts in runs.read_jobs(folder)]
  if unknown := [name for name in names if name not in known]:
    shown = ", ".join([*known[:3], *["..."] * (len(known) > 3)])
    raise UserError(f"{folder} has no job {unknown[0]}, but {shown}{'.' * (len(known) <= 3)}")
  return folder, names
