"""Scripts refuse a mistake before they measure anything, with exit code 2."""

import subprocess
import sys

import pytest
from commands import ROOT, environment


@pytest.mark.parametrize(
  "script, arguments, message",
  [
    ("bench_cifar", [], "--config=FILE.py names the recipe to time"),
    ("bench_cifar", ["--config=configs/imagenet18.py:1"], "config.data.feed='stream': only sets"),
    ("bench_resnet50", ["--frameworks=tensorflow"], "choose from jaxspeed, torch"),
    ("bench_resnet50", ["--depth=34"], "choose 18 or 50"),
    ("bench_resnet50", ["--size=large"], "--size=large"),
    ("bench_startup", [], "--config is missing"),
    ("bench_startup", ["b.py"], "'b.py' is not a flag"),
    ("bench_startup", ["--config=quickstart", "--out=nowhere/a.json"], "nowhere/a.json cannot be"),
    ("profile_step", ["--config=configs/cifar10.py", "--for=h200"], "--for=h200"),
    ("bench_input", ["--data=x", "--warm_batches=0"], "--warm_batches=0"),
    ("bench_input", ["--data=nowhere", "--pipelines=none"], "choose from jaxspeed"),
    ("bench_input", ["--data=x", "--out=nowhere/a.json"], "nowhere/a.json cannot be written"),
    ("bench_options", [], "--config is missing: name a recipe"),
    ("profile_step", [], "--config is missing: name a recipe"),
  ],
)
def test_a_mistake_is_refused(script, arguments, message):
  done = subprocess.run(
    [sys.executable, f"scripts/{script}.py", *arguments],
    cwd=ROOT,
    env=environment() | {"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 2, done.stderr
  assert message in done.stderr and "Traceback" not in done.stderr
