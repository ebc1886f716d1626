"""The evaluation of images from disk: batches by shape, programs, broken images."""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspeed.cluster import processes
from jaxspeed.cluster.watchdog import heartbeat
from jaxspeed.data.batch import Batch
from jaxspeed.data.disk import rectangles
from jaxspeed.data.disk.decoding import why_broken
from jaxspeed.data.disk.streams import EvalStream
from jaxspeed.data.table import Table
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import BackgroundCompiler, Program, compile_program
from jaxspeed.feeds.protocol import Broken
from jaxspeed.planning.plan import Phase
from jaxspeed.steps import eval_step
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.outcomes import EvalResult, Outcomes
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import TrainSpec

# Batches that wait on the devices. More would only hold memory: the host decodes ahead anyway.
_EVALUATED_AHEAD = 2
# The shapes of rectangles are chosen to fill batches of so many images (eight devices of 256), or
# of an equal share of a small set. Accuracies depend on the shapes, which must depend neither on
# devices nor on `eval.batch_size`.
_SHAPES_FILL = 2048
# Pixels of which the sides of rectangles are multiples.
_SIDES = 8


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """How a phase evaluates a split: each image with a readable header is in just one batch."""

  spec: TrainSpec
  split: Table
  phase: Phase

  @functools.cached_property
  def batches(self) -> list[rectangles.EvalBatch]:
    """Its global batches; the config's `eval` limits the shapes of rectangles."""
    mode, size, limits = self.phase.eval_mode, self.phase.eval_size, self.spec.config.eval
    sizes = self.split.width, self.split.height
    if mode.startswith("rect"):
      shapes = rectangles.choose_shapes(
        *sizes,
        short_side=size,
        limit=limits.shapes,
        multiple=_SIDES,
        batch=max(1, min(_SHAPES_FILL, len(self.split.width) // limits.shapes)),
        resize=self.phase.eval_resize,
      )
    else:
      # "five": the device takes its crops from the middle square of the resized image.
      shapes = rectangles.square(*sizes, self.phase.eval_resize if mode == "five" else size)
    return rectangles.batches(shapes, self.spec.plan.eval_batch_size * self.spec.devices)

  @property
  def shapes(self) -> list[tuple[int, int]]:
    return list(dict.fromkeys(batch.shape for batch in self.batches))

  def key(self, shape: tuple[int, int]) -> tuple:
    """What tells the program of a shape from others of the run."""
    return ("evaluate", self.phase.eval_mode, self.phase.eval_size, shape)

  def jobs(self, variables: Any) -> dict[tuple, Callable[[], Program]]:
    """The functions that compile the programs, given the shapes of the model's variables."""
    spec, parts = self.spec, dict(mode=self.phase.eval_mode, size=self.phase.eval_size)
    function = on_mesh(eval_step.evaluate_batch, spec, **parts, split=(False, True, False))
    sums = mesh_lib.abstract(MetricSums.zero(spec.accumulation), mesh_lib.replicated(spec.mesh))
    jobs: dict[tuple, Callable[[], Program]] = {}
    for shape in self.shapes:
      size = spec.plan.eval_batch_size * spec.devices
      batch = abstract_batch(mesh_lib.sharded(spec.mesh), size, shape)
      batch = batch.replace(index=batch.label)
      jobs[self.key(shape)] = compile_job(spec, function, variables, batch, sums)
    return jobs

  def run(
    self, programs: BackgroundCompiler | Mapping[Any, Program], variables: dict[str, Any]
  ) -> tuple[EvalResult, Broken]:
    """The result, and the images that this process could not read."""
    spec, split = self.spec, self.split
    sums = mesh_lib.replicate(MetricSums.zero(spec.accumulation), spec.mesh)
    images: tuple[Outcomes, ...] = ()
    under_way: collections.deque[MetricSums] = collections.deque()
    with contextlib.closing(
      EvalStream(split, self.batches, resize=self.phase.eval_resize, **how_to_read(spec))
    ) as stream:
      for host in stream:
        batch = host.replace(flip=None)
        program = programs[self.key(host.image.shape[1:3])]
        found = program.call(variables, mesh_lib.split(batch, spec.mesh), sums)
        sums, images = found.sums, images + found.images
        under_way.append(sums)
        if len(under_way) > _EVALUATED_AHEAD:
          jax.block_until_ready(under_way.popleft())
          heartbeat()
    # Images without a readable header are in no batch.
    headless = np.flatnonzero(split.width == 0).tolist()
    broken = stream.broken | {number: why_broken(split, number) for number in headless}
    named = {("eval", split.name(i)): reason for i, reason in sorted(broken.items())}
    return EvalResult(sums, images), named


def how_to_read(spec: TrainSpec) -> dict[str, Any]:
  """Arguments of a stream: this process's part of each batch, and how it reads and decodes."""
  data = spec.config.data
  return {
    "process": jax.process_index(),
    "processes": jax.process_count(),
    "antialias": data.antialias,
    "read_threads": max(1, data.read_threads // processes.on_this_host()),  # its share
  }


def compile_job(
  spec: TrainSpec, function: Callable[..., Any], *arguments: Any, trains: bool = False
) -> Callable[[], Program]:
  """A function that compiles a program of a run; one that trains takes over its first argument."""
  options = (spec.compiler_options if trains else spec.common_options)(jax.default_backend())
  donate = (0,) if trains else ()
  return lambda: compile_program(function, arguments, donate=donate, options=options)


def abstract_batch(sharding: Any, images: int, shape: tuple[int, int]) -> Batch:
  """The shapes of a batch of images of `shape`."""
  array = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
  return Batch(
    image=array((images, *shape, 3), jnp.uint8),
    label=array((images,), jnp.int32),
    mask=array((images,), jnp.bool_),
  )
