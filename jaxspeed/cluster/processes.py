"""Several processes of one run: how they find each other, agree, and notice that one is gone.

Under Slurm, Open MPI and in a Kubernetes job the environment says who takes part; by hand the flags
--coordinator, --num_processes and --process_id do.
"""

import contextlib
import ctypes
import dataclasses
import hashlib
import os
import pathlib
import re
import signal
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jax
import numpy as np

from jaxspeed.errors import LOST_PEER, UserError

# Above the ports that Linux gives to clients (ip_local_port_range ends at 60999).
_FIRST_PORT, _PORTS = 61440, 4096
# Of the exceptions that JAX, gloo and NCCL raise where another process has gone.
_GONE = re.compile(
  r"gloo|nccl|unavailable|deadline.?exceeded|heartbeat|coordination service|connection (closed|re)",
  re.IGNORECASE,
)


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
        _integer("JAX_NUM_PROCESSES", environment["JAX_NUM_PROCESSES"]),
        _integer("JAX_PROCESS_ID", number),
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


def _integer(name: str, value: str) -> int:
  try:
    return int(value)
  except ValueError:
    raise UserError(f"{name}={value} is no number.") from None


def _checked(peers: Peers) -> Peers | None:
  if peers.processes < 1 or not 0 <= peers.process < peers.processes:
    raise UserError(
      f"process_id is {peers.process} of num_processes {peers.processes} ({peers.found_by}): it "
      "counts from 0 and must be less."
    )
  if peers.processes == 1:
    return None
  host, colon, port = peers.coordinator.rpartition(":")
  if not (colon and host and port.isdecimal() and 0 < int(port) < 2**16):
    raise UserError(
      f"the coordinator {peers.coordinator!r} ({peers.found_by}) is no HOST:PORT of process 0, as "
      "in node1:62000."
    )
  return peers


def _of_slurm(environment: Mapping[str, str], address: str | None) -> Peers:
  hosts = environment["SLURM_STEP_NODELIST"]
  job = f"{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}"
  # "2(x3),1" is 2, 2, 2 and 1 tasks on the step's nodes, of which this is number SLURM_NODEID.
  tasks = [
    int(count)
    for count, times in re.findall(
      r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    )
    for _ in range(int(times or 1))
  ]
  node = int(environment.get("SLURM_NODEID", "0"))
  return Peers(
    coordinator=address or f"{first_host(hosts)}:{_port(job)}",
    processes=_integer(
      "SLURM_STEP_NUM_TASKS",
      environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1")),
    ),
    process=_integer("SLURM_PROCID", environment["SLURM_PROCID"]),
    local=tasks[node] if node < len(tasks) else None,
    local_process=int(environment.get("SLURM_LOCALID", "0")),
    found_by=f"Slurm's step {job}",
  )


