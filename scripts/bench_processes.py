"""Time a training step of one process and of two with half of the batch each, turn by turn.

    python scripts/bench_processes.py --turns=5 --out=processes.json

Both do the same work on the same cores: the one process computes its batch in two parts, so that
norms see as many images. The two processes also exchange gradients and agree after each step.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from jaxspeed.records import provenance
from jaxspeed.records.writer import read_metrics

ROOT = pathlib.Path(__file__).parents[1]


def train(flags: Sequence[str], folder: pathlib.Path, processes: int) -> float:
  """Returns a run's median seconds per step, over the epochs after the first.

  Raises:
    RuntimeError: a process failed; the message is what the processes printed.
  """
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
  command = [sys.executable, "-m", "jaxspeed.train", f"--workdir={folder}", *flags]
  command.append(f"--config.accumulate={2 // processes}")
  started = []
  for i in range(processes):
    peers = [f"--coordinator=127.0.0.1:{port}", f"--num_processes={processes}", f"--process_id={i}"]
    # CPU devices wait for each other in threads of one pool, whose size is PJRT_NPROC.
    variables = os.environ | {
      "JAX_PLATFORMS": "cpu",
      "PJRT_NPROC": "16",
      "JAX_NUM_CPU_DEVICES": "1",
    }
    started.append(
      subprocess.Popen(
        [*command, *(peers if processes > 1 else [])],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
      )
    )
  printed = [process.communicate()[0] for process in started]
  if any(process.returncode for process in started):
    raise RuntimeError("\n".join(printed))
  rows = read_metrics(folder)
  return statistics.median(row["step_seconds"] for row in rows[1:])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--width", type=int, default=32, help="of ResNet-9")
  parser.add_argument("--batch", type=int, default=500, help="of 8 x 8 digits, all processes")
  parser.add_argument("--epochs", type=int, default=6, help="of a run; the first is not counted")
  parser.add_argument("--turns", type=int, default=5, help="runs of each kind")
  parser.add_argument("--out", type=pathlib.Path, help="JSON file for the figures")
  options = parser.parse_args()

  seconds: dict[int, list[float]] = {1: [], 2: []}
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    flags = [
      "--config=configs/quickstart.py",
      f"--config.compile_cache={folder}/programs",
      f"--config.model.width={options.width}",
      f"--config.batch_size={options.batch}",
      f"--config.epochs={options.epochs}",
      "--config.eval.every_epochs=1000",
    ]
    for turn in range(options.turns):
      for processes in (1, 2) if turn % 2 == 0 else (2, 1):
        took = train(flags, folder / f"{turn}-{processes}", processes)
        seconds[processes].append(took)
        print(
          f"turn {turn + 1}, {processes} process{'es'[: 2 * processes - 2]}: {took:.3f} s a step"
        )
  ratios = [two / one for one, two in zip(seconds[1], seconds[2], strict=True)]
  report = {
    "what": "Seconds of a training step of one process and of two with half of the batch each, "
    "over gloo on one host, in turns; medians of the epochs behind the first",
    "net": f"ResNet-9 of width {options.width}, batch {options.batch} of 8 x 8 images",
    "device": provenance.describe_device(),
    "versions": provenance.versions(),
    "n": options.turns,
    "step_seconds": {str(n): took for n, took in seconds.items()},
    "ratios": ratios,
    "median_ratio": statistics.median(ratios),
  }
  print(f"two processes against one: {report['median_ratio']:.3f} (median of {options.turns})")
  if options.out:
    options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
  main()
