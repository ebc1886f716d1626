"""The batch scripts for Slurm: those of single jobs, of arrays, and `scripts/train.sbatch`.

All of them end with the same `_BODY`, which runs the command on the nodes of the job and puts the
job back into the queue where another start can help.
"""

import shlex
from collections.abc import Sequence

from jaxspeed.launch.executor import Executor, Task, exports

# Before the time limit every task is told to save and to leave with 85. Slurm looks every 60 s or
# so and may be as much early, never late.
SIGNAL = "--signal=USR1@{seconds}"

_STANDALONE = """\
#!/usr/bin/env bash
# One run of jaxspeed.train on the nodes of a Slurm job, put back into the queue until it is done.
#   sbatch --nodes=16 --gpus-per-node=8 --exclusive --time=12:00:00 scripts/train.sbatch \\
#     --config=configs/imagenet18.py:16 --workdir=runs/a --config.data.path=/data/imagenet
# What follows the script's name goes to jaxspeed.train as it is; --workdir lies on a disk that all
# nodes see. One task drives all GPUs of its node; --ntasks-per-node=8: one task a GPU.
#   scontrol requeue JOB     saves, and goes on when the job starts again
#   scancel JOB              saves, and ends the job; the same sbatch command goes on with the run
# PYTHON (python) and MAX_RESTARTS (20, without new checkpoints) are read from the environment.
# Written by `python -m jaxspeed.launch script slurm`; the jobs of a sweep get the same lines.
#SBATCH --job-name=jaxspeed
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x-%j.out
# The log of all incarnations is one file.
#SBATCH --open-mode=append
# Slurm itself requeues after a failed node or a preemption.
#SBATCH --requeue
# Before the time limit every task is told to save and to leave with 85. Slurm looks every 60 s or
# so and may be as much early, never late; 300 s are enough for a checkpoint on a slow disk.
#SBATCH --signal=USR1@300
set -uo pipefail
script=train.sbatch

fail() {
  echo "$script: $*" >&2
  exit 2
}

[ -n "${SLURM_JOB_ID:-}" ] ||
  fail "this is a batch script: sbatch scripts/train.sbatch --config=FILE --workdir=DIR."
workdir=
for argument in "$@"; do
  case "$argument" in --workdir=*) workdir=${argument#*=} ;; esac
done
# A finished run is known by its result.json, so the folder must be known here.
[ -n "$workdir" ] || fail "--workdir=DIR is missing behind the script's name."
max_restarts=${MAX_RESTARTS:-20}
command=("${PYTHON:-python}" -m jaxspeed.train "$@")
output=(--label)
# A job of a sweep keeps a record of what happens to it.
record=
token=
"""

_BODY = r"""
restarts=${SLURM_RESTART_COUNT:-0}
# Part of an array: its number alone would be that of the whole array.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
echo "$script: job $job on $SLURM_JOB_NUM_NODES nodes ($SLURM_JOB_NODELIST)," \
  "$SLURM_NTASKS tasks, restart $restarts, $(date --iso-8601=seconds)"

note() {
  [ -z "$record" ] || printf '%s\t%s\t%s\t%s\t%s\t%s\n' \
    "$(date +%s)" "$token" "$1" "$restarts" "$SLURM_JOB_NODELIST" "$2" >>"$record/job.tsv"
}

# Since Slurm 22.05 srun does not take this from sbatch.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

requeue_flag() {
  scontrol show job "$job" | grep -o "Requeue=[01]"
}

# What a task runs. The traps keep this shell alive while the trainer uses a signal to save; unlike
# ignored signals they are not inherited. srun reports the highest code of all tasks, so:
# 2, a user's mistake, must not hide behind the codes of the tasks that are killed after it: it
# takes the job's right to be requeued away;
# 143: srun ended this task because another one had ended, whose own code says why.
# shellcheck disable=SC2016  # the inner shell's variables
task='trap : TERM USR1
  job=$1 record=$2 token=$3 restarts=$4
  shift 4
  note() {
    [ -z "$record" ] || printf "%s\t%s\t%s\t%s\t%s\t%s\n" "$(date +%s)" "$token" "$1" "$restarts" \
      "$HOSTNAME" "$2" >>"$record/tasks/$SLURM_PROCID.tsv"
  }
  note started ""
  "$@"
  code=$?
  note ended "$code"
  case $code in
    2) scontrol update JobId="$job" Requeue=0 ;;
    143) code=75 ;;
  esac
  exit $code'
newest() { ls "$workdir/checkpoints" 2>/dev/null | grep -x "[0-9]*" | sort -n | tail -n 1; }
flag=$(requeue_flag)
before=$(newest)
note started "$job"

# --kill-on-bad-exit: after one lost task the others, which may hang in a collective, are ended.
# --cpu-bind: the input pipeline of a task wants all processors of the node, not one core.
# This shell has no trap on SIGTERM on purpose: scancel and scontrol requeue signal it too, it ends
# at once, and what follows here cannot put a cancelled job back into the queue. When a job of
# higher priority comes, the tasks alone are signalled.
srun --kill-on-bad-exit=1 --cpu-bind=none "${output[@]}" \
  bash -c "$task" task "$job" "$record" "$token" "$restarts" "${command[@]}"
code=$?

# Ends the job for good.
give_up() {
  echo "$script: $2" >&2
  note failed "$1 $2"
  exit "$1"
}

requeue() {
  if [ "$(requeue_flag)" != "$flag" ]; then
    give_up 2 "a task ended with 2: the command or the data are wrong (see above); not restarted."
  fi
  # A start that left a new checkpoint does not count; 0 stands for no restart at all.
  if [ "$max_restarts" = 0 ] || [ "$(newest)" = "$before" ]; then
    counts=${record:-$workdir}/restarts.txt
    vain=$((restarts + 1))
    { echo "$job" >>"$counts"; } 2>/dev/null && vain=$(grep -cx "$job" "$counts")
    [ "$vain" -le "$max_restarts" ] ||
      give_up "$2" "$1; not put back into the queue after $((vain - 1)) restarts without a new \
checkpoint: look into the log, and submit again."
  fi
  echo "$script: $1; back into the queue."
  note requeued "$1"
  scontrol requeue "$job" ||
    give_up "$2" "$1; scontrol could not requeue the job: submit it again."
}

case $code in
  0)
    if [ -e "$workdir/result.json" ]; then
      note done ""
      echo "$script: done."
    else
      # After SIGTERM the trainer saves and ends with 0; whoever sent it to one task, or wants the
      # nodes for another job, does not restart this one: a job whose script ends is finished.
      requeue "saved after SIGTERM, not finished" 1
    fi
    ;;
  85) requeue "saved before the time limit" 85 ;;
  75) requeue "a process was lost" 75 ;;
  # 128 + signal: a task was killed, by the kernel for its memory, by a fault of its GPU, by srun.
  12[89] | 1[3-9]? | 2??) requeue "a task was killed by signal $((code - 128))" "$code" ;;
  *) give_up "$code" "a task ended with exit code $code (see above); not restarted." ;;
esac
"""


