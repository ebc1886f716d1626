"""SkyPilot: managed jobs on clouds and Kubernetes, which move to new machines after a loss."""

import importlib.util
import pathlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from jaxspeed.config.schema import Says
from jaxspeed.errors import LOST_PEER, REQUEUE, UserError
from jaxspeed.launch.executor import Count, Executor, Found, Line, Words
from jaxspeed.launch.record import Facts, Job

# SkyPilot's ManagedJobStatus; all others are ends.
_PENDING = {"PENDING", "SUBMITTED", "STARTING", "RECOVERING"}
_RUNNING = {"RUNNING", "WINDING_DOWN", "CANCELLING"}
_UPLOAD = 600  # seconds that a cancelled job has to upload what it saved
_Accelerators = Annotated[
  str,
  Field(pattern=r"^([A-Za-z][A-Za-z0-9._-]*(:[1-9]\d{0,3})?)?$"),
  Says("a kind of GPU and how many each node has, such as H100:8"),
]
_Path = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9_=,@+-][A-Za-z0-9._=,@+-]*)+$")]


class Sky(Executor):
  """Managed jobs of SkyPilot (`pip install 'jaxspeed[sky]'`), from a machine that may start them.

  SkyPilot replaces machines that are taken away, and starts the job again, which resumes. `root`
  lies on one of the `mounts`; this machine mounts the same storage at the same path, since the
  states of jobs are read from there.
  """

  kind: ClassVar[str] = "sky"
  most_at_once: ClassVar[int] = 1
  sees_data: ClassVar[bool] = False

  accelerators: _Accelerators = ""
  """kind of GPU and how many on each node, as in H100:8; '': none, the job trains on CPUs"""
  nodes: Count = 1
  """machines of one job; one process on each drives all its GPUs"""
  infra: Line = ""
  """where, as in aws, gcp/us-central1 or k8s; '': where SkyPilot finds the machines cheapest"""
  use_spot: bool = False
  """whether the machines may be taken away at any time, at a lower price"""
  resources: dict[str, str | int] = {}
  """what else SkyPilot's `resources` take, as in {"cpus": "4+", "disk_size": 500}"""
  mounts: Annotated[
    dict[_Path, str],
    Says(
      "a dict of absolute paths on the machines, in letters, digits and ._=,@+- without a / at the "
      "end, and the URLs of buckets or names of volumes"
    ),
  ] = {}
  """buckets (gs://runs) and volumes of SkyPilot (a name) by the path at which they are mounted"""
  python: Line = "python"
  """the Python on the machines that runs jobs"""
  setup: Words = ()
  """lines of shell that prepare each machine, such as "pip install -e .[cuda13]" """

  def devices(self) -> int:
    return self.nodes * int(self.accelerators.partition(":")[2] or 1)

  def check(self, root: pathlib.Path) -> None:
    if importlib.util.find_spec("sky") is None:
      raise UserError(
        "SkyPilot is not installed: pip install 'jaxspeed[sky]', and SkyPilot's own extra for the "
        "cloud, as in pip install 'skypilot[aws]'."
      )
    self._mount_of(root)

  def _mount_of(self, folder: pathlib.Path) -> str:
    """The mount on which a folder lies; a UserError if there is none."""
    found = [path for path in self.mounts if folder.is_relative_to(path)]
    if not found:
      have = ", ".join(self.mounts) or "none"
      raise UserError(
        f"root {folder} is not on storage that the machines share: choose a folder in one of "
        f"Sky(mounts=...), which has {have}."
      )
    return max(found, key=len)

  def task(self, job: Job, token: str) -> dict[str, Any]:
    """A job as a task of SkyPilot: its fields."""
    own = self._mount_of(pathlib.Path(job.folder))
    machine = {
      "infra": self.infra,
      "accelerators": self.accelerators,
      "use_spot": self.use_spot,
    } | self.resources
    # After other codes, those of mistakes and faults, another start would do the same.
    recovery = {"max_restarts_on_errors": 0, "recover_on_exit_codes": [REQUEUE, LOST_PEER]}
    # MOUNT_CACHED: written on the machine's disk, and uploaded from there.
    buckets = {
      path: {"source": url, "mode": "MOUNT_CACHED" if path == own else "MOUNT"}
      for path, url in self.mounts.items()
      if "://" in url
    }
    supervisor = self.supervisor("sky", f"{shlex.quote(job.folder)} {job.digest}", token)
    # The parentheses: SkyPilot appends lines that wait for uploads.
    task = {
      "name": job_name(job, token),
      "num_nodes": self.nodes,
      "resources": {name: value for name, value in machine.items() if value}
      | {"job_recovery": recovery},
      # Copied to the machines.
      "workdir": job.cwd,
      "file_mounts": buckets,
      "volumes": {path: name for path, name in self.mounts.items() if path not in buckets},
      "envs": dict(self.env),
      "setup": "\n".join(["set -e", *self.setup]) if self.setup else "",
      "run": f"( exec {supervisor} )",
    }
    return {name: value for name, value in task.items() if value}

  def script(self, jobs: Sequence[Job], token: str) -> str:
    import yaml

    return yaml.safe_dump_all([self.task(job, token) for job in jobs], sort_keys=False)

  def submit(self, jobs: Sequence[Job], token: str) -> None:
    (job,) = jobs
    task = self.task(job, token)
    _ask(
      lambda sky: sky.jobs.launch(sky.Task.from_yaml_config(task), name=task["name"]),
      f"did not take the job {job.name}",
      "submit again when that is mended",
    )

  def states(self, jobs: Sequence[Facts], folder: pathlib.Path) -> Mapping[str, Found] | None:
    try:
      import sky

      fields = ["job_id", "job_name", "status"]
      request = sky.jobs.queue_v2(
        refresh=False, all_users=True, name_match="jaxspeed-", fields=fields
      )
      rows = sky.get(request)[0]
    except Exception as error:  # no package, no server, no controller: there are many kinds
      # The controller of managed jobs stops itself when none is left.
      stopped = getattr(getattr(error, "cluster_status", None), "value", "") == "STOPPED"
      return {} if stopped else None
    names = {job_name(facts.job, facts.token): facts.job.name for facts in jobs}
    states = {row.job_name: (row.status.value, str(row.job_id)) for row in rows if row.status}
    return {
      names[name]: Found(state not in _PENDING, id)
      for name, (state, id) in states.items()
      if name in names and state in _PENDING | _RUNNING
    }

  def cancel(self, ids: Sequence[str]) -> None:
    # Graceful: what the jobs save is uploaded before their machines are given back.
    how = {"graceful": True, "graceful_timeout": _UPLOAD}
    _ask(
      lambda sky: sky.jobs.cancel(job_ids=sorted(map(int, ids)), **how),
      "did not cancel",
      "cancel again when it answers",
    )


def job_name(job: Job, token: str) -> str:
  """The name of a submitted job in SkyPilot's queue, by which it is found."""
  # SkyPilot allows no two of ._- to follow each other.
  short = re.sub("[^A-Za-z0-9]+", lambda found: "." if found[0] == "." else "-", job.name)
  return f"jaxspeed-{short[:40].strip('-.') or 'job'}-{token}"


def _ask(request: Callable[[Any], Any], failure: str, advice: str) -> None:
  """Makes a request, and a sentence of an error: SkyPilot passes on those of all clouds."""
  try:
    import sky

    sky.get(request(sky))
  except Exception as error:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    raise UserError(f"SkyPilot {failure} ({lines[0].rstrip('.')}): {advice}.") from error
