"""The JobSet for any number of machines; tests/scripts/test_k8s.py checks the file itself."""

import pathlib

import pytest

from jaxspeed.cluster.peers import find_peers
from jaxspeed.errors import LOST_PEER, MISTAKE, REQUEUE, UserError
from jaxspeed.launch.executor import Executor
from jaxspeed.launch.kubernetes import jobset

yaml = pytest.importorskip("yaml", reason="PyYAML is missing: pip install .[test]")

FILE = pathlib.Path(__file__).parents[2] / "scripts" / "train_k8s.yaml"


def test_the_checked_in_file_is_the_functions_output():
  assert FILE.read_text() == jobset(), (
    "write it again: python -m jaxspeed.launch script kubernetes >scripts/train_k8s.yaml"
  )


@pytest.mark.parametrize("nodes, gpus", [(1, 8), (2, 4), (16, 8)])
def test_the_numbers_of_machines_and_gpus_agree_wherever_they_stand(nodes, gpus):
  text = jobset(nodes, gpus)
  (replicated,) = yaml.safe_load(text)["spec"]["replicatedJobs"]
  job = replicated["template"]["spec"]
  (trainer,) = job["template"]["spec"]["containers"]
  environment = {v["name"]: v["value"] for v in trainer["env"] if "value" in v}
  counted = (job["parallelism"], job["completions"], int(environment["JAX_NUM_PROCESSES"]))
  assert counted == (nodes, nodes, nodes)
  assert f"--config=configs/imagenet18.py:{nodes}" in trainer["args"]
  assert trainer["resources"]["limits"] == {"nvidia.com/gpu": gpus}
  assert f"on {nodes} machines of {gpus} GPUs" in text
  peers = find_peers(environment=environment | {"JOB_COMPLETION_INDEX": str(nodes - 1)})
  assert (peers.processes if peers else 1) == nodes


def test_codes_and_restarts_are_those_of_the_other_schedulers():
  spec = yaml.safe_load(jobset())["spec"]
  policy = spec["failurePolicy"]
  assert policy["maxRestarts"] == Executor.model_fields["max_restarts"].default
  patterns = {rule["name"]: rule["onJobFailureMessagePatterns"] for rule in policy["rules"]}
  assert patterns == {
    "mistake": [f"exit code {MISTAKE} "],
    "preempted": [f"exit code {REQUEUE} "],
  }
  rules = spec["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
  assert [rule["onExitCodes"]["values"] for rule in rules] == [[MISTAKE], [REQUEUE]]
  assert f"({LOST_PEER})" in jobset()


@pytest.mark.parametrize("values", [{"nodes": 0}, {"gpus": -1}, {"nodes": True}, {"gpus": 2.0}])
def test_numbers_that_are_none(values):
  with pytest.raises(UserError, match=rf"^jobset\({[*values][0]}=.*positive integer\.$"):
    jobset(**values)
