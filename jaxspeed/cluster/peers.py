"""Who takes part in a run, and which GPUs are whose.

Under Slurm, Open MPI and in a Kubernetes job the environment says who takes part; by hand the flags
--coordinator, --num_processes and --process_id do.
"""

import dataclasses
import hashlib
import os
import pathlib
import re
import socket
from collections.abc import Mapping

from jaxspeed.errors import UserError

# Above the ports that Linux gives to clients (ip_local_port_range ends at 60999).
_FIRST_PORT, _PORTS = 61440, 4096
# A count that fits into JAX's 32 bits; \d and str.isdecimal take digits of all scripts.
_NUMBER = "[0-9]{1,9}"


@dataclasses.dataclass(frozen=True)
class Peers:
  """The processes of a run, as one of them sees them.

  Attributes:
    coordinator: HOST:PORT, where process 0 listens.
    processes: of the run, at least 1.
    process: this one's number, from 0.
    local: processes on this host, where known.
    local_process: this one's number among them.
    found_by: what said so, for messages.
  """

  coordinator: str
  processes: int
  process: int
  local: int | None
  local_process: int
  found_by: str


def find_peers(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  environment: Mapping[str, str] = os.environ,
) -> Peers | None:
  """Who takes part in this run; None for a process on its own.

  In this order: the three arguments; JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID
  (in a Kubernetes job JOB_COMPLETION_INDEX) in the environment; a step of Slurm (srun); Open MPI
  (mpirun). An address that is given counts also where a scheduler says the rest.

  Raises:
    UserError: one of the values is missing or makes no sense.
  """
  address = coordinator or environment.get("JAX_COORDINATOR_ADDRESS")
  flags = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
  if num_processes is not None or process_id is not None:
    if address is None or num_processes is None or process_id is None:
      raise _missing(next(name for name, value in flags.items() if value is None))
    return _checked(Peers(address, num_processes, process_id, None, 0, "the flags"))
  number = environment.get("JAX_PROCESS_ID", environment.get("JOB_COMPLETION_INDEX"))
  if "JAX_NUM_PROCESSES" in environment and number is not None:
    if not address:
      raise UserError("JAX_NUM_PROCESSES is set, but JAX_COORDINATOR_ADDRESS=HOST:PORT is not.")
    return _checked(
      Peers(
        address,
        integer("JAX_NUM_PROCESSES", environment["JAX_NUM_PROCESSES"]),
        integer("JAX_PROCESS_ID", number),
        None,
        0,
        "JAX_NUM_PROCESSES",
      )
    )
  if "SLURM_STEP_NODELIST" in environment and "SLURM_PROCID" in environment:
    return _checked(_of_slurm(environment, address))
  if "OMPI_COMM_WORLD_SIZE" in environment:
    return _checked(_of_open_mpi(environment, address))
  if coordinator:
    raise _missing("num_processes")
  return None


def _missing(flag: str) -> UserError:
  return UserError(
    f"--{flag} is missing: --coordinator=HOST:PORT, --num_processes and --process_id belong "
    "together."
  )


def integer(name: str, value: str) -> int:
  """The number that a variable of the environment holds.

  Raises:
    UserError: it holds anything but a few ASCII digits.
  """
  if not re.fullmatch(_NUMBER, value):
    raise UserError(f"{name}={value} is no number: set it to one, or unset it.")
  return int(value)


def _checked(peers: Peers) -> Peers | None:
  if peers.processes < 1 or not 0 <= peers.process < peers.processes:
    raise UserError(
      f"process_id is {peers.process} of num_processes {peers.processes} ({peers.found_by}): it "
      "counts from 0 and must be less."
    )
  if peers.local is not None and peers.local_process >= peers.local:
    raise UserError(
      f"{peers.found_by} says that this is process {peers.local_process} of {peers.local} on this "
      "host: it counts from 0 and must be less."
    )
  if peers.processes == 1:
    return None
  host, colon, port = peers.coordinator.rpartition(":")
  # XLA's server ends the process where it cannot read a port.
  if not (colon and host and re.fullmatch(_NUMBER, port) and 0 < int(port) < 2**16):
    raise UserError(
      f"the coordinator {peers.coordinator!r} ({peers.found_by}) is no HOST:PORT of process 0, as "
      "in node1:62000."
    )
  return peers


