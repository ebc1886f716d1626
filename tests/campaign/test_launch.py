"""Sweeps on a Slurm of two nodes and on this machine, disturbed in every way: nothing is lost."""

import importlib
import pathlib

import pytest
from commands import ROOT
from local_cluster import environment, local_slurm

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.fixture
def campaign(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "scripts")
  for name, value in environment().items():
    monkeypatch.setenv(name, value)
  return importlib.import_module("launch_campaign")


def test_a_disturbed_sweep_on_slurm_ends_with_the_same_bits(campaign, monkeypatch, tmp_path):
  with local_slurm() as cluster:
    monkeypatch.setenv("SLURM_CONF", cluster.variables["SLURM_CONF"])
    moments, same = campaign.on_slurm(cluster, tmp_path, epochs=40.0)
    assert same == 6 and len(moments) >= 8
    submitted, seconds = campaign.times_of_a_hundred(tmp_path)
  # What is asked for, on a machine that does nothing else.
  assert submitted < 10 and seconds < 1


def test_twenty_local_jobs_outlive_the_terminal_and_their_queue(campaign, tmp_path: pathlib.Path):
  assert "all 20 done, each started once" in campaign.on_this_machine(tmp_path, 20, epochs=10.0)
