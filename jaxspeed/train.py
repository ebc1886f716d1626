"""Trains a recipe, or resumes the run in its folder.

jaxspeed train quickstart
jaxspeed train imagenet18:4 --config.data.path=PATH --workdir=runs/a
python -m jaxspeed.train --config=mine.py --config.epochs=30

--profile=20:24 writes a trace of steps 20 to 24, counted as `step` in metrics.jsonl, to the folder
"profile" of the run, for TensorBoard and Perfetto. Process 0 traces its devices; of several runs,
the first is traced. On accelerators, data in memory train with one program an epoch: then the
epochs of these steps are traced. Tracing takes time, which the run's clocks count.

--json prints each line as a JSON object, whose "event" is header, note, epoch (the row that
metrics.jsonl has), progress (every minute) or result (the content of result.json; "finished_in" is
the folder of a run that was finished before). --quiet prints the result and errors only, also in
JSON.

To train with several processes, start them with srun, mpirun or a Kubernetes job, or start each by
hand with --coordinator=HOST:PORT --num_processes=N --process_id=I.

Exit codes: 0 done, or saved after SIGTERM; 1 a bug in the program, with its traceback in a file;
2 a mistake, explained in one sentence; 75 another process was lost, or the run hung; 76 a later
start of the run owns its folder; 85 saved after SIGUSR1; 130 saved after Ctrl-C. After 75 and 85
the same command resumes the run.
"""

import dataclasses
import functools
import pathlib
import sys

from absl import flags

from jaxspeed.config import flags as command_line
from jaxspeed.config import output
from jaxspeed.errors import FAULT, MISTAKE, UserError


def main() -> None:
  """Reads the flags and trains."""
  config_flag = command_line.define_config_flag()
  workdir_flag = flags.DEFINE_string(
    "workdir", None, "The run's folder; the default is runs/NAME_OF_THE_RECIPE."
  )
  coordinator_flag = flags.DEFINE_string(
    "coordinator", None, "HOST:PORT where process 0 of several listens: any free port of its host."
  )
  processes_flag = flags.DEFINE_integer(
    "num_processes", None, "The number of processes that train together."
  )
  process_flag = flags.DEFINE_integer("process_id", None, "The number of this process, from 0.")
  profile_flag = flags.DEFINE_string(
    "profile", None, "FIRST:LAST, the steps to trace, counted from 1; see above."
  )

  command_line.define_quiet("header, rows, notes or progress")
  json_flag = flags.DEFINE_bool("json", False, "Prints a JSON object a line; see above.")

  def run(arguments: list[str]) -> None:
    from jaxspeed.cluster import processes
    from jaxspeed.cluster.folder_lock import read_owner
    from jaxspeed.cluster.peers import find_peers
    from jaxspeed.cluster.signals import Stopped
    from jaxspeed.devices.mesh import keep_host_memory
    from jaxspeed.records.console import Screen
    from jaxspeed.run.folder import run_folder
    from jaxspeed.run.profile import parse_steps
    from jaxspeed.run.run import COMMAND
    from jaxspeed.run.session import train

    command_line.nothing_left(arguments)

    config = config_flag.value
    screen = functools.partial(Screen, as_json=json_flag.value, quiet=output.is_quiet())
    steps = None if profile_flag.value is None else parse_steps(profile_flag.value)
    hooks = dataclasses.replace(COMMAND, make_screen=screen, profile=steps)
    keep_host_memory()
    peers = find_peers(coordinator_flag.value, processes_flag.value, process_flag.value)
    workdir = run_folder(workdir_flag.value, config)
    try:
      with processes.exit_on_lost_peer():
        train(config, workdir, peers, given=config_flag.overrides, hooks=hooks)
    except Stopped as stopped:
      if processes.is_primary():
        output.say(stopped)
      sys.exit(stopped.exit_code)
    except UserError as error:
      if not processes.several():
        raise
      output.say(f"{processes.whoami()}: {error}")
      # A normal exit would wait for the other processes, which wait for this one.
      processes.exit_now(MISTAKE)
    except Exception as error:
      path = pathlib.Path(workdir, f"traceback_{peers.process}.txt" if peers else "traceback.txt")
      output.report(error, path if read_owner(path.parent) else None)
      if processes.several():
        processes.exit_now(FAULT)
      sys.exit(FAULT)

  command_line.run(run, output_is_result=False, command="train")


if __name__ == "__main__":
  main()
