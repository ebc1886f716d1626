"""Where a job's code comes from: its working trees, their changes, and the environment."""

import os
import pathlib
import re
import subprocess
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxspeed.launch.executor import SECRET

# Variables that change what a run computes or where it finds its libraries and data.
_ENVIRONMENT = re.compile(
  r"(JAX|JAXSPEED|XLA|PJRT|TPU|CUDA|CUDNN|NCCL|NVIDIA|ROCM|HIP|TF|TFDS|OMP|KMP|MKL|OPENBLAS|MALLOC"
  r"|PYTHON|CONDA|UCX|FI|OMPI|SLURM|SBATCH|SKYPILOT)_?\w*|PATH|LD_LIBRARY_PATH|LD_PRELOAD"
  r"|VIRTUAL_ENV|HOSTNAME|LANG|LC_ALL|TMPDIR|TZ"
)
# Largest diff of a working tree that is stored, in bytes, and untracked files that are named.
_MOST_DIFF, _NAMED = 20_000_000, 100


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
  """The variables that can change a run; what may be a secret is left out, name and value."""
  return {
    name: value
    for name, value in sorted(variables.items())
    if _ENVIRONMENT.fullmatch(name) and not SECRET.search(name)
  }


class Sources(NamedTuple):
  """The working trees that a job's code comes from, and their changes as a patch."""

  trees: list[dict[str, Any]]
  diff: bytes


def sources(*folders: pathlib.Path) -> Sources:
  """The git working trees of some folders; folders outside of any are left out."""
  trees: list[dict[str, Any]] = []
  diff = b""
  roots = [_git(folder, "rev-parse", "--show-toplevel").decode().strip() for folder in folders]
  for root in dict.fromkeys(filter(None, roots)):
    tree = pathlib.Path(root)
    commit = _git(tree, "rev-parse", "HEAD").decode().strip()
    changes = (
      _git(tree, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv") if commit else b""
    )
    untracked = _git(tree, "ls-files", "--others", "--exclude-standard").decode(errors="replace")
    names = untracked.splitlines()
    trees.append({"folder": root, "commit": commit, "changed": bool(changes or names)})
    if not (changes or names):
      continue
    diff += f"# changes of {root} since {commit}\n".encode()
    diff += b"".join(f"# not in git: {name}\n".encode() for name in names[:_NAMED])
    if len(names) > _NAMED:
      diff += f"# and {len(names) - _NAMED} more files that are not in git\n".encode()
    whole = len(changes) <= _MOST_DIFF
    diff += changes if whole else f"# {len(changes)} bytes, too large to store\n".encode()
  return Sources(trees, diff)


def _git(folder: pathlib.Path, *arguments: str) -> bytes:
  command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
  try:
    done = subprocess.run(command, capture_output=True, timeout=60)
  except (OSError, subprocess.SubprocessError):
    return b""
  return done.stdout if done.returncode == 0 else b""
