"""The state of the code and the environment at a submission, stored once for all its jobs."""

import hashlib
import os
import pathlib
import re
import subprocess
from collections.abc import Mapping

from jaxspeed.files import dump_json, write_atomically
from jaxspeed.launch.executor import SECRET
from jaxspeed.launch.runs import LAUNCHER

# Variables that change what a run computes or where it finds its libraries and data.
_ENVIRONMENT = re.compile(
  r"(JAX|JAXSPEED|XLA|PJRT|TPU|CUDA|CUDNN|NCCL|NVIDIA|ROCM|HIP|TF|TFDS|OMP|KMP|MKL|OPENBLAS|MALLOC"
  r"|PYTHON|CONDA|UCX|FI|OMPI|SLURM|SBATCH|SKYPILOT)_?\w*|PATH|LD_LIBRARY_PATH|LD_PRELOAD"
  r"|VIRTUAL_ENV|HOSTNAME|LANG|LC_ALL|TMPDIR|TZ"
)
_NAMED = 100  # most untracked files that are named


def store(run: pathlib.Path, *folders: pathlib.Path) -> str:
  """Writes down the working trees of some folders and the environment; returns the file's name.

  `RUN/.launch/sources/NAME.patch` has the `environment` as comments, the commit of each tree, and
  the changes since. The same state has the same name.
  """
  variables = [f"# {name}={dump_json(value)}\n" for name, value in environment().items()]
  content = "".join(variables).encode() + working_trees(*folders)
  path = run / LAUNCHER / "sources" / f"{hashlib.sha256(content).hexdigest()[:12]}.patch"
  path.parent.mkdir(parents=True, exist_ok=True)
  write_atomically(path, content, sync=False)
  return path.stem


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
  """The variables that can change a run; what may be a secret is left out, name and value."""
  return {
    name: value
    for name, value in sorted(variables.items())
    if _ENVIRONMENT.fullmatch(name) and not SECRET.search(name)
  }


def working_trees(*folders: pathlib.Path) -> bytes:
  """The commits of the git working trees of some folders, and their changes, as one patch."""
  parts: list[bytes] = []
  roots = [_git(folder, "rev-parse", "--show-toplevel").decode().strip() for folder in folders]
  for root in dict.fromkeys(filter(None, roots)):
    commit = _git(root, "rev-parse", "HEAD").strip() or b"no commit"
    names = _git(root, "ls-files", "--others", "--exclude-standard").splitlines()
    others = b"".join(b"# not in git: %b\n" % name for name in names[:_NAMED])
    changes = _git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv")
    parts += [b"# %b at %b\n" % (root.encode(), commit), others, changes]
  return b"".join(parts)


def _git(folder: str | pathlib.Path, *arguments: str) -> bytes:
  command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
  try:
    done = subprocess.run(command, capture_output=True, timeout=60)
  except (OSError, subprocess.SubprocessError):
    return b""
  return done.stdout if done.returncode == 0 else b""
