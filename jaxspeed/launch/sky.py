"""SkyPilot: managed jobs on clouds and Kubernetes, which move to new machines after a loss."""

import hashlib
import importlib.util
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from jaxspeed.config import schema
from jaxspeed.config.schema import must_be
from jaxspeed.errors import UserError
from jaxspeed.launch import shared_disk
from jaxspeed.launch.executor import Count, Executor, Line, SchedulerState, Task, Words
from jaxspeed.launch.sky_task import TOKEN, slug, task_yaml

# SkyPilot's ManagedJobStatus; all others are ends.
_PENDING = {"PENDING", "SUBMITTED", "STARTING", "RECOVERING"}
_RUNNING = {"RUNNING", "WINDING_DOWN", "CANCELLING"}
# Buckets that SkyPilot mounts; https: a container of Azure.
_SCHEMES = ("s3", "gs", "r2", "https", "cos", "oci", "nebius", "cw")
_UPLOAD = 600  # seconds that a cancelled job has to upload what it saved
# An address for documentation (RFC 5737): no machine of this network has it.
_ELSEWHERE = "192.0.2.1"

Accelerators = Annotated[
  str,
  must_be(
    "a kind of GPU and how many each node has, such as H100:8",
    lambda text: not text or bool(re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*(:[1-9]\d{0,3})?", text)),
  ),
]
Cpus = Annotated[
  str,
  must_be(
    "a number of CPUs, such as 4, or 4+ for at least 4",
    lambda text: not text or bool(re.fullmatch(r"\d{1,4}(\.\d)?\+?", text)),
  ),
]


class Sky(Executor):
  """Managed jobs of SkyPilot (`pip install 'jaxspeed[sky]'`), from a machine that may start them.

  SkyPilot replaces machines that are taken away, and starts the job again, which resumes. `root`
  lies on one of the `mounts`; this machine mounts the same storage at the same path, since the
  states of jobs are read from there.
  """

  kind: ClassVar[str] = "sky"

  accelerators: Accelerators = ""
  """kind of GPU and how many on each node, as in H100:8; '': none, the job trains on CPUs"""
  cpus: Cpus = ""
  """CPUs of each node, as in 4 or 4+; '': SkyPilot's default"""
  nodes: Count = 1
  """machines of one job; one process on each drives all its GPUs"""
  infra: Line = ""
  """where, as in aws, gcp/us-central1 or k8s; '': where SkyPilot finds the machines cheapest"""
  use_spot: bool = False
  """whether the machines may be taken away at any time, at a lower price"""
  image: Line = ""
  """image of the machines, as in docker:nvcr.io/nvidia/jax:25.10-py3; '': SkyPilot's default"""
  disk_size: Annotated[int, Field(ge=0, le=65_536)] = 0
  """disk of each machine in GB; 0: SkyPilot's default"""
  mounts: Annotated[
    dict[str, str],
    schema.Says("a dict of paths on the machines and the URLs of buckets or names of volumes"),
  ] = {}
  """buckets (gs://runs) and volumes of SkyPilot (a name) by the path at which they are mounted"""
  sync: Line = ""
  """folder that is copied to the machines; '': the one in which the jobs are submitted"""
  shared_root: bool = False
  """whether this machine sees the runs' root as the jobs do, where that cannot be found out"""
  python: Line = "python"
  """the Python on the machines that runs jobs"""
  setup: Words = ()
  """lines of shell that prepare each machine, such as "pip install -e .[cuda13]" """

  def __init__(self, **values: object) -> None:
    super().__init__(**values)
    for path, source in self.mounts.items():
      if not re.fullmatch(r"(/[A-Za-z0-9_=,@+-][A-Za-z0-9._=,@+-]*)+", path):
        raise UserError(
          f"Sky: mounts has the path {path!r}: write it absolute and in letters, digits and "
          "._=,@+-, without a / at its end."
        )
      bucket = re.fullmatch(rf"({'|'.join(_SCHEMES)})://[^/\s$]+[^\s$]*", source)
      if not bucket and not re.fullmatch("[a-z0-9]([a-z0-9-]*[a-z0-9])?", source):
        raise UserError(
          f"Sky: mounts[{path!r}] is {source!r}: give the name of a volume of SkyPilot, or the URL "
          f"of a bucket ({', '.join(scheme + '://' for scheme in _SCHEMES)})."
        )

  @property
  def python_path(self) -> str:
    return self.python or "python"

  @property
  def job_nodes(self) -> int:
    return self.nodes

  def devices(self) -> int:
    _, _, count = self.accelerators.partition(":")
    return self.nodes * int(count or 1)

  def accelerator(self) -> str:
    return self.accelerators.partition(":")[0]

  def sees_data(self) -> bool:
    return False

  def check(self, root: pathlib.Path) -> None:
    if importlib.util.find_spec("sky") is None:
      raise UserError(
        "SkyPilot is not installed: pip install 'jaxspeed[sky]', and SkyPilot's own extra for the "
        "cloud, as in pip install 'skypilot[aws]'."
      )
    self._mount_of(root)
    if not self.shared_root:
      shared_disk.check(root, [_ELSEWHERE], escape="Sky(shared_root=True)", exports=())

  def _mount_of(self, folder: pathlib.Path) -> str:
    """The mount on which a folder lies.

    Raises:
      UserError: there is none.
    """
    found = [path for path in self.mounts if folder.is_relative_to(path)]
    if not found:
      have = ", ".join(self.mounts) or "none"
      raise UserError(
        f"root {folder} is not on storage that the machines share: choose a folder in one of "
        f"Sky(mounts=...), which has {have}."
      )
    return max(found, key=len)

  def script(self, task: Task) -> tuple[str, str]:
    own = self._mount_of(task.folder)
    sync = pathlib.Path(os.path.abspath(os.path.expanduser(self.sync or task.cwd)))
    if not task.cwd.is_relative_to(sync):
      raise UserError(
        f"Sky(sync={self.sync!r}): jobs are submitted in {task.cwd}, which is not inside that "
        "folder: submit from there, or leave sync out."
      )
    buckets = {
      path: (source, "MOUNT_CACHED" if path == own else "MOUNT")
      for path, source in self.mounts.items()
      if "://" in source
    }
    text = task_yaml(
      task,
      self,
      nodes=self.nodes,
      resources={
        "infra": self.infra,
        "accelerators": self.accelerators,
        "cpus": self.cpus,
        "use_spot": self.use_spot,
        "image_id": self.image,
        "disk_size": self.disk_size,
      },
      sync=str(sync),
      folder=str(task.cwd.relative_to(sync)),
      buckets=buckets,
      volumes={path: name for path, name in self.mounts.items() if path not in buckets},
    )
    return "task.yaml", text

  def submit(
    self, tasks: Sequence[Task], token: str, folder: pathlib.Path
  ) -> Iterator[Mapping[str, str]]:
    for task in tasks:
      yield {task.name: self._launch(task, token)}

  def _launch(self, task: Task, token: str) -> str:
    def launch(sky: Any) -> Any:
      job = sky.Task.from_yaml(str(task.record / "task.yaml"))
      job.update_envs({TOKEN: token})
      return sky.get(sky.jobs.launch(job, name=job_name(task, token)))

    ids, _ = _asked(launch, f"did not take the job {task.name}", "submit again when that is mended")
    if not ids:
      raise UserError(f"SkyPilot took the job {task.name} without a number: see sky jobs queue.")
    return str(ids[0])

  def states(
    self, jobs: Mapping[str, str], folder: pathlib.Path
  ) -> Mapping[str, SchedulerState] | None:
    numbers = {name: int(id) for name, id in jobs.items() if id.isdecimal()}
    if not numbers:
      return {}
    try:
      import sky

      request = sky.jobs.queue_v2(
        refresh=False,
        all_users=True,
        job_ids=sorted(set(numbers.values())),
        fields=["job_id", "status"],
      )
      listed = {row.job_id: row.status.value for row in sky.get(request)[0] if row.status}
    except Exception as error:  # no package, no server, no controller: there are many kinds
      # The controller of managed jobs stops itself when none is left.
      stopped = getattr(getattr(error, "cluster_status", None), "value", "") == "STOPPED"
      return dict.fromkeys(numbers, SchedulerState.ABSENT) if stopped else None
    return {name: _state(listed.get(number, "")) for name, number in numbers.items()}

  def find(self, token: str, tasks: Sequence[Task]) -> Mapping[str, str]:
    def listed(sky: Any) -> Any:
      request = sky.jobs.queue_v2(
        refresh=True, name_match="jaxspeed-", fields=["job_id", "job_name"]
      )
      return sky.get(request)[0]

    names = {job_name(task, token): task.name for task in tasks}
    rows = _asked(listed, "does not answer", "repeat the command when it does")
    return {names[row.job_name]: str(row.job_id) for row in rows if row.job_name in names}

  def cancel(self, jobs: Mapping[str, str], folder: pathlib.Path) -> None:
    numbers = sorted({int(id) for id in jobs.values() if id.isdecimal()})

    def cancel(sky: Any) -> Any:
      # Graceful: what the jobs save is uploaded before their machines are given back.
      return sky.get(sky.jobs.cancel(job_ids=numbers, graceful=True, graceful_timeout=_UPLOAD))

    if numbers:
      _asked(cancel, "did not cancel", "cancel again when it answers")


def job_name(task: Task, token: str) -> str:
  """The name of a submitted job in SkyPilot's queue; no other submission of any job has it."""
  digest = hashlib.sha256(f"{token}\0{task.folder}".encode()).hexdigest()[:12]
  return f"jaxspeed-{slug(task.name)}-{digest}"


def _state(status: str) -> SchedulerState:
  if status in _PENDING:
    return SchedulerState.PENDING
  return SchedulerState.RUNNING if status in _RUNNING else SchedulerState.ABSENT


def _asked(question: Callable[[Any], Any], failure: str, advice: str) -> Any:
  """What SkyPilot answers.

  Args:
    question: what to ask, a function of the module `sky`.
    failure: the middle of the sentence when it fails.
    advice: the end of that sentence.

  Raises:
    UserError: it fails, for whatever reason: SkyPilot passes on the errors of all clouds.
  """
  try:
    import sky

    return question(sky)
  except Exception as error:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    raise UserError(f"SkyPilot {failure} ({lines[0].rstrip('.')}): {advice}.") from error
