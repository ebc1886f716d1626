"""Every recipe parses, plans and traces; the shipped sweeps have their jobs."""

import jax
import numpy as np
import pytest
from commands import ROOT
from recipes import AIRBENCH, EVERY, LADDER, get_config, get_named, recipe
from toy import toy_spec

from jaxspeed.config import checks, stored
from jaxspeed.config import fields as fields_lib
from jaxspeed.config.recipe import load_recipe
from jaxspeed.data.batch import Batch
from jaxspeed.errors import UserError
from jaxspeed.launch.run import load_sweep
from jaxspeed.planning.make import make_plan
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import batch_step, on_mesh
from jaxspeed.steps.state import Carry


@pytest.mark.parametrize("name, variant", EVERY)
def test_a_recipe_parses_stores_and_plans(name, variant, tmp_path):
  config = get_config(name, variant)
  shared = {field for field, _ in stored.leaves(fields_lib.base())}
  own = {field for field, _ in stored.leaves(config)} - shared
  assert all(field.startswith("model.") for field in own)
  assert shared <= {field for field, _ in stored.leaves(config)}
  assert config.name.split("/")[0] == name
  stored.save(config, tmp_path / "config.json")
  whole = checks.checked(config.to_dict())
  assert stored.differences(whole, stored.load(tmp_path / "config.json")) == []
  assert np.isfinite(make_plan(config).table["learning_rate"]).all()


def test_without_a_variant_there_is_a_default_and_one_that_is_not_there_is_refused():
  assert LADDER.get_config() == LADDER.get_config("flip_tta")
  assert AIRBENCH.get_config() == AIRBENCH.get_config("94_muon")
  for name in ("cifar10_resnet9", "imagenet18_lambda", "imagenet_ffcv", "imagenet_lars"):
    last = [*recipe(name).PUBLISHED][-1]
    with pytest.raises(UserError, match=f"no variant 'roof' of {name}: choose .* {last}"):
      load_recipe(f"{name}:roof")


@pytest.mark.parametrize(
  "named",
  [
    "cifar10",
    "cifar10_airbench:96_faster",
    "cifar10_hlb",
    "imagenet_lars:65536",
    "imagenet_vit:90",
    "smoke_imagenet",
  ],
)
def test_a_recipes_steps_can_be_traced(named):
  config = get_named(named)
  if not config.data.mean:
    config.data.update(mean=(127.5,) * 3, std=(73.9,) * 3)
  spec = toy_spec(config)
  plan, phase = spec.plan, spec.plan.phases[0]
  shape = (phase.batch_size, phase.image_size, phase.image_size, 3)
  images, label = jax.ShapeDtypeStruct(shape, np.uint8), jax.ShapeDtypeStruct(shape[:1], np.int32)
  mask = jax.ShapeDtypeStruct(shape[:1], np.bool_)
  key = jax.ShapeDtypeStruct((2,), np.uint32)
  state = jax.eval_shape(on_mesh(init_state, spec), key, images)
  kinds = {plan.kind_of(number) for number in range(plan.total_steps)}
  for kind in kinds:
    carry, loss = jax.eval_shape(
      batch_step(spec, kind),
      Carry(state, MetricSums.zero()),
      Batch(images, label, mask, flip=mask),
      plan.table_in(np.float32),
    )
    assert loss.shape == ()
    for old, new in zip(*map(jax.tree.leaves, (state, carry.state)), strict=True):
      assert (old.shape, old.dtype) == (new.shape, new.dtype)


FOLDER = ROOT / "configs" / "sweeps"
JOBS = {"cifar10_lr_batch": 36, "record_seeds": 10, "imagenet18_machines": 5}


def test_a_sweep_has_its_jobs_seeds_and_nodes(monkeypatch):
  monkeypatch.chdir(ROOT)
  # Leaving the block of the run checks every job.
  scripts = {path.stem: [*load_sweep(str(path)).scripts().values()] for path in FOLDER.glob("*.py")}
  assert {name: len(jobs) for name, jobs in scripts.items()} == JOBS
  assert all("jaxspeed.train" in text for jobs in scripts.values() for text in jobs)
  words = " ".join(scripts["record_seeds"]).split()
  firsts = [int(word.partition("=")[2]) for word in words if "config.seed=" in word]
  assert {first + i for first in firsts for i in range(10)} == set(range(100))
  assert words.count("--config.runs=10") == 10
  for text in scripts["imagenet18_machines"]:
    machines = text.partition("configs/imagenet18.py:")[2].split()[0]
    assert f"#SBATCH --nodes={machines}\n" in text and "#SBATCH --gpus-per-node=8\n" in text
