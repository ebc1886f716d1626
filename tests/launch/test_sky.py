"""The executor of SkyPilot, with a module in its place that records what it is asked.

None of SkyPilot's own functions is called in this process: they would start a server. Another
process shows, with a HOME of its own, that SkyPilot's own classes take our tasks and calls.
"""

import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import types
from typing import Any
from unittest import mock

import pytest
from commands import environment, python
from fake_jobs import write_job, write_run

from jaxspeed.errors import LOST_PEER, REQUEUE, UserError
from jaxspeed.launch import sky
from jaxspeed.launch.executor import Found
from jaxspeed.launch.sky import Sky, job_name

HERE = pathlib.Path("/")
NONE = importlib.util.find_spec("sky") is None


@pytest.fixture
def cloud(monkeypatch):
  """The module `sky`; what its requests come to is `get`'s."""
  found = mock.MagicMock(__spec__=importlib.machinery.ModuleSpec("sky", None))
  monkeypatch.setitem(sys.modules, "sky", found)
  return found


@pytest.fixture
def job(tmp_path):
  """Makes a job in the folder `runs`, which lies on a bucket; returns what is known of it."""
  run = write_run(tmp_path / "runs", "sweep")
  return lambda name="lr=1": write_job(run, name, cwd=str(tmp_path))


@pytest.fixture
def mounts(tmp_path):
  return {str(tmp_path / "runs"): "gs://bucket/runs"}


def test_devices_and_fields_that_come_back():
  assert Sky().devices() == 1 and not Sky().sees_data
  sky = Sky(accelerators="A100-80GB:8", nodes=16, resources={"cpus": "4+", "disk_size": 100})
  assert sky.devices() == 128
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


def test_what_is_not_there_is_a_sentence(cloud, job, monkeypatch):
  sky = Sky(mounts={"/runs": "gs://bucket/runs"})
  sky.check(pathlib.Path("/runs/a"))
  for root in ("/runs2/a", "/"):
    with pytest.raises(UserError, match=rf"root {root} is not on storage .*, which has /runs\.$"):
      sky.check(pathlib.Path(root))
  with pytest.raises(UserError, match=r"which has none\.$"):
    Sky().script([job().job], "t")
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(UserError, match=r"^SkyPilot is not installed: pip install 'jaxspeed\[sky\]'"):
    sky.check(pathlib.Path("/runs"))


def test_a_task_has_what_the_fields_say(job, mounts, tmp_path):
  mounted = mounts | {"/data": "s3://imagenet", "/disk": "team-disk"}
  more = {"use_spot": True, "resources": {"disk_size": 100}, "env": {"A": "b: #"}}
  sky = Sky(**FIELDS["gpu"] | more | {"mounts": mounted})
  made = job().job
  task, (root,) = sky.task(made, "t0ken"), mounts
  assert (task["name"], task["num_nodes"]) == ("jaxspeed-lr-1-t0ken", 16)
  assert task["workdir"] == str(tmp_path)  # copied to the machines
  assert task["resources"]["job_recovery"]["max_restarts_on_errors"] == 0
  machine = {"infra": "gcp/us-central1", "accelerators": "H100:8", "use_spot": True}
  assert task["resources"].items() >= (machine | {"disk_size": 100}).items()
  own = {"source": "gs://bucket/runs", "mode": "MOUNT_CACHED"}
  assert task["file_mounts"] == {root: own, "/data": {"source": "s3://imagenet", "mode": "MOUNT"}}
  assert (task["volumes"], task["envs"]) == ({"/disk": "team-disk"}, {"A": "b: #"})
  assert task["setup"] == "set -e\npip install -e .[cuda13]\nnvidia-smi"
  supervisor = "python -m jaxspeed.launch.supervisor sky"
  assert task["run"] == f"( exec {supervisor} {made.folder} {made.digest} t0ken )"


def test_names_are_short_and_distinct_from_flags():
  names = {
    "imagenet18-4_peak=2.0_seed=1": "imagenet18-4-peak-2.0-seed-1",
    "_=_": "job",
    "x" * 100: "x" * 40,
  }
  for name, short in names.items():
    assert job_name(types.SimpleNamespace(name=name), "t") == f"jaxspeed-{short}-t"


def test_a_job_is_submitted_and_cancelled(cloud, job, mounts):
  sky, facts = Sky(mounts=mounts), job()
  sky.submit([facts.job], "t0ken")
  cloud.Task.from_yaml_config.assert_called_once_with(sky.task(facts.job, "t0ken"))
  task = cloud.Task.from_yaml_config.return_value
  cloud.jobs.launch.assert_called_once_with(task, name="jaxspeed-lr-1-t0ken")
  # What a cancelled job saves is uploaded first.
  sky.cancel(["41", "40"])
  cloud.jobs.cancel.assert_called_once_with(job_ids=[40, 41], graceful=True, graceful_timeout=600)
  requests = [cloud.jobs.launch.return_value, cloud.jobs.cancel.return_value]
  assert [call.args[0] for call in cloud.get.call_args_list] == requests