def standalone() -> str:
  """The text of `scripts/train.sbatch`."""
  return _STANDALONE + _BODY


def job_script(task: Task, executor: Executor, options: Sequence[str]) -> str:
  """The batch script of one job.

  Args:
    task: the job.
    executor: what runs it.
    options: options of sbatch.
  """
  lines = [
    "#!/usr/bin/env bash",
    f"# Job {task.name} of the run {task.run}, written by jaxspeed.launch. After a failure",
    "# `python -m jaxspeed.launch retry` submits it again; it resumes from its newest checkpoint.",
    *_directives([*options, f"--output={task.record / 'logs' / 'batch.log'}"]),
    "set -uo pipefail",
    f"script={shlex.quote(task.name)}",
    f"workdir={shlex.quote(str(task.folder))}",
    "record=$workdir/launch",
    "# The submission that this start belongs to.",
    "token=${1:-by-hand}",
    f"max_restarts={executor.max_restarts}",
    "",
    "# Beside an array's script, whose output has no name of a job.",
    'if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then exec >>"$record/logs/batch.log" 2>&1; fi',
    f"cd {shlex.quote(str(task.cwd))} || exit 2",
    *exports(executor.env),
    *executor.setup,
    "# What follows looks at exit codes itself.",
    "set +e",
    f"command=({shlex.join(task.command)})",
    'output=(--output="$record/logs/%t.log" --open-mode=append)',
  ]
  return "\n".join(lines) + "\n" + _BODY


def array_script(
  tasks: Sequence[Task], run: str, options: Sequence[str], *, log: str, at_once: int
) -> str:
  """The batch script of an array, whose task i runs the script of the job i.

  Args:
    tasks: the jobs.
    run: the name of their run.
    options: options of sbatch.
    log: the file for what happens before a job's own log is open; %a is the number of the job.
    at_once: the most jobs that run at the same time; 0: no limit.
  """
  limit = f"%{at_once}" if at_once else ""
  lines = [
    "#!/usr/bin/env bash",
    f"# {len(tasks)} jobs of the run {run}, written by jaxspeed.launch: task i runs the job i.",
    *_directives([*options, f"--array=0-{len(tasks) - 1}{limit}", f"--output={log}"]),
    "jobs=(",
    *(f"  {shlex.quote(str(task.folder))}" for task in tasks),
    ")",
    'exec bash "${jobs[$SLURM_ARRAY_TASK_ID]}/launch/script.sh" "$1"',
  ]
  return "\n".join(lines) + "\n"


def _directives(options: Sequence[str]) -> list[str]:
  # sbatch splits a directive like a shell does, without its variables.
  return [f"#SBATCH {shlex.quote(option)}" for option in options]
