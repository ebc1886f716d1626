"""The processes of a run in the environment and the flags, and those that make no sense."""

import pytest

from jaxspeed.cluster import processes
from jaxspeed.cluster.folder_lock import job_of
from jaxspeed.cluster.peers import Peers, find_peers, own_gpus
from jaxspeed.errors import UserError

SLURM = {
  "SLURM_JOB_ID": "4711",
  "SLURM_STEP_ID": "0",
  "SLURM_STEP_NODELIST": "gpu[07-08,12],login1",
  "SLURM_STEP_NUM_TASKS": "6",
  "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
  "SLURM_PROCID": "3",
  "SLURM_NODEID": "1",
  "SLURM_LOCALID": "1",
}
OPEN_MPI = {
  "OMPI_COMM_WORLD_SIZE": "4",
  "OMPI_COMM_WORLD_RANK": "2",
  "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
  "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
JAX = {
  "JAX_NUM_PROCESSES": "2",
  "JAX_PROCESS_ID": "0",
  "JAX_COORDINATOR_ADDRESS": "node1:62000",
}
NUMBERS = [
  *((SLURM, name) for name in ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID")),
  *((OPEN_MPI, name) for name in OPEN_MPI),
  *((JAX, name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")),
]


def test_a_process_on_its_own_has_no_peers():
  assert find_peers(environment={}) is None
  assert find_peers("host:1", 1, 0, environment={}) is None
  # The shell of a batch script is no step of Slurm.
  assert find_peers(environment={"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}) is None


def test_flags_come_first():
  environment = {"SLURM_STEP_NODELIST": "n1", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}
  peers = find_peers("10.0.0.1:62000", 2, 1, environment=environment)
  assert peers == Peers("10.0.0.1:62000", 2, 1, None, 0, "the flags")


def test_a_step_of_slurm():
  peers = find_peers(environment=SLURM)
  assert (peers.processes, peers.process, peers.local, peers.local_process) == (6, 3, 2, 1)
  host, _, port = peers.coordinator.partition(":")
  assert host == "gpu07" and 61440 <= int(port) < 65536
  assert find_peers(environment=SLURM | {"SLURM_PROCID": "0"}).coordinator == peers.coordinator
  other = find_peers(environment=SLURM | {"SLURM_JOB_ID": "4712"}).coordinator
  assert other.partition(":")[2] != port
  assert find_peers(environment=SLURM | {"SLURM_NODEID": "2", "SLURM_LOCALID": "0"}).local == 1
  # An address that is given counts also here.
  given = find_peers(environment=SLURM | {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:9"})
  assert given.coordinator == "127.0.0.1:9" and given.process == 3


def test_open_mpi_of_version_4_and_5():
  uri = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}
  peers = find_peers(environment=OPEN_MPI | uri)
  assert (peers.processes, peers.process, peers.local, peers.local_process) == (4, 2, 2, 0)
  assert peers.coordinator.startswith("10.96.0.1:")
  one_host = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-a-1@1"}
  assert find_peers(environment=one_host).coordinator.startswith("127.0.0.1:")
  with pytest.raises(UserError, match="mpirun does not say where process 0 runs: add --coord"):
    find_peers(environment=OPEN_MPI)
  assert find_peers("node1:62000", environment=OPEN_MPI).coordinator == "node1:62000"


def test_an_indexed_job_of_kubernetes():
  environment = JAX | {"JOB_COMPLETION_INDEX": "1"}
  assert find_peers(environment=environment).process == 0  # JAX's own number comes first
  environment.pop("JAX_PROCESS_ID")
  peers = find_peers(environment=environment)
  assert (peers.coordinator, peers.processes, peers.process) == ("node1:62000", 2, 1)


@pytest.mark.parametrize(
  "arguments, environment, sentence",
  [
    (("h:1", 2, None), {}, "--process_id is missing: .* belong together"),
    ((None, 2, 0), {}, "--coordinator is missing"),
    (("h:1", None, None), {}, "--num_processes is missing"),
    (("h:1", 2, 2), {}, r"process_id is 2 of num_processes 2 \(the flags\): it counts from 0"),
    (("host", 2, 0), {}, "the coordinator 'host' .* is no HOST:PORT"),
    # XLA's server ended the process with SIGSEGV.
    *(((f"a:{n}", 2, 0), {}, "is no HOST:PORT") for n in ("６２", "6_2", "+1", " 1", "0", "65536")),
    ((), {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "JAX_COORDINATOR_ADDRESS=HOST:PORT"),
  ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(arguments, environment, sentence):
  with pytest.raises(UserError, match=sentence):
    find_peers(*arguments, environment=environment)


def peers_of(local, local_process=0):
  return Peers("h:1", 8, 0, local, local_process, "a test")


def test_gpus_are_shared_out_among_the_processes_of_a_host():
  eight = [str(i) for i in range(8)]
  # One process a host has all of them, where Slurm's detection in JAX would give it the first.
  assert own_gpus(peers_of(1), eight, bound=False) is None
  assert own_gpus(peers_of(None), eight, bound=False) is None
  assert own_gpus(peers_of(8, 5), eight, bound=False) == [5]
  assert own_gpus(peers_of(2, 1), eight, bound=True) == [4, 5, 6, 7]
  # Already its own one by --gpus-per-task: number 5 of one visible GPU does not exist.
  assert own_gpus(peers_of(8, 5), ["3"], bound=True) is None
  assert own_gpus(peers_of(2), [], bound=False) is None
  with pytest.raises(UserError, match="3 processes share the 8 GPUs of .*: start one process per"):
    own_gpus(peers_of(3), eight, bound=False)


@pytest.mark.parametrize("variables, name", NUMBERS)
def test_a_variable_that_is_no_number_is_named(variables, name):
  # int() takes "２" and "1_0" for numbers.
  for value in ("-1", "1.5", "２", "1_0", 5000 * "9"):
    with pytest.raises(UserError, match=name) as caught:
      find_peers("node1:62000", environment=variables | {name: value})
    assert "\n" not in str(caught.value)
  with pytest.raises(UserError, match="JOBSET_RESTART_ATTEMPT=１ is no number: set it to one, or"):
    job_of({"JOBSET_NAME": "a", "JOBSET_RESTART_ATTEMPT": "１"})


@pytest.mark.parametrize("host", ["a..b", 70 * "x"])
def test_a_name_that_no_host_can_have_is_a_sentence_at_once(host):
  peers = Peers(f"{host}:62000", 2, 0, None, 0, "the flags")
  with pytest.raises(UserError, match="it is no name of a host"):
    processes.connect(peers, heartbeat_seconds=10)
