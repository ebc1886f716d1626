"""The processes of a run, and the GPUs of each.

Slurm, Open MPI and a Kubernetes job name the processes in the environment; a user names them by the
flags --coordinator, --num_processes and --process_id.
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
# A count that fits into JAX's 32 bits; \d and str.isdecimal would accept digits of any script.
_NUMBER = "[0-9]{1,9}"


@dataclasses.dataclass(frozen=True)
class Peers:
  """The processes of a run, from the point of view of one of them."""

  coordinator: str  # HOST:PORT, where process 0 listens
  processes: int  # at least 1
  process: int  # the number of this one, from 0
  local: int | None  # the number of processes on this host; None: unknown
  local_process: int  # the number of this one on this host, from 0
  found_by: str  # the source of these numbers, for messages


def find_peers(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  environment: Mapping[str, str] = os.environ,
) -> Peers | None:
  """The processes of this run; None for a single process.

  The sources, in this order: the three arguments; JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
  JAX_PROCESS_ID (in a Kubernetes job JOB_COMPLETION_INDEX) in the environment; a step of Slurm
  (srun); Open MPI (mpirun). A given address overrides that of a scheduler.

  Raises:
    UserError: one of the values is missing or invalid.
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
    processes = integer(environment, "JAX_NUM_PROCESSES")
    process = integer(environment, "JAX_PROCESS_ID", number)
    return _checked(Peers(address, processes, process, None, 0, "JAX_NUM_PROCESSES"))
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


def integer(environment: Mapping[str, str], name: str, default: str = "") -> int:
  """The number in an environment variable; a UserError unless it has one to nine ASCII digits."""
  value = environment.get(name, default)
  if not re.fullmatch(_NUMBER, value):
    raise UserError(f"{name}={value} is no number: set it to one, or unset it.")
  return int(value)


def _checked(peers: Peers) -> Peers | None:
  if peers.processes < 1 or not 0 <= peers.process < peers.processes:
    raise UserError(
      f"process_id is {peers.process} of num_processes {peers.processes} ({peers.found_by}): it "
      "counts from 0 and must be less."
    )
  if peers.processes == 1:
    return None
  host, colon, port = peers.coordinator.rpartition(":")
  # XLA's server ends the process if it cannot parse the port.
  if not (colon and host and re.fullmatch(_NUMBER, port) and 0 < int(port) < 2**16):
    raise UserError(
      f"the coordinator {peers.coordinator!r} ({peers.found_by}) is no HOST:PORT of process 0, as "
      "in node1:62000."
    )
  return peers


def _of_slurm(environment: Mapping[str, str], address: str | None) -> Peers:
  # n07 is the first host of "n[07-09,12],m1".
  first = re.sub(r"^([^,\[]*)(?:\[([0-9]+))?.*", r"\1\2", environment["SLURM_STEP_NODELIST"])
  job = f"{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}"
  return Peers(
    coordinator=address or f"{first}:{_port(job)}",
    processes=integer(environment, "SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1")),
    process=integer(environment, "SLURM_PROCID"),
    local=_tasks_on_node(
      environment.get("SLURM_STEP_TASKS_PER_NODE", ""), integer(environment, "SLURM_NODEID", "0")
    ),
    local_process=integer(environment, "SLURM_LOCALID", "0"),
    found_by=f"Slurm's step {job}",
  )


def _tasks_on_node(tasks: str, node: int) -> int | None:
  """Slurm's number of tasks on a node, where "2(x3),1" is 2, 2, 2 and 1; None if unknown."""
  for count, nodes in re.findall(rf"({_NUMBER})(?:\(x({_NUMBER})\))?", tasks):
    node -= int(nodes or 1)
    if node < 0:
      return int(count)
  return None


def _of_open_mpi(environment: Mapping[str, str], address: str | None) -> Peers:
  processes = integer(environment, "OMPI_COMM_WORLD_SIZE")
  local = integer(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", "1")
  # Version 4 names the launcher's address, where process 0 runs; version 5 does not.
  job, _, uri = environment.get("OMPI_MCA_orte_hnp_uri", "").partition(".")
  if address is None and local == processes:
    address = f"127.0.0.1:{_port(environment.get('PMIX_NAMESPACE', job))}"
  elif address is None and (found := re.search(r"tcp://([0-9.]+)", uri)):
    address = f"{found[1]}:{_port(job)}"
  elif address is None:
    raise UserError(
      "mpirun does not say where process 0 runs: add --coordinator=HOST:PORT with the first host "
      "and a free port."
    )
  return Peers(
    coordinator=address,
    processes=processes,
    process=integer(environment, "OMPI_COMM_WORLD_RANK"),
    local=local,
    local_process=integer(environment, "OMPI_COMM_WORLD_LOCAL_RANK", "0"),
    found_by="mpirun",
  )


def _port(job: str) -> int:
  """A port that is the same in all processes of a job, and usually different in other jobs."""
  return _FIRST_PORT + int(hashlib.sha256(job.encode()).hexdigest(), 16) % _PORTS


def own_gpus(peers: Peers, gpus: list[str], bound: bool) -> list[int] | None:
  """The positions of the visible GPUs that this process uses; None: all of them.

  Of those that it can see, the scheduler may show each process only its own: `bound`, that
  CUDA_VISIBLE_DEVICES is set.

  Raises:
    UserError: the GPUs of this host do not divide evenly among its processes.
  """
  local = peers.local or 1
  if not gpus or local == 1 or (bound and len(gpus) < local):
    return None
  each, rest = divmod(len(gpus), local)
  if rest or not each:
    raise UserError(
      f"{local} processes share the {len(gpus)} GPUs of {socket.gethostname()}: start one "
      "process per GPU, or one per host."
    )
  return list(range(peers.local_process * each, (peers.local_process + 1) * each))


def visible_gpus() -> tuple[list[str], bool]:
  """The GPUs that this process can see, found without CUDA, and whether they were chosen for it."""
  chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
  if chosen is not None:
    return [name for name in chosen.split(",") if name.strip()], True
  found = sorted(p.name for p in pathlib.Path("/dev").glob("nvidia[0-9]*"))
  return found, False
