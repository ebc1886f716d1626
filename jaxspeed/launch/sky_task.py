"""The task of SkyPilot that runs a job: a YAML file whose `run` records and restarts like Slurm's.

No library writes it: a user reads its comments, and the lines keep their order.
"""

import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from jaxspeed.errors import LOST_PEER, REQUEUE
from jaxspeed.files import dump_json
from jaxspeed.launch.executor import Executor, Task

# The variable with the name of the submission, which changes with each one while the file stays.
TOKEN = "JAXSPEED_TOKEN"
# The folder on the machines into which SkyPilot copies `workdir`, and in which `run` starts.
_WORKDIR = "~/sky_workdir"
# Exit codes after which SkyPilot starts a job again, however often.
RESTARTED = (REQUEUE, LOST_PEER)

# In parentheses: after it SkyPilot appends lines to `run` that wait for uploads and leave with the
# code of what came before.
_BODY = r"""
token=${JAXSPEED_TOKEN:-by-hand} job=${SKYPILOT_MANAGED_JOB_ID:-0}
[ "$token" != by-hand ] || token=by-hand-$job
rank=${SKYPILOT_NODE_RANK:-0} nodes=${SKYPILOT_NUM_NODES:-1} ips=${SKYPILOT_NODE_IPS:-127.0.0.1}
own=$record/tasks/$rank.tsv
mkdir -p "$record/tasks" "$record/logs" || exit 2

# The earlier starts of this submission, by the record; a machine that is taken away writes no end.
# Process 0 alone writes job.tsv, and may or may not have noted this start already.
starts() { cat "$1" 2>/dev/null | grep -c "^[0-9]*"$'\t'"$token"$'\t'"started"$'\t'; }
restarts=$(starts "$record/job.tsv")
if [ "$rank" != 0 ]; then
  mine=$(starts "$own")
  restarts=$((mine > restarts - 1 ? mine : restarts - 1))
fi
# Those that left a new checkpoint do not count against the bound.
saved=", with a new checkpoint"
kept=$(cat "$record/job.tsv" 2>/dev/null | grep -c $'\t'"$token"$'\t'"requeued.*$saved$")
vain=$((restarts - kept))
newest() { ls "$workdir/checkpoints" 2>/dev/null | grep -x "[0-9]*" | sort -n | tail -n 1; }
before=$(newest)
# By it a new start may take the folder over from the last one.
export JAXSPEED_RESTARTS=$restarts
# One process a node. The port differs between jobs, which may share machines.
export JAX_COORDINATOR_ADDRESS=${ips%%$'\n'*}:$((61440 + job % 4096))
export JAX_NUM_PROCESSES=$nodes JAX_PROCESS_ID=$rank
echo "$script: SkyPilot job $job, process $rank of $nodes, restart $restarts, $(date -Is)"

line() { printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$(date +%s)" "$token" "$1" "$restarts" "$2" "$3"; }
note_job() {
  # A start that was replaced, on a machine that was believed lost, says nothing about the job.
  [ "$rank" = 0 ] && [ "$(starts "$record/job.tsv")" -le $((restarts + 1)) ] || return 0
  line "$1" "${ips//$'\n'/,}" "$2" >>"$record/job.tsv"
}
note_job started "$job"
line started "$HOSTNAME" "" >>"$own"

# A notice that the machine goes away makes all processes save and leave with 85. tee outlives the
# signal, so that the trainer can still print.
told= trainer=
trap 'told=1; [ -z "$trainer" ] || kill -USR1 "$trainer" 2>/dev/null' TERM USR1
exec 3> >(trap "" TERM USR1; exec tee -a "$record/logs/$rank.log")
tee=$!
"${command[@]}" >&3 2>&1 3>&- &
trainer=$!
exec 3>&-
[ -z "$told" ] || kill -USR1 "$trainer"
while :; do
  told=
  wait "$trainer"
  code=$?
  # A signal interrupts `wait`; afterwards the code is still there.
  [ -n "$told" ] || break
done
line ended "$HOSTNAME" "$code" >>"$own"
# The last lines are written by now, unless something of the trainer's still runs.
for _ in $(seq 50); do kill -0 "$tee" 2>/dev/null || break; sleep 0.1; done

# Another process that ended for a reason that a new start would repeat: SkyPilot ends all processes
# after the first that fails, so that this one only knows that it lost another.
culprit() {
  [ "$nodes" -gt 1 ] || return
  sleep 3
  for file in "$record"/tasks/*.tsv; do
    while IFS=$'\t' read -r _ of what restart _ its; do
      [ "$of $what $restart" = "$token ended $restarts" ] || continue
      case $its in
        0 | 75 | 85 | 12[89] | 1[3-9]? | 2??) ;;
        *) echo "$its $(basename "$file" .tsv)" ;;
      esac
    done <"$file"
  done | head -n 1
}

# Ends the job for good: with a code after which SkyPilot does not start it again.
give_up() {
  echo "$script: $2" >&2
  note_job failed "$1 $2"
  case $1 in 75 | 85) exit 1 ;; *) exit "$1" ;; esac
}

restart() {
  if [ "$rank" = 0 ]; then
    found=$(culprit)
    [ -z "$found" ] ||
      give_up "${found% *}" "process ${found#* } ended with exit code ${found% *}; not restarted."
  fi
  if [ "$max_restarts" = 0 ] || [ "$(newest)" = "$before" ]; then
    saved=
    [ "$vain" -lt "$max_restarts" ] ||
      give_up "$code" "$2; not restarted after $vain restarts without a new checkpoint: look into \
the log, then retry."
  fi
  echo "$script: $2; SkyPilot starts the job again."
  note_job requeued "$2$saved"
  exit "$1"
}

case $code in
  0)
    # Process 0 says whether the run is finished: the others may end before it has written that.
    [ "$rank" = 0 ] || exit 0
    if [ ! -e "$workdir/result.json" ]; then
      code=1
      restart 85 "saved after SIGTERM, not finished"
    fi
    note_job done ""
    echo "$script: done."
    exit 0
    ;;
  85) restart 85 "saved, to be started again" ;;
  75) restart 75 "a process was lost" ;;
  # Another start of the job runs elsewhere.
  76) exit 76 ;;
  # 128 + signal: killed, by the kernel for its memory, by a fault of its GPU.
  12[89] | 1[3-9]? | 2??) restart 75 "killed by signal $((code - 128))" ;;
  *) give_up "$code" "ended with exit code $code (see above); not restarted." ;;
esac
"""


