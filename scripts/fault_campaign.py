"""Makes every fault that a run has to survive, for real, and writes what was seen.

    python scripts/fault_campaign.py --seed=0 --out=results/faults.md

It kills the whole job 50 times at random moments, in both feeds and with 1 and 2 processes, and
makes the faults of tests/faulty_runs.py, which checks them, one by one. The parts run side by side,
each in a folder of its own; --parts=kills,slurm repeats only these, and the rest of the table
stays. The findings are also kept as JSON beside the table. Needs the test extra, and root for the
parts with disks, hosts and Slurm. If a fault cannot be made on a machine, its row says so.
"""

import argparse
import concurrent.futures
import datetime
import functools
import itertools
import json
import math
import os
import pathlib
import platform
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/campaign")]
os.environ["JAX_PLATFORMS"] = "cpu"

import faulty_runs  # noqa: E402
import pytest  # noqa: E402
import test_slurm  # noqa: E402
from faulty_runs import Lab, Row  # noqa: E402
from local_cluster import local_slurm  # noqa: E402

from jaxspeed.cluster.signals import INTERRUPTED  # noqa: E402
from jaxspeed.errors import DONE, REQUEUE  # noqa: E402
from jaxspeed.records.provenance import describe_device, versions  # noqa: E402

LANES = (("resident", 1), ("resident", 2), ("stream", 1), ("stream", 2))
Found = dict[str, Any]
_TERM, _USR1, _INT = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT


def losses(lab: Lab) -> Iterator[Callable[[], Row]]:
  """One of several processes is lost; the run goes on each time, and at the end has the bits."""
  run = lab.new_run()
  yield lambda: faulty_runs.lose_one(run, 1, "step")
  yield lambda: faulty_runs.lose_one(run, 0, "step")
  yield lambda: faulty_runs.lose_one(run, 0, "save")
  yield lambda: faulty_runs.lose_one(run, 1, "start")
  yield lambda: faulty_runs.lose_one(run, 1, "step", how=signal.SIGSTOP)
  yield lambda: faulty_runs.hang_one(run, 1)
  yield lambda: faulty_runs.hang_one(run, 0)
  yield lambda: finish(run, "the run of these faults")


def signals(lab: Lab) -> Iterator[Callable[[], Row]]:
  """Signals to any one process of a run."""
  run = lab.new_run()
  yield lambda: faulty_runs.ask_to_end(run, _TERM, DONE, to=1, moment="start")
  yield lambda: faulty_runs.ask_to_end(run, _TERM, DONE, to=1, moment="step")
  yield lambda: faulty_runs.ask_to_end(run, _TERM, DONE, to=0, moment="save")
  yield lambda: faulty_runs.ask_to_end(run, _USR1, REQUEUE, to=1, moment="step")
  yield lambda: faulty_runs.ask_to_end(run, _INT, INTERRUPTED, to=0, moment="step")
  yield lambda: faulty_runs.interrupt_twice(run)
  yield lambda: finish(run, "the run of these signals")
  alone = lab.new_run()
  yield lambda: faulty_runs.ask_to_end(alone, _TERM, DONE, count=1, moment="start")
  yield lambda: faulty_runs.ask_to_end(alone, _TERM, DONE, count=1, moment="step")


def finish(run: faulty_runs.FaultyRun, what: str, count: int = 2) -> Row:
  """Runs to the end; all bits must be those of a run without faults."""
  begun = time.monotonic()
  out = run.finish(count)
  run.assert_as_undisturbed(count)
  printed = faulty_runs.sentence(out, "resumes from")
  seconds = time.monotonic() - begun
  return Row(f"{what} goes on to its end", printed, (DONE,) * count, seconds, "bits as undisturbed")


def disks(lab: Lab) -> Iterator[Callable[[], Row]]:
  """Disks that are full or cannot be written."""
  for count in (1, 2):
    for on_error in ("continue", "stop"):
      yield lambda c=count, e=on_error: faulty_runs.fill_disk(lab, c, e)
    yield lambda c=count: faulty_runs.make_unwritable(lab, c)


def checkpoints(lab: Lab) -> Iterator[Callable[[], Row]]:
  """Checkpoints that are not whole."""
  run = lab.new_run()
  yield lambda: faulty_runs.ask_to_end(run, _TERM, DONE, count=1, moment="step")
  for kind in ("truncated file", "missing manifest", "junk directory with a step's name"):
    yield lambda k=kind: faulty_runs.damage(run, k, 1)
  yield lambda: faulty_runs.start_a_second_job(run)
  yield lambda: finish(run, "the run of these faults", 1)


