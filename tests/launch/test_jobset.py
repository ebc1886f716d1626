"""train_k8s.yaml: known fields only, and the parts that must agree with each other do."""

import re
from typing import Any

import pydantic
import pytest
import yaml

from jaxspeed.cluster.peers import find_peers
from jaxspeed.config.checks import with_overrides
from jaxspeed.config.recipe import load_recipe
from jaxspeed.devices.host import program_folder
from jaxspeed.errors import LOST_PEER, MISTAKE, REQUEUE
from jaxspeed.launch.command import jobset as text_of
from jaxspeed.launch.executor import Executor
from jaxspeed.models import make  # noqa: F401  registers the models, whose fields a recipe may set

models = pytest.importorskip(
  "kubeflow_trainer_api.models", reason="JobSet's schema is missing: pip install .[test]"
)


@pytest.fixture
def jobset() -> dict[str, Any]:
  return yaml.safe_load(text_of())


def wrong(jobset: dict[str, Any]) -> list[str]:
  """Fields that the schema does not know or have; its quantities take neither 8 nor "16Gi"."""
  try:
    models.JobsetV1alpha2JobSet.model_validate(jobset, extra="forbid")
  except pydantic.ValidationError as error:
    return [str(e["loc"][-1]) for e in error.errors() if "Quantity" not in e["msg"]]
  return []


def job_of(jobset: dict[str, Any]) -> dict[str, Any]:
  (replicated,) = jobset["spec"]["replicatedJobs"]
  return replicated["template"]["spec"]


def trainer_of(jobset: dict[str, Any]) -> dict[str, Any]:
  (container,) = job_of(jobset)["template"]["spec"]["containers"]
  return container


def test_every_field_is_in_the_schema_and_every_mount_has_its_volume(jobset):
  pod, trainer = job_of(jobset)["template"]["spec"], trainer_of(jobset)
  assert wrong(jobset) == []
  assert {m["name"] for m in trainer["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
  mounts = tuple(m["mountPath"] for m in trainer["volumeMounts"])
  folders = [a.split("=", 1)[1] for a in trainer["args"] if re.match(r"--\S+=/", a)]
  folders += [each["value"] for each in trainer["env"] if each.get("value", "").startswith("/")]
  assert len(folders) == 3 and all(f.startswith(mounts) for f in folders)
  # What the schema does not know is found.
  pod["terminationGracePeriod"] = 60
  assert wrong(jobset) == ["terminationGracePeriod"]


def outcome(jobset: dict[str, Any], code: int) -> str:
  """What JobSet does when one container exits with a code, by its rules and the job's."""
  name, reason, message = trainer_of(jobset)["name"], "BackoffLimitExceeded", ""
  for index, rule in enumerate(job_of(jobset)["podFailurePolicy"]["rules"]):
    if code in rule["onExitCodes"]["values"] and not message:
      reason = "PodFailurePolicy"
      # As Kubernetes' job controller words it.
      message = (
        f"Container {name} for pod default/jaxspeed-hosts-0-1-x2c4k failed with exit code {code} "
        f"matching {rule['action']} rule at index {index}"
      )
  for rule in jobset["spec"]["failurePolicy"]["rules"]:
    patterns = rule["onJobFailureMessagePatterns"]
    if reason in rule["onJobFailureReasons"] and any(re.search(p, message) for p in patterns):
      return rule["action"]
  return "RestartJobSet"


def test_what_follows_an_exit_code(jobset):
  assert outcome(jobset, MISTAKE) == "FailJobSet"
  assert outcome(jobset, REQUEUE) == "RestartJobSetAndIgnoreMaxRestarts"
  assert outcome(jobset, LOST_PEER) == outcome(jobset, 137) == "RestartJobSet"
  default = Executor.model_fields["max_restarts"].default
  assert jobset["spec"]["failurePolicy"]["maxRestarts"] == default


@pytest.mark.parametrize("nodes, gpus", [(1, 8), (2, 4), (16, 8)])
def test_the_numbers_of_machines_and_gpus_agree_wherever_they_stand(nodes, gpus):
  text = text_of(nodes, gpus)
  loaded = yaml.safe_load(text)
  job, trainer = job_of(loaded), trainer_of(loaded)
  environment = {v["name"]: v["value"] for v in trainer["env"] if "value" in v}
  counted = (job["parallelism"], job["completions"], int(environment["JAX_NUM_PROCESSES"]))
  assert counted == (nodes, nodes, nodes)
  assert f"--config=configs/imagenet18.py:{nodes}" in trainer["args"]
  fields = dict(each[9:].split("=", 1) for each in trainer["args"] if each.startswith("--config."))
  assert with_overrides(load_recipe(f"imagenet18:{nodes}"), fields).data.path == "/data/imagenet"
  assert str(program_folder(environment)) == "/runs/programs"
  assert trainer["resources"]["limits"] == {"nvidia.com/gpu": gpus}
  assert f"on {nodes} machines of {gpus} GPUs" in text
  peers = find_peers(environment=environment | {"JOB_COMPLETION_INDEX": str(nodes - 1)})
  if nodes == 1:
    assert peers is None
    return
  assert (peers.processes, peers.process) == (nodes, nodes - 1)
  # JobSet's own rule: JOBSET-REPLICATED_JOB-JOB_INDEX-POD_INDEX.SUBDOMAIN.
  (replicated,), network = loaded["spec"]["replicatedJobs"], loaded["spec"]["network"]
  host, port = peers.coordinator.split(":")
  name = loaded["metadata"]["name"]
  assert host == f"{name}-{replicated['name']}-0-0.{network['subdomain']}"
  assert trainer["ports"] == [{"containerPort": int(port)}]