def _of_open_mpi(environment: Mapping[str, str], address: str | None) -> Peers:
  processes = _integer("OMPI_COMM_WORLD_SIZE", environment["OMPI_COMM_WORLD_SIZE"])
  local = int(environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
  if address is None:
    # Version 4 tells of the launcher, where the first process runs; version 5 does not.
    launcher = environment.get("OMPI_MCA_orte_hnp_uri", "")
    job, _, uri = launcher.partition(".")
    found = re.search(r"tcp://([\d.]+)", uri)
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
    process=_integer("OMPI_COMM_WORLD_RANK", environment["OMPI_COMM_WORLD_RANK"]),
    local=local,
    local_process=int(environment.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")),
    found_by="mpirun",
  )


def _port(job: str) -> int:
  """The same in all processes of a job, and mostly another one in other jobs."""
  return _FIRST_PORT + int(hashlib.sha256(job.encode()).hexdigest(), 16) % _PORTS


def first_host(hosts: str) -> str:
  """The first of Slurm's list of hosts: "n[07-09,12],m1" begins with n07."""
  name = re.match(r"([^,\[]*)(?:\[(\d+))?", hosts)
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


def _visible_gpus() -> tuple[list[str], bool]:
  """The GPUs that this process can see, without waking CUDA, and whether they were chosen."""
  chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
  if chosen is not None:
    return [name for name in chosen.split(",") if name.strip()], True
  found = sorted(p.name for p in pathlib.Path("/dev").glob("nvidia*") if p.name[6:].isdecimal())
  return found, False


def connect(peers: Peers, *, heartbeat_seconds: int, timeout: int = 300) -> None:
  """Joins the other processes; to be called before anything asks for a device.

  Process 0 listens at the coordinator's address only, not at all of its host's.

  Args:
    peers: who takes part.
    heartbeat_seconds: after which a process that is not heard of counts as lost.
    timeout: seconds in which all must have come.

  Raises:
    UserError: the address is not known, in use or not answered, or not all came in time.
  """
  deadline = time.monotonic() + timeout
  host, _, port = peers.coordinator.rpartition(":")
  family, address = _resolve(host.strip("[]"), peers)
  if peers.process == 0:
    _ensure_free(family, address, int(port), peers)
  else:
    _wait_for_answer(family, address, int(port), deadline, peers)
  # What stops a run, all processes learn from `Agreement`; JAX's own service would take SIGTERM.
  jax.config.update("jax_enable_preemption_service", False)
  at = f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"
  try:
    jax.distributed.initialize(
      at,
      peers.processes,
      peers.process,
      local_device_ids=own_gpus(peers, *_visible_gpus()),
      cluster_detection_method="deactivate",
      coordinator_bind_address=at,
      initialization_timeout=max(1, round(deadline - time.monotonic())),
      heartbeat_timeout_seconds=heartbeat_seconds,
    )
  except (RuntimeError, ValueError) as error:
    reason = str(error).splitlines()[0][:200]
    raise UserError(
      f"{peers.processes} processes were to meet at {peers.coordinator} ({peers.found_by}) within "
      f"{timeout} s, which failed in process {peers.process}: {reason}"
    ) from error
  global _joined
  _joined = peers
  _exit_where_xla_aborts()


def _resolve(host: str, peers: Peers, *, patience: float = 60.0) -> tuple[int, str]:
  """Family and address of the coordinator; names of pods that start are known after a while."""
  deadline = time.monotonic() + patience
  while True:
    try:
      family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
      return family, str(address[0])
    except OSError as error:
      if time.monotonic() >= deadline:
        raise UserError(
          f"the coordinator's host {host!r} ({peers.found_by}) is not known on this one "
          f"({error.strerror}): give --coordinator=HOST:PORT with its address."
        ) from error
      time.sleep(0.5)


def _ensure_free(family: int, address: str, port: int, peers: Peers) -> None:
  try:
    with socket.socket(family) as probe:
      # As the server will: a port whose last owner has just ended can be taken at once.
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      probe.bind((address, port))
  except OSError as error:
    raise UserError(
      f"process 0 cannot listen at {peers.coordinator} ({error.strerror}): give "
      "--coordinator=HOST:PORT with an address of its own host and a free port."
    ) from error


def _wait_for_answer(family: int, address: str, port: int, deadline: float, peers: Peers) -> None:
  # JAX itself would end the process with SIGABRT where nobody ever answers.
  while True:
    try:
      with socket.socket(family) as probe:
        probe.settimeout(5.0)
        probe.connect((address, port))
        return
    except OSError as error:
      if time.monotonic() >= deadline:
        raise UserError(
          f"process {peers.process} got no answer from process 0 at {peers.coordinator} "
          f"({error.strerror or error}): see that it runs there and that the port is open."
        ) from error
      time.sleep(0.2)


def _exit_where_xla_aborts() -> None:
  """Turns the abort() of JAX's C++ threads, where a peer is lost, into a sentence and a code.

  They call it when heartbeats fail, or process 0 is gone while this one waits for something else;
  Python is not asked.
  """

  def leave(_: int) -> None:
    lost_peer("its heartbeat failed")

  global _abort_handler  # ctypes does not keep it alive
  _abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(leave)
  libc = ctypes.CDLL(None)
  libc.signal.restype = ctypes.c_void_p
  libc.signal(int(signal.SIGABRT), _abort_handler)


_abort_handler: Any = None
_joined: Peers | None = None


def lost_peer(reason: str) -> NoReturn:
  """Ends this process at once, with a sentence and the code on which a scheduler starts again.

  An orderly exit would wait for the lost process, in the barrier of jax.distributed's shutdown.
  """
  message = (
    f"jaxspeed: {whoami()} has lost another process of the run ({reason}): checkpoints are whole, "
    "and the same command goes on from the newest.\n"
  )
  os.write(2, message.encode())
  leave(LOST_PEER)


def leave(code: int) -> NoReturn:
  """Ends this process at once, without waiting for others; what was printed is not lost."""
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(Exception):
      stream.flush()
  os._exit(code)


def several() -> bool:
  """Whether this run has more than one process."""
  return _joined is not None


def is_primary() -> bool:
  """Whether this process prints, and writes records."""
  return _joined is None or _joined.process == 0


def whoami() -> str:
  """This process, in words."""
  if _joined is None:
    return f"the run on {socket.gethostname()}"
  return f"process {_joined.process} of {_joined.processes} ({socket.gethostname()})"


def is_lost_peer(error: BaseException) -> bool:
  """Whether an exception says that another process has gone, as gloo and NCCL put it."""
  return (
    several()
    and isinstance(error, jax.errors.JaxRuntimeError | ValueError | RuntimeError)
    and _GONE.search(str(error)) is not None
  )


@contextlib.contextmanager
def ending_when_alone() -> Iterator[None]:
  """A block that another process's loss ends at once, with all that is around it."""
  try:
    yield
  except Exception as error:
    if is_lost_peer(error):
      lost_peer(" ".join(str(error).split())[:200])
    raise


def gather(value: int) -> list[int]:
  """A number of each process, in their order. All must call it; it waits for all."""
  if not several():
    return [value]
  from jax.experimental import multihost_utils

  return multihost_utils.process_allgather(np.int32(value)).tolist()


def describe() -> str:
  """How many processes on how many hosts, in words. All must call it."""
  hosts = len(set(gather(zlib.crc32(socket.gethostname().encode()) >> 1)))
  processes = jax.process_count()
  return (
    f"{processes} process{'es' if processes > 1 else ''} on {hosts} host{'s' if hosts > 1 else ''}"
  )


@contextlib.contextmanager
def together(what: str) -> Iterator[None]:
  """A part of the start that must succeed in every process, or ends all of them.

  Raises:
    UserError: of the block; or another process failed in it.
  """
  mistake = None
  try:
    yield
  except UserError as error:
    mistake = error
  failed = [number for number, flag in enumerate(gather(int(mistake is not None))) if flag]
  if mistake is not None:
    raise mistake
  if failed:
    raise UserError(f"{what} failed in process {failed[0]}, whose own message says why.")
