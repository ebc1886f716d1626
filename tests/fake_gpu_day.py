"""A machine with a GPU, and a script in the place of a benchmark, for tests of the GPU day."""

import importlib
import json
import sys

from commands import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
gpu_day = importlib.import_module("gpu_day")

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


def kept(tmp_path, name):
  return json.loads((tmp_path / "out" / "gpu_day" / f"{name}.json").read_text())
