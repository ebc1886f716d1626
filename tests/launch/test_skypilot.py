"""SkyPilot's own classes take our tasks and calls; no server of SkyPilot is started.

`import sky` writes into HOME, so another process imports it, with a HOME of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from fake_jobs import write_job, write_run

from jaxspeed.errors import LOST_PEER, REQUEUE
from jaxspeed.launch import sky

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


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Any:
  if importlib.util.find_spec("sky") is None:
    pytest.skip("SkyPilot is missing: pip install .[sky]")
  home = tmp_path_factory.mktemp("home")
  job = write_job(write_run(home), "lr=1", cwd=str(home)).job
  tasks = {}
  for name, fields in FIELDS.items():
    mounts = fields.get("mounts", {"{root}": "s3://bucket"}).items()
    mounted = {path.format(root=home): source for path, source in mounts}
    tasks[name] = sky.Sky(**(fields | {"mounts": mounted})).task(job, "t0ken")
  environment = os.environ | {"HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
  command = [sys.executable, "-c", OWN_CLASSES, json.dumps([tasks, CALLS])]
  done = subprocess.run(
    command, env=environment, cwd=home, capture_output=True, text=True, timeout=120
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1]) | {"root": str(home)}


@pytest.mark.parametrize("name", FIELDS)
def test_skypilot_reads_a_task_and_writes_the_same(own, name):
  """Its schema knows every field; without a server it can validate tasks without GPUs alone."""
  first, second, run = own[name]
  for each in (first, second):
    each.pop("_user_specified_yaml", None)
  assert first == second and first["num_nodes"] == FIELDS[name].get("nodes", 1)
  recovery = first["resources"]["job_recovery"]
  assert recovery["max_restarts_on_errors"] == 0
  assert recovery["recover_on_exit_codes"] == [REQUEUE, LOST_PEER]
  assert "jaxspeed.launch.supervisor sky " in run


def test_every_state_of_skypilot_is_known(own):
  assert sky._PENDING | sky._RUNNING == set(own["states"]) - set(own["ends"])
