"""Commands of Slurm that only remember, as shell scripts: what a test submits runs where it says.

`calls` has a line for each call, `jobs` one for each job: ID|STATE|NAME.
"""

import os
import pathlib
import subprocess
from collections.abc import Sequence

from fake_jobs import program, python_for

_HEAD = """\
#!/usr/bin/env bash
echo "${0##*/} $*" >>"$FAKE_SLURM/calls"
"""
_UNLESS_DOWN = """\
[ ! -e "$FAKE_SLURM/down" ] || {
  echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
  exit 1
}
"""
_COMMANDS = {
  # The last line of `jobs` may be written without an answer, as if the submission was killed.
  "sbatch": _UNLESS_DOWN
  + """
number=$(($(cat "$FAKE_SLURM/number") + 1))
[ "$number" -le "$(cat "$FAKE_SLURM/most")" ] || {
  echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy" >&2
  exit 1
}
echo "$number" >"$FAKE_SLURM/number"
cat >"$FAKE_SLURM/script.$number"
last=$(sed -n "s/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p" "$FAKE_SLURM/script.$number")
name=$(sed -n "s/^#SBATCH '*--job-name=\\([^']*\\).*/\\1/p" "$FAKE_SLURM/script.$number")
for id in $(seq -f "${number}_%.0f" 0 "$last"); do
  echo "$id|PENDING|$name" >>"$FAKE_SLURM/jobs"
done
[ ! -e "$FAKE_SLURM/silent" ] || {
  cat "$FAKE_SLURM/silent" >&2
  exit 1
}
echo "$number;cluster"
""",
  "squeue": _UNLESS_DOWN
  + """
for word; do
  case $word in --name=*) names=,${word#*=}, ;; esac
done
awk -F'|' -v names="$names" 'index(names, "," $3 ",")' "$FAKE_SLURM/jobs"
""",
  "scancel": _UNLESS_DOWN,
  "scontrol": _UNLESS_DOWN
  + """
case "$1" in
  requeue) [ ! -e "$FAKE_SLURM/refuses" ] ;;
esac
""",
  # Runs the tasks one after the other.
  "srun": """
while [[ $1 == --* ]]; do shift; done
worst=0
for ((SLURM_PROCID = 0; SLURM_PROCID < SLURM_NTASKS; SLURM_PROCID++)); do
  export SLURM_PROCID
  "$@"
  code=$?
  [ "$code" -le "$worst" ] || worst=$code
done
exit "$worst"
""",
}
# A trainer: writes its words down, and ends as the file `codes` says of its task: with a code, with
# a result and 0 (done), by a signal (-9), or with 85 after a SIGTERM to its task (saves).
_TRAINER = """\
echo "$*" >>"$FAKE_SLURM/trained"
echo "task $SLURM_PROCID prints"
code=$(sed -n "$((SLURM_PROCID + 1))p" "$FAKE_SLURM/codes")
case $code in
  done) echo '{}' >"$workdir/result.json"; exit 0 ;;
  saves) kill -TERM "$PPID"; kill -USR1 "$PPID"; exit 85 ;;
  -*) kill "$code" $$; sleep 60 ;;
  *) exit "$code" ;;
esac
"""


class FakeSlurm:
  """Slurm's commands in `folder`/bin, and what they remember in `folder`."""

  def __init__(self, folder: pathlib.Path) -> None:
    self.folder = folder
    self.bin = folder / "bin"
    self.bin.mkdir(parents=True)
    for name, text in _COMMANDS.items():
      program(self.bin / name, _HEAD + text)
    self.python = python_for(folder, _TRAINER)
    for name in ("calls", "jobs", "trained"):
      self.write(name, "")
    self.write("number", "99")
    self.write("most", "9999")

  @property
  def variables(self) -> dict[str, str]:
    """The environment variables that a process needs to find these commands."""
    path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "FAKE_SLURM": str(self.folder)}

  def write(self, name: str, text: str = "") -> None:
    (self.folder / name).write_text(f"{text}\n" if text else "")

  def calls(self) -> list[str]:
    return (self.folder / "calls").read_text().splitlines()

  def set_state(self, id: str, state: str) -> None:
    """Gives a job a state; '' lets Slurm forget it."""
    rows = [line.split("|") for line in (self.folder / "jobs").read_text().splitlines()]
    rows = [[id, state, row[2]] if row[0] == id else row for row in rows]
    self.write("jobs", "\n".join("|".join(row) for row in rows if row[1]))

  def run(
    self, script: pathlib.Path, *arguments: str, codes: Sequence[object], **variables: object
  ) -> subprocess.CompletedProcess[str]:
    """Runs a script as a batch job of as many tasks as there are `codes`, on as many nodes."""
    self.write("codes", "\n".join(map(str, codes)))
    self.write("calls")
    self.write("trained")
    slurm = {
      "SLURM_JOB_ID": "7",
      "SLURM_JOB_NUM_NODES": len(codes),
      "SLURM_NTASKS": len(codes),
      "SLURM_JOB_NODELIST": "n[1-2]",
    } | variables
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    given = {name: str(value) for name, value in slurm.items() if value is not None}
    command = ["bash", str(script), *arguments]
    return subprocess.run(
      command, env=own | self.variables | given, capture_output=True, text=True, timeout=300
    )
