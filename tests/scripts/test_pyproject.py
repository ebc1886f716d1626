"""What the package's extras promise."""

import pathlib
import tomllib

ROOT = pathlib.Path(__file__).parents[2]


def test_the_extra_for_the_v100_bounds_jax_above():
  # Its cuDNN is the last with kernels for the V100 and the first that jax-cuda12-plugin 0.12.0.1
  # takes, so a later one may take it no more.
  extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  assert extras["optional-dependencies"]["volta"] == [
    "jax[cuda12]>=0.10.2,<0.12.1",
    "nvidia-cudnn-cu12==9.10.2.21",
  ]
