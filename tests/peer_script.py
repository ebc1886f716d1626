"""A script that stands for a PyTorch record, for tests of `scripts/bench_cifar.py`."""

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
