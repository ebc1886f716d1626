"""The processes of one run: joining them, gathering numbers, and noticing that one is lost."""

import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxspeed.cluster.peers import Peers, own_gpus, visible_gpus
from jaxspeed.config.output import write_error
from jaxspeed.devices.host import has_tpu
from jaxspeed.errors import LOST_PEER, UserError, plural

# Words in the exceptions of JAX, gloo and NCCL after the loss of another process.
_GONE = re.compile(
  r"gloo|nccl|unavailable|deadline.?exceeded|heartbeat|coordination service|connection (closed|re)",
  re.IGNORECASE,
)


def connect(peers: Peers, *, heartbeat_seconds: int, timeout: int = 300) -> None:
  """Joins the other processes; call it before anything asks for a device.

  Process 0 listens only at the coordinator's address. A process counts as lost after
  `heartbeat_seconds` without a sign of life. All must join within `timeout` seconds.

  Raises:
    UserError: the address is unknown, in use or without answer, or a process joined too late.
  """
  deadline = time.monotonic() + timeout
  host, _, port = peers.coordinator.rpartition(":")
  family, address = _resolve(host.strip("[]"), peers)
  if peers.process == 0:
    _ensure_free(family, address, int(port), peers)
  else:
    _wait_for_answer(address, int(port), deadline, peers)
  # JAX's own service would take SIGTERM; here all processes learn of a stop from `RunControl`.
  jax.config.update("jax_enable_preemption_service", False)
  at = f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"
  try:
    jax.distributed.initialize(
      at,
      peers.processes,
      peers.process,
      local_device_ids=own_gpus(peers, *visible_gpus()),
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


def connect_tpu_hosts(*, heartbeat_seconds: int) -> None:
  """Joins the processes of a TPU slice, one a host, which Google's cloud names; elsewhere: nothing.

  Raises:
    UserError: they did not meet.
  """
  if not has_tpu() or (os.environ.get("JAX_PLATFORMS") or "tpu").split(",")[0] != "tpu":
    return
  jax.config.update("jax_enable_preemption_service", False)
  try:
    jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat_seconds)
  except ValueError:  # one host that is in no slice
    return
  except RuntimeError as error:
    reason = str(error).splitlines()[0][:200]
    raise UserError(f"the hosts of this TPU did not meet: {reason}") from error
  if jax.process_count() > 1:
    global _joined
    _joined = Peers("", jax.process_count(), jax.process_index(), 1, 0, "the TPU's hosts")
    _exit_where_xla_aborts()


def _patiently(attempt: Callable[[], Any], deadline: float) -> Any:
  """What a call returns at last that raises an OSError before; after the deadline its error."""
  while True:
    try:
      return attempt()
    except OSError:
      if time.monotonic() >= deadline:
        raise
      time.sleep(0.2)


def _resolve(host: str, peers: Peers, *, patience: float = 60.0) -> tuple[int, str]:
  """Family and address of the coordinator; the names of starting pods resolve after a while."""
  try:
    deadline = time.monotonic() + patience
    found = _patiently(lambda: socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM), deadline)
    family, _, _, _, address = found[0]
  except (OSError, ValueError) as error:  # a ValueError: an impossible name
    reason = getattr(error, "strerror", None) or "it is no name of a host"
    raise UserError(
      f"the coordinator's host {host!r} ({peers.found_by}) is not known on this one ({reason}): "
      "give --coordinator=HOST:PORT with its address."
    ) from error
  return family, str(address[0])


def _ensure_free(family: int, address: str, port: int, peers: Peers) -> None:
  try:
    # Like JAX's server, it can reuse a port right after its last owner has ended.
    socket.create_server((address, port), family=family).close()
  except OSError as error:
    raise UserError(
      f"process 0 cannot listen at {peers.coordinator} ({error.strerror or error}): give "
      "--coordinator=HOST:PORT with an address of its own host and a free port."
    ) from error


