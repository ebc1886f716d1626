"""Runs of several processes for tests: on the loopback, on two hosts of namespaces, under Slurm.

All of it ends with the `with` block it was started in, whatever happened inside.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import psutil
import pytest
from commands import ROOT, run

SLURM_COMMANDS = ("munged", "slurmctld", "slurmd", "srun")


def free_port() -> int:
  """A port of the loopback that nobody listens at now."""
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


def environment(devices: int = 1) -> dict[str, str]:
  """The environment of a process with some CPU devices, each of which needs threads of its own."""
  # Not those of a scheduler or of another test: who takes part is said by the flags.
  kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_", "JAX_"))}
  return kept | {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": str(devices),
    "PJRT_NPROC": "16",
    "PYTHONUNBUFFERED": "1",
    # On CPUs all processes but the first compile anew at each start: their keys of the cache of
    # programs differ, and only the first one writes.
    "XLA_FLAGS": os.environ.get("XLA_FLAGS", "--xla_backend_optimization_level=0"),
  }


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
  """Looks every 20 ms; fails the test with what it waited for, which may be made late."""
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
    time.sleep(0.02)


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a process ended: its exit code (-N: by signal N) and output."""

  code: int
  out: str
  err: str


class Process:
  """One process with its output in files of a folder, so that it never waits for a reader."""

  def __init__(
    self, command: Sequence[str], variables: dict[str, str], folder: pathlib.Path, name: str
  ) -> None:
    self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
    with self._out.open("w") as out, self._err.open("w") as err:
      self._popen = subprocess.Popen(
        command,
        cwd=ROOT,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,  # a Ctrl-C at the tests is not one at the run
      )

  @property
  def pid(self) -> int:
    return self._popen.pid

  @property
  def out(self) -> str:
    """Printed so far."""
    return self._out.read_text(errors="replace")

  @property
  def err(self) -> str:
    """Printed so far to the standard error."""
    return self._err.read_text(errors="replace")

  def running(self) -> bool:
    return self._popen.poll() is None

  def signal(self, number: signal.Signals) -> None:
    self._popen.send_signal(number)

  def wait_for(self, text: str, seconds: float = 60) -> None:
    """Until the process has printed a text, on either of its streams."""
    wait_until(
      lambda: text in self.out or text in self.err or not self.running(), seconds, repr(text)
    )
    assert text in self.out or text in self.err, f"ended without {text!r}:\n{self.err}"

  def end(self) -> None:
    """Kills it, and what it started in its session."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.pid, signal.SIGKILL)
    self._popen.wait()

  def ended(self) -> Ended:
    return Ended(self._popen.returncode, self.out, self.err)


class Processes(list[Process]):
  """The processes of one run, in their order."""

  def wait(self, seconds: float = 120) -> list[Ended]:
    """Until all have ended; the test fails where one has not."""
    deadline = time.monotonic() + seconds
    while any(p.running() for p in self):
      if time.monotonic() > deadline:
        tails = "\n".join(f"{i}: {p.out[-500:]}{p.err[-1500:]}" for i, p in enumerate(self))
        pytest.fail(f"{sum(p.running() for p in self)} processes still run:\n{tails}")
      time.sleep(0.02)
    return [p.ended() for p in self]


@contextlib.contextmanager
def processes(
  *arguments: str,
  count: int = 2,
  devices: int = 1,
  hosts: Sequence["Host"] = (),
  variables: dict[str, str] | None = None,
) -> Iterator[Processes]:
  """`jaxspeed.train` `count` times, with the flags by which they find each other.

  One alone gets no such flags. Process i runs on host i modulo their number, or on the loopback.
  """
  address = hosts[0].address if hosts else "127.0.0.1"
  coordinator = f"{address}:{free_port()}"
  with (
    tempfile.TemporaryDirectory(prefix="jaxspeed-processes-") as folder,
    contextlib.ExitStack() as s,
  ):
    started = Processes()
    for i in range(count):
      flags = [f"--coordinator={coordinator}", f"--num_processes={count}", f"--process_id={i}"]
      command = [sys.executable, "-m", "jaxspeed.train", *arguments, *(flags if count > 1 else [])]
      if hosts:
        command = [*hosts[i % len(hosts)].prefix, *command]
      all_variables = environment(devices) | (variables or {})
      started.append(Process(command, all_variables, pathlib.Path(folder), str(i)))
      s.callback(started[-1].end)
    yield started


@dataclasses.dataclass(frozen=True)
class Host:
  """A network namespace that passes for a host."""

  name: str  # its hostname, and its namespace's
  address: str  # in the network that it shares with the other host
  prefix: tuple[str, ...]  # of a command that is to run on it

  def cable(self, state: str) -> None:
    """Pulls ("down") or plugs ("up") its end of the cable."""
    _ip("-n", self.name, "link", "set", "eth0", state)


# In the namespace's network with an own hostname and an own /etc/hosts: gloo listens where the
# hostname points to. Not `ip netns exec`, which mounts /sys anew.
_ON_HOST = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'


def _ip(*arguments: str) -> None:
  subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
  """Two namespaces joined by a pair of virtual Ethernet devices, and with nothing else.

  Skips the test where that cannot be: not root, no namespaces.
  """
  _need_root("ip", "nsenter", "unshare", "mount", "hostname", package="iproute2 util-linux")
  names = [f"jaxspeed-{os.getpid()}-{i}" for i in range(2)]
  addresses = ["10.210.7.1", "10.210.7.2"]
  with tempfile.TemporaryDirectory(prefix="jaxspeed-hosts-") as folder, contextlib.ExitStack() as s:
    table = pathlib.Path(folder) / "hosts"
    rows = ["127.0.0.1 localhost", *map(" ".join, zip(addresses, names, strict=True))]
    table.write_text("\n".join(rows) + "\n")
    try:
      for name in names:
        _ip("netns", "add", name)
        s.callback(_ip, "netns", "del", name)
      _ip(
        "link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "eth0", "netns", names[1]
      )
      for name, address in zip(names, addresses, strict=True):
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
          _ip("-n", name, "link", "set", device, "up")
    except subprocess.CalledProcessError as error:
      pytest.skip(f"no network namespaces: {error.stderr.strip()}")
    inside = ["unshare", "--uts", "--mount", "bash", "-c", _ON_HOST, "on_host"]
    yield tuple(  # type: ignore[misc]
      Host(name, address, ("nsenter", f"--net=/run/netns/{name}", *inside, name, str(table)))
      for name, address in zip(names, addresses, strict=True)
    )


class Slurm:
  """A cluster of two nodes on this machine, from the folder of scripts/slurm_local.sh."""

  def __init__(self, folder: pathlib.Path) -> None:
    self.variables = environment() | {"SLURM_CONF": str(folder / "slurm.conf")}

  def run(self, *command: str) -> str:
    """What a command of Slurm's printed."""
    return run(*command, env=self.variables).stdout.strip()

  def field(self, job: str, name: str) -> str:
    """A value of `scontrol show job`: JobState, Restarts, ExitCode."""
    return re.findall(rf"\b{name}=(\S+)", self.run("scontrol", "show", "job", job))[0]

  def trainers(self, job: str) -> list[int]:
    """Process numbers of the trainers of a job that run now, in the order of their ranks."""
    # A job of an array has a number of its own, which its processes know.
    expected, ranks = (self.field(job, "JobId"), self.variables["SLURM_CONF"]), {}
    for process in psutil.process_iter(["cmdline", "environ"]):
      variables = process.info["environ"] or {}
      own = (variables.get("SLURM_JOB_ID"), variables.get("SLURM_CONF"))
      # Beside each trainer runs its supervisor.
      if own == expected and process.info["cmdline"][1:3] == ["-m", "jaxspeed.train"]:
        ranks[int(variables["SLURM_PROCID"])] = process.pid
    return [ranks[rank] for rank in sorted(ranks)]


@contextlib.contextmanager
def local_slurm() -> Iterator[Slurm]:
  """A fresh cluster; skips the test where it cannot be: not root, no packages."""
  _need_root(*SLURM_COMMANDS, package="slurm-wlm munge")
  # Not pytest's folder: a socket's path must be short.
  folder = pathlib.Path(tempfile.mkdtemp(prefix="jaxspeed-slurm-"))
  try:
    run("bash", "scripts/slurm_local.sh", "up", str(folder))
    yield Slurm(folder)
  finally:
    if (folder / "slurm.conf").exists():
      run("bash", "scripts/slurm_local.sh", "down", str(folder))
    shutil.rmtree(folder, ignore_errors=True)


def _need_root(*commands: str, package: str = "") -> None:
  """Skips the test without root's rights on Linux, or without commands of a Debian package."""
  if sys.platform != "linux" or os.geteuid() != 0:
    pytest.skip("network namespaces and Slurm's daemons are for root on Linux")
  path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
  if missing := [command for command in commands if not shutil.which(command, path=path)]:
    pytest.skip(f"{', '.join(missing)} is missing: apt-get install {package}")
