"""The shipped sweeps: their jobs are those that they promise, and each passes every check."""

import pytest
from commands import ROOT

from jaxspeed.launch import Slurm
from jaxspeed.launch.run import load_sweep

FOLDER = ROOT / "configs" / "sweeps"
JOBS = {"cifar10_lr_batch": 36, "record_seeds": 10, "imagenet18_machines": 5}


@pytest.fixture
def scripts(monkeypatch):
  monkeypatch.chdir(ROOT)
  return lambda name: load_sweep(str(FOLDER / f"{name}.py")).scripts()


def test_a_sweep_checks_its_jobs(scripts):
  assert {path.stem for path in FOLDER.glob("*.py")} == set(JOBS)
  for name, jobs in JOBS.items():
    found = scripts(name)  # leaving the block of the run checks every job
    assert len(found) == jobs and all("jaxspeed.train" in text for text in found.values())


def test_a_hundred_seeds_are_a_hundred(scripts):
  commands = "\n".join(scripts("record_seeds").values())
  firsts = [int(word.partition("=")[2]) for word in commands.split() if "config.seed=" in word]
  seeds = {first + i for first in firsts for i in range(10)}
  assert commands.count("--config.runs=10") == 10 and seeds == set(range(100))


def test_imagenet18_gets_as_many_nodes_as_its_recipe(scripts):
  for text in scripts("imagenet18_machines").values():
    machines = text.partition("configs/imagenet18.py:")[2].split()[0]
    assert f"#SBATCH --nodes={machines}\n" in text and "#SBATCH --gpus-per-node=8\n" in text
  assert Slurm(nodes=16, gpus_per_node=8).devices() == 128