def _of_slurm(environment: Mapping[str, str], address: str | None) -> Peers:
  hosts = environment["SLURM_STEP_NODELIST"]
  job = f"{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}"
  return Peers(
    coordinator=address or f"{first_host(hosts)}:{_port(job)}",
    processes=integer(
      "SLURM_STEP_NUM_TASKS",
      environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1")),
    ),
    process=integer("SLURM_PROCID", environment["SLURM_PROCID"]),
    local=_tasks_on_node(
      environment.get("SLURM_STEP_TASKS_PER_NODE", ""),
      integer("SLURM_NODEID", environment.get("SLURM_NODEID", "0")),
    ),
    local_process=integer("SLURM_LOCALID", environment.get("SLURM_LOCALID", "0")),
    found_by=f"Slurm's step {job}",
  )


def _tasks_on_node(tasks: str, node: int) -> int | None:
  """How many tasks Slurm has on a node: "2(x3),1" is 2, 2, 2 and 1; None where it does not say."""
  if not tasks:
    return None
  for part in tasks.split(","):
    found = re.fullmatch(rf"({_NUMBER})(?:\(x({_NUMBER})\))?", part)
    if found is None:
      raise UserError(f"SLURM_STEP_TASKS_PER_NODE={tasks} is not as in 2(x3),1: unset it.")
    node -= int(found.group(2) or 1)
    if node < 0:
      return int(found.group(1))
  return None


def _of_open_mpi(environment: Mapping[str, str], address: str | None) -> Peers:
  processes = integer("OMPI_COMM_WORLD_SIZE", environment["OMPI_COMM_WORLD_SIZE"])
  local = integer("OMPI_COMM_WORLD_LOCAL_SIZE", environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
  if address is None:
    # Version 4 tells of the launcher, where the first process runs; version 5 does not.
    launcher = environment.get("OMPI_MCA_orte_hnp_uri", "")
    job, _, uri = launcher.partition(".")
    found = re.search(r"tcp://([0-9.]+)", uri)
    if local == processes:
      address = f"127.0.0.1:{_port(environment.get('PMIX_NAMESPACE', job))}"
    elif found:
      address = f"{found.group(1)}:{_port(job)}"
    else:
      raise UserError(
        "mpirun does not say where process 0 runs: add --coordinator=HOST:PORT with the first host "
        "and a free port."
      )
  return Peers(
    coordinator=address,
    processes=processes,
    process=integer("OMPI_COMM_WORLD_RANK", environment["OMPI_COMM_WORLD_RANK"]),
    local=local,
    local_process=integer(
      "OMPI_COMM_WORLD_LOCAL_RANK", environment.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    ),
    found_by="mpirun",
  )


def _port(job: str) -> int:
  """The same in all processes of a job, and mostly another one in other jobs."""
  return _FIRST_PORT + int(hashlib.sha256(job.encode()).hexdigest(), 16) % _PORTS


def first_host(hosts: str) -> str:
  """The first of Slurm's list of hosts: "n[07-09,12],m1" begins with n07."""
  name = re.match(r"([^,\[]*)(?:\[([0-9]+))?", hosts)
  assert name is not None
  return name.group(1) + (name.group(2) or "")


def own_gpus(peers: Peers, gpus: list[str], bound: bool) -> list[int] | None:
  """Which of the GPUs that a process can see it is to use; None: all.

  Args:
    peers: who takes part.
    gpus: that the process can see.
    bound: whether the scheduler may have shown it only its own (CUDA_VISIBLE_DEVICES is set).

  Raises:
    UserError: more processes on this host than GPUs, or no whole number of GPUs for each.
  """
  if not gpus or peers.local in (None, 1) or (bound and len(gpus) < (peers.local or 1)):
    return None
  assert peers.local is not None
  each, rest = divmod(len(gpus), peers.local)
  if rest or not each:
    raise UserError(
      f"{peers.local} processes share the {len(gpus)} GPUs of {socket.gethostname()}: start one "
      "process a GPU, or one a host."
    )
  return list(range(peers.local_process * each, (peers.local_process + 1) * each))


def visible_gpus() -> tuple[list[str], bool]:
  """The GPUs that this process can see, without waking CUDA, and whether they were chosen."""
  chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
  if chosen is not None:
    return [name for name in chosen.split(",") if name.strip()], True
  found = sorted(p.name for p in pathlib.Path("/dev").glob("nvidia[0-9]*"))
  return found, False
