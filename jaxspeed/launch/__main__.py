"""Submits runs of many jobs, and looks at them.

  python -m jaxspeed.launch submit SWEEP.py --dry-run    # the scripts; nothing is written
  python -m jaxspeed.launch submit SWEEP.py              # SWEEP.py defines sweep() -> Run
  python -m jaxspeed.launch status RUN
  python -m jaxspeed.launch logs RUN/JOB -f
  python -m jaxspeed.launch cancel RUN/JOB ...           # or: cancel RUN --all
  python -m jaxspeed.launch retry RUN --failed           # or: retry RUN/JOB ...
  python -m jaxspeed.launch resume RUN                   # jobs of this machine, after a reboot
  python -m jaxspeed.launch results RUN
  python -m jaxspeed.launch tensorboard RUN
  python -m jaxspeed.launch script slurm                 # a batch job of one training
  python -m jaxspeed.launch script kubernetes --nodes=16 # a JobSet

RUN is the folder ROOT/NAME, by default the current one. With submit, --config.FIELD=VALUE sets a
field of all jobs.
"""

from jaxspeed.config import flags as command_line
from jaxspeed.launch import command


def main() -> None:
  """Reads the flags and runs the command."""
  command.define_flags()
  config_flag = command_line.define_overrides()
  command_line.run(lambda arguments: command.run(arguments, config_flag.overrides))


if __name__ == "__main__":
  main()
