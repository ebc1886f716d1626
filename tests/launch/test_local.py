"""This machine as an executor: places of jobs, and what is refused."""

import pathlib

import pytest
from fake_jobs import lock_elsewhere, program, write_job, write_run
from local_cluster import wait_until

from jaxspeed.errors import UserError
from jaxspeed.launch import local as module
from jaxspeed.launch.executor import Found
from jaxspeed.launch.local import Local


@pytest.fixture
def machine(monkeypatch):
  """Lets the machine have some GPUs and cores."""

  def has(gpus=(), cores=8):
    monkeypatch.setattr(module, "visible_gpus", lambda: ([*gpus], True))
    monkeypatch.setattr(module, "_cores", lambda: [*range(cores)])

  has()
  return has


FILES = ["nvidia0", "nvidia1", "nvidia2", "nvidia3"]  # of the driver, below /dev
CHOSEN = ["2", "5", "GPU-a1", "7"]  # in CUDA_VISIBLE_DEVICES


@pytest.mark.parametrize(
  "gpus, fields, variables",
  [
    (FILES, {"parallel": 2}, ["0,1", "2,3"]),
    (FILES, {"parallel": 2, "gpus": 2}, ["0", "1"]),
    (CHOSEN, {"parallel": 4}, CHOSEN),
    (CHOSEN, {"gpus": 2}, ["2,5"]),
    # They are hidden from jobs that use none.
    (FILES, {"parallel": 2, "gpus": 0}, ["", ""]),
    ([], {"parallel": 2}, [None, None]),
  ],
)
def test_jobs_divide_the_gpus(machine, gpus, fields, variables):
  machine(gpus)
  executor = Local(**fields)
  executor.check(pathlib.Path("/"))
  assert [executor.slot(i)[0] for i in range(executor.parallel)] == variables
  each = len(variables[0].split(",")) if variables[0] else 0
  assert each == 0 or executor.devices() == each


@pytest.mark.parametrize(
  "cores, fields, places",
  [
    (5, {"parallel": 2}, [range(2), range(2, 5)]),
    (2, {"parallel": 3}, [[0], [0], [1]]),
  ],
)
def test_jobs_divide_the_cores(machine, cores, fields, places):
  machine(cores=cores)
  found = [Local(**fields).slot(i)[1] for i in range(len(places))]
  assert found == [frozenset(each) for each in places]


def test_devices_without_gpus_are_those_of_jax(machine, monkeypatch):
  for variable, devices in (("4", 4), ("many", 1)):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", variable)
    assert Local(parallel=3).devices() == devices


@pytest.mark.parametrize(
  "fields, message",
  [
    ({"gpus": 5}, "Local(gpus=5): this machine has 4 GPUs."),
    ({"parallel": 3}, "Local(parallel=3): 4 GPUs do not divide evenly among as many jobs."),
    ({"gpus": -1}, "Local(gpus=-1): it must be a whole number from 0"),
  ],
)
def test_what_the_machine_does_not_have(machine, fields, message):
  machine(FILES)
  with pytest.raises(UserError) as error:
    Local(**fields).check(pathlib.Path("/"))
  assert str(error.value).startswith(message)


# The worker and its jobs, as other processes see them


def test_a_job_runs_while_a_process_of_it_lives(tmp_path):
  run = write_run(tmp_path)
  jobs = [write_job(run, "a"), write_job(run, "b")]
  (run / ".launch" / "place.0.lock").write_text("b")
  (run / ".launch" / "place.1.lock").write_text("a")
  with lock_elsewhere(run / ".launch" / "place.1.lock"):
    assert Local().states(jobs, run) == {"a": Found(True), "b": Found(False)}
  assert Local().states(jobs[:1], run) == {"a": Found(False)}


def test_a_worker_that_does_not_start_leaves_its_lock(tmp_path, monkeypatch):
  run = write_run(tmp_path)
  monkeypatch.setattr(module.sys, "executable", program(tmp_path / "python", "#!/bin/sh\nexit 3\n"))
  Local(parallel=2).begin(run, 1)
  assert not (run / ".launch" / "worker.1.lock").exists()
  wait_until(lambda: "no worker runs" in Local().warning(run), 60, "the worker's end")
  monkeypatch.undo()
  with lock_elsewhere(run / ".launch" / "worker.0.lock"):
    assert Local().warning(run) == ""