def fences(lab: Lab) -> Iterator[Callable[[], list[Row]]]:
  """An older start of a job that was started again, and another number of processes."""
  yield lambda: faulty_runs.wake_an_older_start(lab)
  yield lambda: [faulty_runs.go_on_with(lab, 2, 1)]
  yield lambda: [faulty_runs.go_on_with(lab, 1, 4)]


def network(lab: Lab) -> Iterator[Callable[[], Row]]:
  """Two hosts."""
  yield lambda: faulty_runs.pull_the_cable(lab)


def slurm(lab: Lab) -> Iterator[Callable[[], Row]]:
  """scripts/train.sbatch on a Slurm of two nodes."""
  with local_slurm() as cluster:
    cluster.variables["PYTHON"] = sys.executable

    def start(name: str) -> test_slurm.Run:
      folder = lab.folder / name
      folder.mkdir()
      return test_slurm.Run(cluster, lab.folder / "programs", folder)

    undisturbed = start("undisturbed").rows()
    run, restarts = start("interrupted"), itertools.count(1)

    def interrupted(fault: str, do: Callable[[], object], text: str) -> Row:
      run.wait_for_a_checkpoint()
      begun = time.monotonic()
      do()
      printed = run.wait_for_restart(next(restarts))
      seconds = time.monotonic() - begun
      after = f"step {run.saved()} is saved; back in the queue"
      return Row(fault, faulty_runs.sentence(printed, text), (), seconds, after)

    def limit() -> None:
      test_slurm.stop_for_the_time_limit(run, cluster)

    def raise_limit() -> Row:
      cluster.run("scontrol", "update", f"JobId={run.job.number}", "TimeLimit=UNLIMITED")
      return interrupted(
        "kill -9 of one of two tasks",
        lambda: os.kill(run.job.tasks()[1], signal.SIGKILL),
        "a task was killed by signal 9",
      )

    def end() -> Row:
      begun = time.monotonic()
      assert run.rows() == undisturbed
      printed = faulty_runs.sentence(run.job.printed, "train.sbatch: done.")
      seconds = time.monotonic() - begun
      fault = "the job of these faults goes on to its end"
      return Row(fault, printed, (DONE,), seconds, "rows as undisturbed")

    yield lambda: interrupted(
      "scontrol requeue",
      lambda: cluster.run("scontrol", "requeue", run.job.number),
      "jaxspeed: saved step",
    )
    yield lambda: interrupted("SIGUSR1 of Slurm, 300 s before the time limit", limit, "time limit;")
    yield raise_limit
    yield lambda: interrupted(
      "a job of a partition of higher priority",
      lambda: cluster.run(
        "sbatch",
        *("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"),
        "--wrap=sleep 1",
      ),
      "saved after SIGTERM, not finished",
    )
    yield end


PARTS = {
  "losses": losses,
  "signals": signals,
  "disks": disks,
  "checkpoints": checkpoints,
  "fences": fences,
  "network": network,
  "slurm": slurm,
}


def rows_of(part: str, lab: Lab, keep: Callable[[list[Found]], None]) -> None:
  """Keeps what each fault of a part did, or the error if a check failed."""
  found: list[Found] = []
  try:
    for fault in PARTS[part](lab):
      try:
        made = fault()
        for row in made if isinstance(made, list) else [made]:
          found.append({name: getattr(row, name) for name in Row.__dataclass_fields__})
      except (Exception, pytest.fail.Exception) as error:
        found.append({"error": f"{type(error).__name__}: {error}"})
      print(f"{part}: {json.dumps(found[-1])}", flush=True)
      keep(found)
  except pytest.skip.Exception as skipped:
    keep([*found, {"skipped": str(skipped)}])
  except (Exception, pytest.fail.Exception) as error:
    keep([*found, {"error": f"{type(error).__name__}: {error}"}])


def kills_of(lab: Lab, feed: str, count: int, kills: int, seed: int) -> Found:
  """Returns the outcome of the kills of one feed and number of processes."""
  row: Found = {"feed": feed, "processes": count, "kills": kills}
  begun = time.monotonic()
  try:
    done = faulty_runs.kill_often(lab, feed, count, kills, seed)
    row |= {"moments": done.moments, "ages": done.ages, "runs": done.runs}
  except (Exception, pytest.fail.Exception) as error:
    row["error"] = f"{type(error).__name__}: {error}"
  row["seconds"] = time.monotonic() - begun
  print(f"kills: {json.dumps(row)}", flush=True)
  return row


