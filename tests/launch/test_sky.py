"""The executor of SkyPilot, with a module in its place that records what it is asked.

With SkyPilot installed, its own functions check how they are called. None is called here: they
would start a server.
"""

import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import types
from typing import Any

import pytest

from jaxspeed.errors import LOST_PEER, REQUEUE, UserError
from jaxspeed.launch import record
from jaxspeed.launch.executor import Found
from jaxspeed.launch.sky import Sky, job_name

MOUNTS = {"/runs": "gs://bucket/runs"}
HERE = pathlib.Path("/")


class Cloud(types.ModuleType):
  """A module `sky` whose queue is a dict: the state of each job by its number."""

  def __init__(self) -> None:
    super().__init__("sky")
    self.__spec__ = importlib.machinery.ModuleSpec("sky", None)
    self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    self.queue: dict[int, tuple[str, str]] = {}
    self.tasks: list[Any] = []
    self.error: BaseException | None = None
    self.jobs = types.SimpleNamespace(
      launch=lambda *a, **k: self.asked("launch", a, k),
      queue_v2=lambda *a, **k: self.asked("queue_v2", a, k),
      cancel=lambda *a, **k: self.asked("cancel", a, k),
    )
    self.Task = types.SimpleNamespace(from_yaml_config=lambda fields: fields)

  def asked(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    self.calls.append((name, args, kwargs))
    return name, args, kwargs

  def get(self, request: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Any:
    name, args, kwargs = request
    if self.error is not None:
      raise self.error
    if name == "launch":
      number = 40 + len(self.queue)
      self.queue[number] = (kwargs["name"], "PENDING")
      self.tasks.append(args[0])
      return [number], None
    if name == "cancel":
      for number in kwargs["job_ids"]:
        self.queue[number] = (self.queue[number][0], "CANCELLED")
      return None
    rows = [
      types.SimpleNamespace(job_id=number, job_name=job, status=types.SimpleNamespace(value=status))
      for number, (job, status) in self.queue.items()
    ]
    return rows, len(rows), {}, len(rows)


@pytest.fixture
def cloud(monkeypatch) -> Cloud:
  found = Cloud()
  monkeypatch.setitem(sys.modules, "sky", found)
  return found


def facts(name: str = "lr=1", root: str = "/runs", token: str = "t0ken") -> record.Facts:
  folder = pathlib.Path(root, "sweep", name)
  fixed = {"epochs": 1.0, "metric": "top1", "sources": "", "overrides": {}, "config": ""}
  named = {"name": name, "recipe": "a.py", "folder": str(folder), "executor": {"kind": "sky"}}
  made = record.Job(cwd=str(pathlib.Path.cwd()), **fixed, **named)  # type: ignore[arg-type]
  return record.Facts(folder, made, True, [record.Event(0.0, "submit", token, jobs=[name])], [])


def job(name: str = "lr=1", root: str = "/runs") -> record.Job:
  return facts(name, root).job


def test_devices_and_fields_that_come_back():
  assert Sky().devices() == 1 and not Sky().sees_data()
  sky = Sky(accelerators="A100-80GB:8", nodes=16, resources={"cpus": "4+", "disk_size": 100})
  assert (sky.devices(), sky.accelerator()) == (128, "A100-80GB")
  # The path of the Python that submits means nothing on the machines.
  assert sky.python == "python"
  stored = json.loads(json.dumps(sky.to_dict()))
  assert stored.pop("kind") == "sky" and Sky(**stored) == sky


@pytest.mark.parametrize(
  "fields, sentence",
  [
    ({"gpus": 8}, "Sky has no field gpus: it has price_per_hour, .*accelerators"),
    ({"accelerators": "8"}, r"Sky\(accelerators='8'\): it must be a kind of GPU"),
    ({"infra": "aws\nus"}, r"Sky\(infra=.*it must be text without line breaks"),
    ({"mounts": ["/runs"]}, r"Sky\(mounts=.*a dict of absolute paths on the machines"),
    ({"mounts": {"/runs/../a": "gs://a"}}, "Sky.mounts=.*: it must be a dict of absolute paths"),
  ],
)
def test_mistakes_in_fields(fields, sentence):
  with pytest.raises(UserError, match=sentence):
    Sky(**fields)


def test_what_is_not_there_is_a_sentence(cloud, monkeypatch):
  Sky(mounts=MOUNTS).check(pathlib.Path("/runs/a"))
  for root in ("/runs2/a", "/"):
    with pytest.raises(UserError, match=rf"root {root} is not on storage .*, which has /runs\.$"):
      Sky(mounts=MOUNTS).check(pathlib.Path(root))
  with pytest.raises(UserError, match=r"which has none\.$"):
    Sky().script([job()], "t")
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(UserError, match=r"^SkyPilot is not installed: pip install 'jaxspeed\[sky\]'"):
    Sky(mounts=MOUNTS).check(pathlib.Path("/runs"))


def test_a_task_has_what_the_fields_say(tmp_path, monkeypatch):
  sky = Sky(
    accelerators="H100:8",
    nodes=16,
    infra="gcp/us-central1",
    use_spot=True,
    resources={"disk_size": 100},
    mounts={"/runs": "gs://bucket/runs", "/data": "s3://imagenet", "/disk": "team-disk"},
    setup=("pip install -e .[cuda13]", "nvidia-smi"),
    env={"A": "b: #"},
  )
  monkeypatch.chdir(tmp_path)
  digest = job().digest
  assert sky.task(job(), "t0ken") == {
    "name": "jaxspeed-lr-1-t0ken",
    "num_nodes": 16,
    "resources": {
      "infra": "gcp/us-central1",
      "accelerators": "H100:8",
      "use_spot": True,
      "disk_size": 100,
      "job_recovery": {
        "max_restarts_on_errors": 0,
        "recover_on_exit_codes": [REQUEUE, LOST_PEER],
      },
    },
    "workdir": str(tmp_path),
    "file_mounts": {
      "/runs": {"source": "gs://bucket/runs", "mode": "MOUNT_CACHED"},
      "/data": {"source": "s3://imagenet", "mode": "MOUNT"},
    },
    "volumes": {"/disk": "team-disk"},
    "envs": {"A": "b: #"},
    "setup": "set -e\npip install -e .[cuda13]\nnvidia-smi",
    "run": f"( exec python -m jaxspeed.launch.supervisor sky /runs/sweep/lr=1 {digest} t0ken )",
  }


def test_names_are_short_and_distinct_from_flags():
  names = {
    "imagenet18-4_peak=2.0_seed=1": "imagenet18-4-peak-2.0-seed-1",
    "_=_": "job",
    "x" * 100: "x" * 40,
  }
  assert [job_name(job(each), "t") for each in names] == [f"jaxspeed-{n}-t" for n in names.values()]


def test_jobs_are_submitted_one_by_one_and_found_by_their_names(cloud):
  sky, jobs = Sky(mounts=MOUNTS), [facts("a=1"), facts("b=1", token="other")]
  for each in jobs:
    sky.submit([each.job], each.token)
  assert cloud.tasks == [sky.task(each.job, each.token) for each in jobs]
  assert [name for name, _ in cloud.queue.values()] == ["jaxspeed-a-1-t0ken", "jaxspeed-b-1-other"]
  assert sky.states(jobs, HERE) == {"a=1": Found(False, "40"), "b=1": Found(False, "41")}
  assert sky.states([facts("a=1", token="new")], HERE) == {}
  # What a cancelled job saves is uploaded first.
  sky.cancel(["41", "40"])
  expected = {"job_ids": [40, 41], "graceful": True, "graceful_timeout": 600}
  assert cloud.calls[-1][2] == expected and sky.states(jobs, HERE) == {}


def test_states_by_one_question(cloud):
  statuses = {
    "STARTING": False,
    "RECOVERING": False,
    "RUNNING": True,
    "CANCELLING": True,
    "SUCCEEDED": None,
    "FAILED_SETUP": None,
    "A_STATE_OF_TOMORROW": None,
  }
  jobs = [facts(status) for status in statuses]
  cloud.queue = {i: (job_name(f.job, f.token), f.job.name) for i, f in enumerate(jobs)}
  found = Sky().states([*jobs, facts("gone")], HERE)
  assert found == {name: Found(s, str(i)) for i, (name, s) in enumerate(statuses.items()) if i < 4}
  ((name, _, asked),) = cloud.calls
  assert name == "queue_v2" and asked["name_match"] == "jaxspeed-"


def test_what_skypilot_does_not_answer_or_refuses(cloud):
  # The controller of managed jobs stops itself when none is left.
  stopped = RuntimeError("the controller is stopped")
  stopped.cluster_status = types.SimpleNamespace(value="STOPPED")  # type: ignore[attr-defined]
  cloud.error = stopped
  assert Sky().states([facts()], HERE) == {}
  cloud.error = ValueError("no cloud is enabled.\nsecond line")
  assert Sky().states([facts()], HERE) is None
  with pytest.raises(UserError) as refused:
    Sky(mounts=MOUNTS).submit([job()], "t")
  sentence = "SkyPilot did not take the job lr=1 (no cloud is enabled): submit again when that is"
  assert str(refused.value).startswith(sentence)
  with pytest.raises(UserError, match=r"^SkyPilot did not cancel \(no cloud is enabled\): cancel"):
    Sky().cancel(["40"])