def test_states_by_one_question(cloud, job):
  states = {"STARTING": False, "RECOVERING": False, "RUNNING": True, "CANCELLING": True}
  jobs = [job(name) for name in (*states, "SUCCEEDED", "FAILED_SETUP", "A_STATE_OF_TOMORROW")]
  rows = [
    types.SimpleNamespace(
      job_id=number,
      job_name=job_name(facts.job, facts.token),
      status=types.SimpleNamespace(value=facts.job.name),
    )
    for number, facts in enumerate(jobs)
  ]
  rows.append(types.SimpleNamespace(job_id=9, job_name="another", status=rows[0].status))
  cloud.get.return_value = rows, len(rows), {}, len(rows)
  found = Sky().states([*jobs, job("gone")], HERE)
  assert found == {name: Found(runs, str(i)) for i, (name, runs) in enumerate(states.items())}
  assert cloud.jobs.queue_v2.call_args.kwargs["name_match"] == "jaxspeed-"
  assert cloud.get.call_count == 1


def test_what_skypilot_does_not_answer_or_refuses(cloud, job, mounts):
  # The controller of managed jobs stops itself when none is left.
  stopped = RuntimeError("the controller is stopped")
  stopped.cluster_status = types.SimpleNamespace(value="STOPPED")
  cloud.get.side_effect = stopped
  facts = job()
  assert Sky().states([facts], HERE) == {}
  cloud.get.side_effect = ValueError("no cloud is enabled.\nsecond line")
  assert Sky().states([facts], HERE) is None
  with pytest.raises(UserError) as refused:
    Sky(mounts=mounts).submit([facts.job], "t")
  sentence = "SkyPilot did not take the job lr=1 (no cloud is enabled): submit again when that is"
  assert str(refused.value).startswith(sentence)
  with pytest.raises(UserError, match=r"^SkyPilot did not cancel \(no cloud is enabled\): cancel"):
    Sky().cancel(["40"])


FIELDS: dict[str, dict[str, Any]] = {
  "cpu": {"infra": "aws", "use_spot": True, "resources": {"cpus": "4+", "disk_size": 100}},
  "k8s": {"nodes": 2, "infra": "k8s", "mounts": {"{root}": "team-runs"}, "env": {"A": "b: #"}},
  "gpu": {
    "accelerators": "H100:8",
    "nodes": 16,
    "infra": "gcp/us-central1",
    "resources": {"image_id": "docker:nvcr.io/nvidia/jax:25.10-py3"},
    "mounts": {"{root}": "gs://bucket/runs", "/data": "s3://imagenet"},
    "setup": ("pip install -e .[cuda13]", "nvidia-smi"),
  },
}
CALLS: dict[str, tuple[int, dict[str, Any]]] = {
  "launch": (1, {"name": "a"}),
  "queue_v2": (0, {"refresh": False, "all_users": True, "name_match": "a", "fields": ["job_id"]}),
  "cancel": (0, {"job_ids": [1], "graceful": True, "graceful_timeout": 600}),
}
OWN_CLASSES = """
import inspect, json, sys
import sky
fields, calls = json.loads(sys.argv[1])
found = {}
for name, given in fields.items():
  task = sky.Task.from_yaml_config(given)
  first = task.to_yaml_config()
  if name != "gpu":
    task.validate()
  found[name] = first, sky.Task.from_yaml_config(dict(first)).to_yaml_config(), task.run
for name, (count, values) in calls.items():
  inspect.signature(getattr(sky.jobs, name)).bind(*[None] * count, **values)
inspect.signature(sky.get).bind("")
found["states"] = [status.value for status in sky.jobs.ManagedJobStatus]
found["ends"] = [status.value for status in sky.jobs.ManagedJobStatus.terminal_statuses()]
print(json.dumps(found))
"""


@pytest.mark.skipif(NONE, reason="SkyPilot is missing: pip install .[sky]")
def test_skypilots_own_classes_take_our_tasks_and_calls_and_have_our_states(tmp_path):
  """Its schema knows every field; without a server it can validate tasks without GPUs alone."""
  job = write_job(write_run(tmp_path), "lr=1", cwd=str(tmp_path)).job
  tasks = {}
  for name, fields in FIELDS.items():
    mounts = fields.get("mounts", {"{root}": "s3://bucket"}).items()
    mounted = {path.format(root=tmp_path): source for path, source in mounts}
    tasks[name] = sky.Sky(**(fields | {"mounts": mounted})).task(job, "t0ken")
  own = environment(HOME=str(tmp_path), SKYPILOT_DISABLE_USAGE_COLLECTION="1")
  done = python("-c", OWN_CLASSES, json.dumps([tasks, CALLS]), env=own, cwd=tmp_path)
  found = json.loads(done.stdout.splitlines()[-1])
  for name, fields in FIELDS.items():
    first, second, run = found[name]
    for each in (first, second):
      each.pop("_user_specified_yaml", None)
    assert first == second and first["num_nodes"] == fields.get("nodes", 1)
    recovery = first["resources"]["job_recovery"]
    assert recovery["max_restarts_on_errors"] == 0
    assert recovery["recover_on_exit_codes"] == [REQUEUE, LOST_PEER]
    assert "jaxspeed.launch.supervisor sky " in run
  assert sky._PENDING | sky._RUNNING == set(found["states"]) - set(found["ends"])