def _wait_for_answer(address: str, port: int, deadline: float, peers: Peers) -> None:
  # JAX would end the process with SIGABRT if nobody answers.
  try:
    _patiently(lambda: socket.create_connection((address, port), 5.0).close(), deadline)
  except OSError as error:
    raise UserError(
      f"process {peers.process} got no answer from process 0 at {peers.coordinator} "
      f"({error.strerror or error}): see that it runs there and that the port is open."
    ) from error


def _exit_where_xla_aborts() -> None:
  """Turns the abort() of JAX's C++ threads after the loss of a peer into a message and exit code.

  They call it, without Python, when heartbeats fail or process 0 is gone.
  """

  def on_abort(_: int) -> None:
    lost_peer("its heartbeat failed")

  global _abort_handler  # ctypes does not keep it alive
  _abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort)
  libc = ctypes.CDLL(None)
  libc.signal.restype = ctypes.c_void_p
  libc.signal(int(signal.SIGABRT), _abort_handler)


_abort_handler: Any = None
_joined: Peers | None = None


def lost_peer(reason: str) -> NoReturn:
  """Ends this process at once, with a message and the code after which a scheduler restarts a job.

  A normal exit would wait for the lost process in the shutdown barrier of jax.distributed.
  """
  write_error(
    f"{whoami()} has lost another process of the run ({reason}): checkpoints are whole, and the "
    "same command resumes from the newest."
  )
  exit_now(LOST_PEER)


def exit_now(code: int) -> NoReturn:
  """Ends this process at once, without waiting for others, after flushing what was printed."""
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(Exception):
      stream.flush()
  os._exit(code)


def several() -> bool:
  """Whether this run has more than one process."""
  return _joined is not None


def is_primary() -> bool:
  """Whether this process prints and writes records."""
  return _joined is None or _joined.process == 0


def on_this_host() -> int:
  """The number of the run's processes that share this host; 1 where it is unknown."""
  return (_joined.local if _joined else 1) or 1


def whoami() -> str:
  """This process, in words."""
  if _joined is None:
    return f"the run on {socket.gethostname()}"
  return f"process {_joined.process} of {_joined.processes} ({socket.gethostname()})"


@contextlib.contextmanager
def exit_on_lost_peer() -> Iterator[None]:
  """A block in which the loss of another process ends this process at once."""
  try:
    yield
  except (RuntimeError, ValueError) as error:
    if several() and _GONE.search(str(error)):
      lost_peer(" ".join(str(error).split())[:200])
    raise


def gather(value: int) -> list[int]:
  """The numbers of all processes, in order. All must call it; it waits for all."""
  if not several():
    return [value]
  return multihost_utils.process_allgather(np.int32(value)).tolist()


def gather_bytes(value: bytes) -> list[bytes]:
  """The bytes of all processes, in order. All must call it; it waits for all."""
  lengths = gather(len(value))
  if not several() or not max(lengths):
    return [value] * len(lengths)
  padded = np.zeros(max(lengths), np.uint8)
  padded[: len(value)] = np.frombuffer(value, np.uint8)
  rows = multihost_utils.process_allgather(padded)
  return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def broadcast(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
  """The arrays of process 0, bit by bit; the others pass arrays of the same shapes and dtypes."""
  if not several():
    return list(arrays)
  # As bytes: processes add their arrays, which are 0 but for the first's, and -0.0 + 0.0 is 0.0.
  flat = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in arrays]
  sent = multihost_utils.broadcast_one_to_all(np.concatenate(flat))
  parts = np.split(sent, np.cumsum([len(each) for each in flat])[:-1])
  return [
    part.copy().view(each.dtype).reshape(each.shape)
    for part, each in zip(parts, arrays, strict=True)
  ]


def describe() -> str:
  """The numbers of processes and hosts, in words. All must call it."""
  hosts = len(set(gather(zlib.crc32(socket.gethostname().encode()) >> 1)))
  processes = jax.process_count()
  return f"{processes} process{'es' * (processes > 1)} on {plural(hosts, 'host')}"


@contextlib.contextmanager
def all_or_none(what: str) -> Iterator[None]:
  """A block of the start-up that ends all processes if it fails in one.

  Raises:
    UserError: the block raised it, here or in another process.
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
    raise UserError(f"{what} failed in process {failed[0]}; its own message says why.")
