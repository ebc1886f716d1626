"""Variables of schedulers, and addresses, that make no sense."""

import pytest

from jaxspeed.cluster import processes
from jaxspeed.cluster.folder_lock import job_of
from jaxspeed.cluster.peers import Peers, find_peers
from jaxspeed.errors import UserError

SLURM = {
  "SLURM_STEP_NODELIST": "n1",
  "SLURM_PROCID": "0",
  "SLURM_STEP_NUM_TASKS": "2",
  "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
  "SLURM_NODEID": "0",
  "SLURM_LOCALID": "0",
}
OPEN_MPI = {
  "OMPI_COMM_WORLD_SIZE": "2",
  "OMPI_COMM_WORLD_RANK": "0",
  "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
  "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
JAX = {
  "JAX_NUM_PROCESSES": "2",
  "JAX_PROCESS_ID": "0",
  "JAX_COORDINATOR_ADDRESS": "node1:62000",
}
NUMBERS = [
  (variables, name)
  for variables in (SLURM, OPEN_MPI, JAX)
  for name in variables
  if name not in ("SLURM_STEP_NODELIST", "JAX_COORDINATOR_ADDRESS")
]


@pytest.mark.parametrize("variables, name", NUMBERS)
# int() takes "２" and "1_0" for numbers.
@pytest.mark.parametrize("value", ["abc", " ", "-1", "1.5", "２", "1_0", 5000 * "9"])
def test_a_variable_that_is_no_number_is_named(variables, name, value):
  assert find_peers(environment=variables) is not None
  with pytest.raises(UserError, match=name) as caught:
    find_peers(environment=variables | {name: value})
  assert "\n" not in str(caught.value)


def test_a_huge_number_of_tasks_takes_no_memory():
  tasks = {"SLURM_STEP_TASKS_PER_NODE": "2(x999999999),7", "SLURM_NODEID": "999999999"}
  assert find_peers(environment=SLURM | tasks).local == 7


def test_a_number_on_the_host_is_less_than_its_count():
  with pytest.raises(UserError, match="process 2 of 2 on this host"):
    find_peers(environment=OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "2"})


@pytest.mark.parametrize("port", ["６２０００", "62_000", "+1", " 1", "0", "65536"])
def test_a_port_has_ascii_digits_only(port):
  # XLA's server ended the process with SIGSEGV.
  with pytest.raises(UserError, match="is no HOST:PORT"):
    find_peers(f"localhost:{port}", 2, 0, environment={})


@pytest.mark.parametrize("host", ["a..b", 70 * "x"])
def test_a_name_that_no_host_can_have_is_a_sentence_at_once(host):
  peers = Peers(f"{host}:62000", 2, 0, None, 0, "the flags")
  with pytest.raises(UserError, match="it is no name of a host"):
    processes.connect(peers, heartbeat_seconds=10)


@pytest.mark.parametrize(
  "environment, name",
  [
    ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "abc"}, "SLURM_RESTART_COUNT=abc"),
    ({"JOBSET_NAME": "a", "JOBSET_RESTART_ATTEMPT": "１"}, "JOBSET_RESTART_ATTEMPT=１"),
  ],
)
def test_a_count_of_restarts_that_is_no_number_is_named(environment, name):
  with pytest.raises(UserError, match=f"{name} is no number: set it to one, or unset it"):
    job_of(environment)
