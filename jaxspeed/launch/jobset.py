"""A JobSet for Kubernetes without SkyPilot: `train_k8s.yaml` for any number of machines."""

import pathlib

FILES = pathlib.Path(__file__).parent / "files"
_NODES, _GPUS = 2, 8  # in the file


def jobset(nodes: int = _NODES, gpus: int = _GPUS) -> str:
  """The YAML of a run on Kubernetes.

  Args:
    nodes: the number of machines.
    gpus: the number of GPUs of each machine.
  """
  text = (FILES / "train_k8s.yaml").read_text()
  for before in (
    "parallelism: {}",
    "completions: {}",
    "imagenet18.py:{}",
    'value: "{}"',
    "on {} m",
  ):
    text = text.replace(before.format(_NODES), before.format(nodes))
  for before in ("nvidia.com/gpu: {}", "of {} GPUs"):
    text = text.replace(before.format(_GPUS), before.format(gpus))
  return text
