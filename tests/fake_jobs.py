"""Jobs of jaxspeed.launch without a training: folders written by hand, an executor that remembers.

NOW is the time of what happens in them.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from commands import ROOT
from made_rows import one_result
from ml_collections import ConfigDict

from jaxspeed.config.checks import with_overrides
from jaxspeed.config.recipe import load_recipe
from jaxspeed.errors import UserError
from jaxspeed.files import open_locked
from jaxspeed.launch import record
from jaxspeed.launch.executor import Executor, Found
from jaxspeed.launch.record import RECORD, Event, Facts, Job, add_line
from jaxspeed.launch.runs import LAUNCHER
from jaxspeed.models import make  # noqa: F401  registers the models, whose fields a recipe may set

QUICKSTART = str(ROOT / "configs" / "quickstart.py")
NOW = 1_800_000_000
TOKEN = "5b0f"
SUBMITTED = (Event(NOW - 7200, "submit", TOKEN),)


def event(what: str, ago: float = 3600, restart: int = 0, detail: str = "", **more: Any) -> Event:
  """A line of a record, `ago` seconds before NOW."""
  return Event(NOW - ago, what, more.pop("token", TOKEN), restart, "n1", detail, **more)


def ended(*codes: int) -> dict[int, list[Event]]:
  """The records of tasks that ended with these exit codes."""
  return {i: [event("ended", 30, code=code)] for i, code in enumerate(codes)}


def write_run(root: pathlib.Path, name: str = "run") -> pathlib.Path:
  """A run's folder without jobs."""
  folder = root / name
  (folder / LAUNCHER).mkdir(parents=True)
  record.write_jobs(folder, [])
  return folder


def write_job(
  run: pathlib.Path,
  name: str = "a",
  *,
  requests: Sequence[Event] = SUBMITTED,
  notes: Sequence[Event] = (),
  tasks: Mapping[int, Sequence[Event]] | None = None,
  logs: Mapping[str, str] | None = None,
  metrics: Sequence[Mapping[str, Any]] = (),
  result: Mapping[str, Any] | str | None = None,
  **job: Any,
) -> Facts:
  """Adds a job to a run, with what is given; returns what the files say about it."""
  folder = run / name
  own = folder / RECORD
  (own / "logs").mkdir(parents=True)
  fixed = {"recipe": "configs/quickstart.py", "overrides": {}, "folder": str(folder), "config": ""}
  about = {"cwd": str(run), "executor": {"kind": "slurm"}, "epochs": 20.0, "metric": "top1"}
  added = Job(**{"name": name, "sources": ""} | fixed | about | job)  # type: ignore[arg-type]
  before = [facts.job for facts in record.jobs_of(run)]
  (run / LAUNCHER).mkdir(exist_ok=True)
  record.write_jobs(run, [*before, added])
  for each in requests:
    add_line(run / LAUNCHER / record.REQUESTS, dataclasses.replace(each, jobs=[name]))
  write_events(own / "job.jsonl", notes)
  for number, events in (tasks or {}).items():
    write_events(own / "tasks" / f"{number}.jsonl", events)
  for file, text in (logs or {}).items():
    (own / "logs" / file).write_text(text)
  if metrics:
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in metrics))
  if isinstance(result, Mapping) and "seed" in added.overrides:
    result = {**result, "seed": added.overrides["seed"]}
  if result is not None:
    text = result if isinstance(result, str) else json.dumps(result)
    (folder / "result.json").write_text(text)
  return facts_of(folder)


def write_events(path: pathlib.Path, events: Sequence[Event]) -> None:
  """Writes a record."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("")
  for each in events:
    add_line(path, each)


def facts_of(folder: pathlib.Path) -> Facts:
  """What a job's folder says."""
  (found,) = record.read_jobs(folder.parent, [folder.name])
  return found


def seconds(train: float = 30.0, to_target: float | None = 12.0) -> dict[str, Any]:
  """The seconds of a result."""
  clocks = {"train": train, "dawn": train, "process": 2 * train, "to_target": to_target}
  return clocks | {"compile": {"warm": 1.0, "cold": None}}


def result_of(top1: float = 0.95, **values: Any) -> dict[str, Any]:
  """The content of a run's result.json."""
  own = {"config": {"target": 0.94, "target_metric": "top1"}, "top5": 0.99, "seed": 0}
  return one_result(top1, **own | {"seconds": seconds()} | values)


