"""The lines printed before the first step of a run."""

import pathlib
from collections.abc import Sequence

import jax

from jaxspeed.cluster import processes
from jaxspeed.devices import allreduce, options
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.feeds.protocol import Feed, OpenData
from jaxspeed.planning.plan import left_out
from jaxspeed.planning.text import describe_average
from jaxspeed.records.clock import Clock
from jaxspeed.records.console import Screen
from jaxspeed.records.provenance import describe_device
from jaxspeed.records.results import images_of
from jaxspeed.run.setup import uneven_classes
from jaxspeed.steps.spec import TrainSpec


def print_header(
  screen: Screen, spec: TrainSpec, data: OpenData, notes: Sequence[str], folder: pathlib.Path
) -> None:
  """Prints what a run will do, and notes on its weights and data."""
  config, plan = spec.config, spec.plan
  epochs = f"{config.epochs:g} epoch{'s' * (config.epochs != 1)}"
  sizes = " -> ".join(dict.fromkeys(f"{p.batch_size}" for p in plan.phases))
  device = describe_device()
  if spec.devices > 1:
    device += f"; {processes.describe()}, mesh {mesh_lib.AXIS}={spec.devices}"
  initial = _initial(spec)
  screen.header(
    {
      "recipe": f"{config.name}, seed {config.seed}, {config.precision}",
      "device": device,
      "data": data.source,
      "plan": f"{plan.total_steps} steps of {sizes} images, "
      f"{epochs}; evaluation of {plan.eval_images} {images_of(data.evaluated_on)}",
      **({"initial": initial} if initial else {}),
      "weights": f"evaluation uses {describe_average(config.average)}",
      "programs": "; ".join(plan.programs()),
      "workdir": str(folder),
    }
  )
  of_options = options.notes(config.deterministic, config.conv_fusion, jax.default_backend())
  of_data = (*data.notes, *uneven_classes(config, data))
  own = config.records.note
  for note in filter(None, (own, *notes, *of_data, *left_out(config, plan), *of_options)):
    screen.line(note)


def _initial(spec: TrainSpec) -> str:
  """What a run begins with, and what of it never changes; '': new weights."""
  fields = spec.config.pretrained
  if spec.config.continue_from:
    return f"the weights, optimizer and averages of {spec.config.continue_from}"
  if not fields.path:
    return ""
  head = "a new last layer" if fields.head == "new" else "its last layer"
  frozen = f"; frozen: {', '.join(spec.frozen)}" if spec.frozen else ""
  return f"the weights in {fields.path} with {head}{frozen}"


def print_compiled(screen: Screen, spec: TrainSpec, feed: Feed, clock: Clock) -> None:
  """Prints the model's size, and what was compiled for the first steps."""
  sizes = {
    part: sum(leaf.size for leaf in jax.tree.leaves(tree))
    for part, tree in feed.carry.state.params.items()
  }
  trained = sum(size for part, size in sizes.items() if part not in spec.frozen)
  # `count_flops` of the program of an epoch is that of a step.
  programs = feed.programs
  flops = (
    sum(program.flops for program in programs[:1]) / spec.plan.phases[0].batch_size * spec.devices
  )
  cold = sum(not program.cached for program in programs)
  wall = clock.state()["compile"]
  seconds = sum(program.seconds for program in programs)
  lines = {
    "model": f"{spec.config.model.name}, {sum(sizes.values()):,} parameters"
    + (f", {trained:,} of them trained" if spec.frozen else "")
    + (f", {flops / 1e6:,.0f} MFLOP an image and step" if flops else ""),
    "compiled": f"{len(programs)} programs in {wall:.1f} s: {cold} compiled, "
    f"{len(programs) - cold} from the cache ({seconds:.1f} s summed over threads)",
  }
  if spec.devices > 1 and programs:
    lines["gradients"] = f"{allreduce.describe(programs[0].text())} a step"
  screen.header(lines)