def task_yaml(
  task: Task,
  executor: Executor,
  *,
  nodes: int,
  resources: Mapping[str, str | int | bool],
  sync: str,
  folder: str,
  buckets: Mapping[str, tuple[str, str]],
  volumes: Mapping[str, str],
) -> str:
  """The YAML file of a managed job.

  Args:
    task: the job.
    executor: what runs it.
    nodes: the number of machines.
    resources: SkyPilot's fields of a machine; those that are '', 0 or False are left out.
    sync: the folder that is copied to the machines.
    folder: the folder in which the command starts, relative to `sync`.
    buckets: URL and mode of the buckets by the path at which they are mounted.
    volumes: names of volumes by the path at which they are mounted.
  """
  blocks = [
    [
      f"# Job {task.name} of the run {task.run}, written by jaxspeed.launch for SkyPilot.",
      "# After a failure `python -m jaxspeed.launch retry` submits it again; it resumes from its",
      "# newest checkpoint. By hand: sky jobs launch task.yaml",
      f"name: {scalar('jaxspeed-' + slug(task.name))}",
      "# One process on each drives all its GPUs.",
      f"num_nodes: {nodes}",
    ],
    [*_resources(executor.max_restarts, resources)],
    [f"# Copied to {_WORKDIR} on each machine.", f"workdir: {scalar(sync)}"],
    [*_mounts(buckets, volumes)],
    [
      "envs:",
      "  # The submission, which jaxspeed.launch sets when it submits this file.",
      f"  {TOKEN}: by-hand",
      *(f"  {name}: {scalar(value)}" for name, value in sorted(executor.env.items())),
    ],
    ["setup: |", *_indented("\n".join(["set -e", *executor.setup]))] if executor.setup else [],
    ["run: |", *_indented(_run(task, executor.max_restarts, folder))],
  ]
  return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _resources(max_restarts: int, resources: Mapping[str, str | int | bool]) -> Iterator[str]:
  yield "resources:"
  for name, value in resources.items():
    if value:
      yield f"  {name}: {scalar(value) if isinstance(value, str) else dump_json(value)}"
  yield from (
    "  # The machines are replaced when they are taken away, and the job starts again.",
    "  job_recovery:",
    "    # Other codes are those of mistakes and faults, which another start would repeat.",
    "    max_restarts_on_errors: 0",
    f"    # {REQUEUE}: saved, to be started again; {LOST_PEER}: a process was lost or killed.",
    f"    # After {max_restarts} restarts in vain `run` below leaves with another code.",
    f"    recover_on_exit_codes: [{', '.join(map(str, RESTARTED))}]",
  )


def _mounts(buckets: Mapping[str, tuple[str, str]], volumes: Mapping[str, str]) -> Iterator[str]:
  if buckets:
    yield "# MOUNT_CACHED: written on the machine's disk, and uploaded from there."
    yield "file_mounts:"
    for path, (url, mode) in sorted(buckets.items()):
      yield from (f"  {path}:", f"    source: {scalar(url)}", f"    mode: {mode}")
  if volumes:
    yield "volumes:"
    yield from (f"  {path}: {scalar(name)}" for path, name in sorted(volumes.items()))


def _run(task: Task, max_restarts: int, folder: str) -> str:
  lines = [
    "set -uo pipefail",
    f"script={shlex.quote(task.name)}",
    f"workdir={shlex.quote(str(task.folder))}",
    "record=$workdir/launch",
    f"max_restarts={max_restarts}",
    *([] if folder == "." else [f"cd {shlex.quote(folder)} || exit 2"]),
    f"command=({shlex.join(task.command)})",
  ]
  return "(\n" + "\n".join(lines) + "\n" + _BODY + ")\n"


def _indented(text: str) -> list[str]:
  return textwrap.indent(text, "  ").splitlines()


def slug(name: str) -> str:
  """A name in the characters that SkyPilot allows, which no two of ._- follow each other in."""
  short = re.sub("[^A-Za-z0-9]+", lambda found: "." if found[0] == "." else "-", name)
  return short[:40].strip("-.") or "job"


def scalar(text: Any) -> str:
  """A text as a scalar of YAML: plain where that cannot be taken for anything else."""
  plain = re.fullmatch("[A-Za-z/][A-Za-z0-9_./:-]*[A-Za-z0-9]", text)
  if plain and text.lower() not in ("true", "false", "yes", "no", "on", "off", "null"):
    return text
  # A string of JSON is one of YAML.
  return dump_json(text, only_ascii=False)