class Fake(Executor):
  """Remembers what it is asked, in `asked`; its scheduler says what `said` holds."""

  kind: ClassVar[str] = "fake"
  asked: ClassVar[list[tuple[Any, ...]]] = []
  said: ClassVar[dict[str, Found] | None] = {}
  dies_after: ClassVar[int | None] = None

  gpus: int = 1

  def devices(self) -> int:
    return self.gpus

  def check(self, root: pathlib.Path) -> None:
    self.asked.append(("check", root))

  def script(self, jobs: Sequence[Job], token: str) -> str:
    return "".join(f"# {job.name}\n" for job in jobs)

  def submit(self, jobs: Sequence[Job], token: str) -> None:
    for i, job in enumerate(jobs):
      if i == self.dies_after:
        raise UserError("it refused (no more jobs).")
      # What a submission that dies leaves is read from the folder, so it must be there by now.
      assert facts_of(pathlib.Path(job.folder)).token == token
      self.asked.append(("submit", job.name))
      assert self.said is not None
      self.said[job.name] = Found(False, f"{100 + i}")

  def states(self, jobs: Sequence[Facts], folder: pathlib.Path) -> Mapping[str, Found] | None:
    names = [facts.job.name for facts in jobs]
    self.asked.append(("states", *sorted(names)))
    said = self.said
    return None if said is None else {name: said[name] for name in names if name in said}

  def cancel(self, ids: Sequence[str]) -> None:
    self.asked.append(("cancel", *sorted(ids)))
    type(self).said = {name: each for name, each in (self.said or {}).items() if each.id not in ids}


def config_of(overrides: Mapping[str, Any]) -> ConfigDict:
  """The checked config of a job of the quickstart."""
  return with_overrides(load_recipe(QUICKSTART), overrides)


@contextlib.contextmanager
def lock_elsewhere(path: pathlib.Path) -> Iterator[None]:
  """A file is locked inside, as by another process: a lock belongs to the open file."""
  descriptor = open_locked(path)
  assert descriptor is not None
  try:
    yield
  finally:
    os.close(descriptor)


# A trainer does what the lines of the file `plan` beside the runs say of its job; `once` does the
# rest of its line at the first start only.
_PLANNED = """\
job=${workdir##*/} all=${workdir%/*/*}
echo "$*" >>"$workdir/arguments"
starts=$(wc -l <"$workdir/arguments")
log() { echo "$1 $job ${2-}" >>"$all/log"; }
cores=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/$$/status)
trap 'log saved; exit 0' TERM
log + "$$ $cores ${CUDA_VISIBLE_DEVICES-none}"
do_as() {
  case "$1" in
    done) cp "$all/result.json" "$workdir/result.json" ;;
    wait) for _ in {1..2400}; do [ -e "$all/go" ] || [ -e "$all/go.$job" ] || sleep 0.05; done ;;
    sleep) sleep "$2" ;;
    exit) log - "$2"; exit "$2" ;;
    kill) log - kill; kill -9 $$ ;;
    apart) setsid bash -c "echo apart $job >>'$all/log'; exec sleep 5" & ;;
    say) shift; echo "$*" ;;
    once) [ "$starts" -gt 1 ] || { shift; do_as "$@"; } ;;
  esac
}
while read -r name words <&3; do
  [ "$name" != "$job" ] || do_as $words
done 3<"$all/plan"
log - 0
"""


def fake_python(root: pathlib.Path, plan: Mapping[str, Sequence[str]]) -> str:
  """A program in place of Python, whose jobs in `root/RUN/JOB` do as `plan` says; its path."""
  root.mkdir(parents=True, exist_ok=True)
  lines = [f"{name} {words}\n" for name, steps in plan.items() for words in steps]
  (root / "plan").write_text("".join(lines))
  (root / "result.json").write_text(json.dumps(result_of()))
  (root / "log").touch()
  return python_for(root, _PLANNED)


def python_for(folder: pathlib.Path, trainer: str) -> str:
  """A program in place of Python: its path. A trainer is these lines, which know $workdir."""
  return program(
    folder / "python",
    f"""\
#!/usr/bin/env bash
[ "$2" != jaxspeed.launch.supervisor ] || exec {sys.executable} "$@"
for word; do
  case "$word" in --workdir=*) workdir=${{word#*=}} ;; esac
done
{trainer}""",
  )


def program(path: pathlib.Path, text: str) -> str:
  """Writes a program that can be started; its path."""
  path.write_text(text)
  path.chmod(0o755)
  return os.fspath(path)
