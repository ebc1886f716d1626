"""How many GPUs the decoding of a data path feeds."""

import pathlib
import shlex
from collections.abc import Iterator
from typing import Any

from jaxspeed.doctor import child
from jaxspeed.doctor.findings import Finding, figure, hint, mend
from jaxspeed.errors import printable
from jaxspeed.scaling.hardware import DEVICES, cluster_of
from jaxspeed.scaling.predict import compute_s

# Seconds for TensorFlow's import, 3 to 8, and a second of decoding.
_SECONDS = 30.0
# The side in pixels of the decoded crops.
SIDE = 224


def check(root: pathlib.Path) -> Iterator[Finding]:
  """Decodes a sample of a data path as a run does, for a second; facts: `images_per_s`, ..."""
  path, quoted = printable(str(root)), shlex.quote(str(root))
  quiet = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
  job = {"path": str(root.absolute()), "side": SIDE}
  ended = child.run("jaxspeed.doctor.decode", job, seconds=_SECONDS, **quiet)
  if ended.code is None:
    what = f"{path}: decoding did not end within {_SECONDS:.0f} s, as on a busy machine."
    yield hint(what, f"python -m jaxspeed.doctor --data={quoted}")
    return
  failed: dict[str, Any] = {"problem": f"{path}: decoding failed: {ended.reason}"}
  row = next(iter(ended.lines), failed)
  index = f"python -m jaxspeed.prepare index {quoted}"
  if problem := row.get("problem"):
    yield mend(problem, "pip install 'jaxspeed[imagenet]'" if "TensorFlow" in problem else index)
    return
  kind = max(DEVICES, key=lambda each: DEVICES[each].images_per_s)
  batch = DEVICES[kind].batch
  feeds = row["images_per_s"] * compute_s(batch, SIDE, cluster_of(DEVICES[kind])) / batch
  yield Finding(
    f"{path}: {figure(row['images_per_s'])} images/s of {SIDE} px decoded, which feeds {feeds:.2g} "
    f"{kind.upper()} with ResNet-50",
    facts=row | {"gpu": kind, "gpus_fed": feeds},
  )
  if row["broken"]:
    yield mend(f"{row['broken']} of {row['images']} sampled images cannot be decoded.", index)
