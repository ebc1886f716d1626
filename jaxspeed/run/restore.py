"""The weights in a run's folder, on the devices."""

import pathlib

import flax.linen as nn
import jax
import numpy as np
from ml_collections import ConfigDict

from jaxspeed.cluster.folder_lock import run_has_ended
from jaxspeed.config import output, stored
from jaxspeed.config.given import given_in
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import use_cache
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Plan
from jaxspeed.run.best import CheckpointStep, best_step
from jaxspeed.run.checkpoint import Checkpoints, Restored
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import TrainSpec, make_train_spec
from jaxspeed.steps.state import Carry


def load_config(folder: pathlib.Path) -> ConfigDict:
  """The config of the run in `folder`, with the evaluation mode of its last phase.

  Its `data.cache` is emptied: a downloaded run must not say where to write.

  Raises:
    UserError: the folder holds no run, or several.
  """
  config = stored.load(folder / "config.json")
  config.data.cache = ""
  if config.runs > 1:
    raise UserError(
      f"{folder} holds {config.runs} runs: name one of them, as in {folder / 'run_000'}."
    )
  return with_last_mode(config)


def with_last_mode(config: ConfigDict) -> ConfigDict:
  """The config with the evaluation mode of its last phase in eval.mode, as `evaluate` needs it."""
  if config.phases.first_epoch and config.phases.eval_mode:
    config = config.copy_and_resolve_references()
    config.eval.mode = config.phases.eval_mode[-1]
    config.phases.eval_mode = ()
  return config


def stored_plan(config: ConfigDict) -> Plan:
  """The plan of a run's config, for evaluation: devices need not divide the training batches."""
  # The stored sizes are those after the hold-out; without them the plan would hold out again.
  return make_plan(
    config, train_images=config.data.train_images, eval_images=config.data.eval_images
  )


def open_run(
  folder: pathlib.Path,
  config: ConfigDict,
  checkpoint_step: CheckpointStep,
  *,
  model: nn.Module | None = None,
) -> tuple[TrainSpec, Restored]:
  """The specification and a checkpoint of the run in `folder`.

  Args:
    folder: the run's folder.
    config: its config.
    checkpoint_step: the step of the checkpoint, or "best"; None: that of the newest whole one.
    model: the module that the run was given in place of `config.model`; None: none.

  Raises:
    UserError: the folder holds no whole checkpoint, or not the one that is asked for.
  """
  # The field is empty unless the command line of `evaluate` sets it (`stored.NOT_STORED`).
  use_cache(config.compile_cache)
  spec = make_train_spec(config, stored_plan(config), mesh_lib.make_mesh(), model=model)
  checkpoints = Checkpoints(folder / "checkpoints")
  about = ""
  if checkpoint_step == "best":
    checkpoint_step = best_step(folder, config, checkpoints)
    about = f"--step=best is step {checkpoint_step}; "
  try:
    restored = checkpoints.restore(_abstract_carry(spec), step=checkpoint_step)
  except UserError as error:
    kept = (folder / "checkpoints" / str(checkpoint_step)).exists()
    if about and config.checkpoint.keep_best == "none" and not kept:
      raise UserError(
        f"{folder} kept no checkpoint of its best evaluation, step {checkpoint_step}: leave out "
        "--step=best to take the newest one, and train with --config.checkpoint.keep_best=top1 to "
        "keep the best."
      ) from None
    error.args = (f"{about}{error}",)
    raise
  if restored is None:
    result = folder / "result.json"
    advice = f"remove {result} and train it again" if result.exists() else "train it first"
    raise UserError(f"{folder} holds no whole checkpoint: {advice}.")
  return spec, restored


def note_unfinished(folder: pathlib.Path, step: int, total_steps: int) -> None:
  """Notes that the newest checkpoint of a run is not that of its plan's end."""
  if step < total_steps and not (folder / "result.json").exists():
    # Nothing is known of a process on another host: it may go on.
    how = "ended at" if run_has_ended(folder) else "is at"
    output.note(f"the run in {folder} {how} step {step:,} of {total_steps:,}")


def _abstract_carry(spec: TrainSpec) -> Carry:
  """Shapes and shardings of a run's carry, to restore a checkpoint into."""
  size = spec.plan.phases[0].image_size
  state = jax.eval_shape(
    on_mesh(init_state, spec),
    jax.ShapeDtypeStruct((2,), np.uint32),
    jax.ShapeDtypeStruct((spec.config.data.train_images, size, size, 3), np.uint8),
  )
  if given_in(spec.config).get(
    "optimizer"
  ):  # its state has a structure that only the optimizer knows
    state = state.replace(opt_state=None)
    if state.proxy is not None:
      state = state.replace(proxy=state.proxy.replace(opt_state=None))
  carry = Carry(state, MetricSums.zero(spec.accumulation))
  return mesh_lib.abstract(carry, mesh_lib.replicated(spec.mesh))
