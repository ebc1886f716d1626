"""A machine with a GPU, and scripts in the place of a benchmark and of a PyTorch record."""

import json

import gpu_day  # tests/scripts/conftest.py puts its folder on the path

H100 = gpu_day.Machine("1 x NVIDIA H100 80GB HBM3", 1, "")
# A script that writes what it was called with, then does what its first argument says.
SCRIPT = """
import json, os, pathlib, sys, time
*arguments, out = sys.argv[1:]
report = {"what": "Fake.", "devices": 1, "said": [["it", "2 s"]], "arguments": arguments}
report |= {"accuracy": 0.1, "pid": os.getpid()}
pathlib.Path(out.removeprefix("--out=")).write_text(json.dumps(report))
print("one", "two", sep="\\n")
if arguments[0] == "fail": sys.exit("no kernel image is available")
if arguments[0] == "hang": time.sleep(60)
"""

# Prints what airbench's scripts print, with the run number in the first row of a run only.
PEER = """
import sys, time
with open(sys.argv[0]) as f: code = f.read()
def row(*cells):
  print("".join("|  %s  " % cell for cell in cells) + "|")
def main(run, seconds):
  row(str(run).rjust(6), "    0", "0.5000", "0.8000", "      ", "0.2000")
  row("      ", " eval", "0.9000", "0.9300", "0.9400", "%0.4f" % seconds)
  print("---", end="\\r", flush=True)
row("run   ", "epoch", "train_acc", "val_acc", "tta_val_acc", "time_seconds")
main("warmup", 9)
for run in range(200): main(run, 0.5 + run)
"""


def kept(tmp_path, name):
  return json.loads((tmp_path / "out" / "gpu_day" / f"{name}.json").read_text())
