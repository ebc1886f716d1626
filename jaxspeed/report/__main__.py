"""Writes one HTML file that shows one run or compares many.

  python -m jaxspeed.report runs/a --out=report.html
  python -m jaxspeed.report runs/a runs/b               # compared; writes report.html
  python -m jaxspeed.report sweeps/rates                # all runs in a folder, as of a sweep
  python -m jaxspeed.report runs/a --watch=30           # written again every 30 s until it ends

The file needs no network, no server and no data. Runs on the same data whose configs differ only
in their seed are one group with a mean and an interval; a repeated seed counts once. A run
that is still training is shown as far as it is.
"""

from absl import flags

from jaxspeed.config import flags as command_line


def main() -> None:
  """Reads the flags and writes the report."""
  out = flags.DEFINE_string("out", "report.html", "The file to write; an existing one is replaced.")
  watch = flags.DEFINE_float(
    "watch", None, "Seconds between two reports, until all runs have ended.", 1.0, 86400.0
  )

  def run(arguments: list[str]) -> None:
    from jaxspeed.report import command

    command.run(arguments, out.value, watch=watch.value or 0.0)

  command_line.run(run, output_is_result=False)


if __name__ == "__main__":
  main()