def table(found: Found) -> str:
  """The table, as Markdown."""
  lines = [
    "# What happened to runs on purpose, and what came of it",
    "",
    "Written by scripts/fault_campaign.py, which fails where a check of tests/faulty_runs.py does."
    " ResNet-9 of width 4, on the 1,500 digits of configs/quickstart.py (the resident feed) and on"
    " 160 small JPEGs (the stream), gloo between processes; a checkpoint every"
    f" {faulty_runs.INTERVAL} s, heartbeat_seconds={faulty_runs.HEARTBEAT}. Exit codes are in the"
    " order of the processes, -9 and -19 those that the campaign killed or stopped. Seconds run"
    " from the fault to the last other process's end, on a machine that others used too.",
    "",
  ]
  if "kills" in found:
    part = found["kills"]
    rows = part["rows"]
    total = sum(row["kills"] for row in rows)
    good = not any("error" in row for row in rows)
    lines += [
      f"## {total} times kill -9 of the whole job",
      "",
      part["made"],
      "",
      "Every start went on from the newest checkpoint that was there at the kill, none was passed"
      " over, and every run ended with the arrays (parameters, running statistics, momentum) and"
      " rows of the undisturbed run of as many processes, bit by bit."
      if good
      else "NOT all as it should be: see the last column.",
      "",
      "| feed | processes | kills | before the first step | in training | in a save | runs |"
      " seconds since the last checkpoint, median / most | |",
      "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
      moments, ages = row.get("moments", {}), row.get("ages") or [math.nan]
      lines.append(
        f"| {row['feed']} | {row['processes']} | {row['kills']} | {moments.get('start', '')} |"
        f" {moments.get('training', '')} | {moments.get('saving', '')} | {row.get('runs', '')} |"
        f" {statistics.median(ages):.2f} / {max(ages):.2f} | {cell(row.get('error', 'same bits'))}"
        f" |"
      )
    lines.append("")
  for name, make in PARTS.items():
    if name not in found:
      continue
    part = found[name]
    lines += [
      f"## {(make.__doc__ or name).rstrip('.')}",
      "",
      part["made"],
      "",
      "| fault | printed | exit codes | seconds | afterwards |",
      "|---|---|---|---|---|",
    ]
    for row in part["rows"]:
      if "fault" in row:
        codes = ", ".join(map(str, row["codes"]))
        cells = [row["fault"], row["printed"], codes, f"{row['seconds']:.1f}", row["after"]]
      else:
        cells = [f"NOT AS IT SHOULD BE: {row['error']}" if "error" in row else row["skipped"]]
        cells += [""] * 4
      lines.append(f"| {' | '.join(map(cell, cells))} |")
    lines.append("")
  return "\n".join(lines)


def cell(text: str) -> str:
  """The text without characters that break a table."""
  short = " ".join(text.replace("|", "/").split())
  return short[:500]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--kills", type=int, default=50)
  parser.add_argument("--out", type=pathlib.Path, default=ROOT / "results" / "faults.md")
  parser.add_argument("--parts", default=",".join(["kills", *PARTS]))
  parser.add_argument("--jobs", type=int, default=3, help="parts that run side by side")
  parser.add_argument("--programs", type=pathlib.Path, help="cache of compiled programs")
  arguments = parser.parse_args()
  parts = arguments.parts.split(",")
  unknown = set(parts) - {"kills", *PARTS}
  if unknown:
    parser.error(f"no such part: {', '.join(unknown)}")
  store = arguments.out.with_suffix(".json")
  found: Found = json.loads(store.read_text()) if store.exists() else {}
  lock = threading.Lock()

  def keep(part: str, rows: list[Found]) -> None:
    machine = f"{describe_device()}, {platform.system()} {platform.release()}"
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    date = datetime.date.today().isoformat()
    with lock:
      found[part] = {"made": f"{date}, seed {arguments.seed}; {machine}; {used}.", "rows": rows}
      text = json.dumps(found, indent=1).replace(str(folder), "FOLDER")
      store.write_text(text + "\n")
      arguments.out.write_text(table(json.loads(text)))

  with tempfile.TemporaryDirectory(prefix="jaxspeed-faults-") as temporary:
    folder = pathlib.Path(temporary)

    def lab(name: str) -> Lab:
      (folder / name).mkdir()
      return Lab(folder / name, arguments.programs or folder / "programs")

    # Kills are divided as evenly as possible; the seed decides which lanes get one more.
    each, rest = divmod(arguments.kills, len(LANES))
    more = random.Random(arguments.seed).sample(LANES, rest)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
      kills = [
        pool.submit(kills_of, lab(f"{f}-{c}"), f, c, each + ((f, c) in more), arguments.seed)
        for f, c in LANES
        if "kills" in parts
      ]
      others = [
        pool.submit(rows_of, part, lab(part), functools.partial(keep, part))
        for part in PARTS
        if part in parts
      ]
      if kills:
        keep("kills", [job.result() for job in kills])
      for job in others:
        job.result()
  if any("error" in row for part in found.values() for row in part["rows"]):
    sys.exit(1)


if __name__ == "__main__":
  main()
