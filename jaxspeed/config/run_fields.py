"""The fields that every recipe shares, each stated once with value, type, range and meaning.

The groups of fields are here, in `image_fields.py` and in `training_fields.py`. The fields of
`config.model` are its family's (`registry.py`).
"""

from typing import Annotated, Literal

from pydantic import Field

from jaxspeed.config import kinds
from jaxspeed.config import schema as on
from jaxspeed.config.image_fields import STREAM, Augment, Data, Phases, Pretrained
from jaxspeed.config.registry import Model
from jaxspeed.config.schema import Also, Group, Mark
from jaxspeed.config.training_fields import Average, Optimizer, Proxy, Schedule, Whitening, whitens

_RECTANGLES = on.When(
  lambda c: any("rect" in mode for mode in on.phase_column(c, "eval_mode") or [c["eval.mode"]]),
  "it applies to the modes rect and rect_flip only",
)
_TESTED = on.only("tune_on", "test")
_ONE_PIECE = on.unless("schedule.segments", but=("peak",))
_WHITENS = on.When(whitens, "this model does not begin with a whitening layer")


class Eval(Group):
  """Evaluation."""

  mode: Annotated[
    kinds.EvalMode, on.by_phase("eval.mode", "eval_mode"), Also("tta"), Mark.COMMON, Mark.PREDICT
  ] = "center"
  """the views of an image whose logits are averaged: center; flip: and its flipped copy; six: and
  both moved by a pixel to two corners; selective: six for the least confident quarter of the images
  (predict uses six for each); of streams also rect, rect_flip, five; per phase: phases.eval_mode"""
  batch_size: Annotated[int, Field(ge=1, le=2**20), Also("val_batch_size"), Mark.PREDICT] = 1000
  """images per device and step of an evaluation"""
  image_size: Annotated[kinds.Pixels, STREAM, Mark.PREDICT] = 0
  """side of an evaluated image of a stream, in pixels; 0: the image size of the phase"""
  resize: Annotated[float, Field(ge=1, le=10), STREAM, Mark.PREDICT] = 1.14
  """short side of a stream's image before its crop, in multiples of the image size"""
  shapes: Annotated[int, Field(ge=1, le=1000), _RECTANGLES] = 16
  """largest number of shapes of rectangles"""
  multiple: Annotated[int, Field(ge=1, le=1024), _RECTANGLES] = 8
  """pixels of which the sides of rectangles are multiples"""
  every_epochs: Annotated[int, Field(ge=1, le=100_000)] = 1
  """epochs from one evaluation to the next; the last epoch is always evaluated"""


class Allreduce(Group):
  """The all-reduce of the gradients, on several devices."""

  group_mb: Annotated[kinds.NotNegative, Mark.PLACE] = 8.0
  """megabytes of gradients after which a group of layers is sent; 0: all layers at once"""
  dtype: Literal["float32", "bfloat16", "float16"] = "float32"
  """dtype in which gradients are sent and summed"""


class Checkpoint(Group):
  """Checkpoints."""

  every_seconds: Annotated[kinds.Factor, Also("save_every")] = 60.0
  """seconds of training between two checkpoints; the end of a run is always saved"""
  keep: kinds.Every = 2
  """number of newest checkpoints that are kept"""
  keep_best: Annotated[Literal["none", "top1", "top5", "macro_top1", "loss"], Also("save_best")] = (
    "none"
  )
  """metric of which the best evaluation's checkpoint is kept too, for --step=best; the result stays
  that of the last epoch: the best one is chosen on the evaluation images, which flatters it"""
  on_error: Literal["continue", "stop"] = "continue"
  """whether a run continues or stops when a checkpoint cannot be written"""


class Records(Group):
  """What follows a run, and facts for its DAWNBench entry."""

  loggers: kinds.Loggers = ("tensorboard",)
  """what follows the rows of metrics.jsonl besides TensorBoard: Weights & Biases, Trackio; both as
  in "('wandb', 'trackio')"; (): nothing, TensorBoard neither"""
  thumbnails: Annotated[int, Field(ge=0, le=32)] = 24
  """most images of a kind that a run leaves for its report, of at most 64 pixels a side: of the
  highest loss, correct ones, and of a training batch; 0: no thumbnails.npz"""
  author: Annotated[kinds.Text, _TESTED] = "jaxspeed"
  """author in the DAWNBench entry"""
  author_email: Annotated[kinds.Text, _TESTED] = "jaxspeed@example.org"
  """e-mail address in the DAWNBench entry"""
  code_url: Annotated[kinds.Text, _TESTED] = ""
  """address of the code in the DAWNBench entry"""


class Given(Group):
  """Objects that `jaxspeed.fit` was given in place of fields, in words; '': none.

  They say in the run's folder what was trained; a command cannot set them.
  """

  model: kinds.Text = ""
  optimizer: kinds.Text = ""
  schedule: kinds.Text = ""
  data: kinds.Text = ""


class Config(Group):
  """Every field of a config; a family adds its own to those of `config.model`."""

  name: kinds.Name = ""
  """name of the run and of its folder"""
  seed: Annotated[int, Field(ge=0, le=2**31 - 1), Also("random_seed"), Mark.COMMON] = 0
  """seed of initialisation, shuffling and augmentation"""
  runs: Annotated[int, Field(ge=1, le=10_000)] = 1
  """number of runs, which share one compilation; their seeds are seed, seed + 1, ..."""
  epochs: Annotated[float, Field(gt=0, le=100_000), Mark.COMMON] = 1.0
  """number of epochs; may be fractional: steps = ceil(epochs * steps per epoch)"""
  batch_size: Annotated[
    kinds.Batch, Also("batch bs"), Mark.COMMON, on.by_phase("batch_size", "batch_size", 0)
  ] = 512
  """images in a batch, summed over all devices"""
  accumulate: Annotated[
    kinds.Splits, Also("accum_steps grad_accum gradient_accumulation_steps")
  ] = 1
  """micro-batches per device, run one after the other, each with its own batch norm"""
  precision: Annotated[
    Literal["auto", "float32", "tf32", "bfloat16", "float16", "float64"],
    Also("amp dtype fp16 mixed_precision"),
    Mark.COMMON,
    Mark.PREDICT,
  ] = "auto"
  """auto: the fastest for the device; tf32: float32 with products that GPUs round to TF32;
  float64: for CPUs, to compare programs"""
  loss_scale: Annotated[float, Field(ge=0, le=1e38), on.only("precision", "auto", "float16")] = 0.0
  """factor on the loss in float16; 0: dynamic, as large as gradients allow"""
  loss: kinds.LossName = "cross_entropy"
  """loss of training; or one that --import registers. Evaluations report the cross entropy"""
  label_smoothing: Annotated[
    kinds.ShareBelowOne, on.only("loss", "cross_entropy"), Also("smoothing")
  ] = 0.0
  """share of the target that is spread evenly over all classes"""
  target: kinds.Share = 0.94
  """accuracy to reach, as a fraction; the time when it is first reached is reported; 0: none"""
  target_metric: Literal["top1", "top5"] = "top1"
  """accuracy that is compared with the target, and that patience watches"""
  stop_at_target: Annotated[bool, on.only("target")] = False
  """whether the run ends once the target is reached"""
  patience: Annotated[int, Field(ge=0, le=100_000), Also("early_stopping")] = 0
  """evaluations without a better target_metric after which the run ends; 0: it never ends early. An
  early end leaves out the low learning rates at the end of a schedule, which help most"""
  tune_on: Annotated[Literal["test", "validation"], Mark.EVALUATE] = "test"
  """images to evaluate on; validation: training images that are held out (data.hold_out)"""
  warmup: Annotated[Literal["auto", "on", "off"], on.unless("data.feed", "stream")] = "auto"
  """training on random labels before the clock starts; auto: on accelerators only"""
  cost_per_hour: Annotated[kinds.Factor, Mark.PLACE] = 0.0
  """price of all the hardware in USD; 0: not stated"""
  compile_cache: Annotated[kinds.Text, Mark.PREDICT, Mark.PLACE] = ""
  """folder of compiled programs, not stored with the run; '': JAXSPEED_COMPILE_CACHE or
  ~/.cache/jaxspeed/programs"""
  continue_from: Annotated[kinds.Text, Also("init_from resume_from")] = ""
  """folder of a run whose weights, optimizer and averages a new run begins with, to train longer;
  epochs and learning rates are the new run's. For its weights only, see pretrained.path"""
  given: Given = Given()
  data: Annotated[Data, Mark.EVALUATE] = Data()
  phases: Annotated[Phases, on.only("phases.first_epoch"), Mark.EVALUATE] = Phases()
  pretrained: Annotated[Pretrained, on.not_given("model"), on.only("pretrained.path")] = (
    Pretrained()
  )
  augment: Augment = Augment()
  optimizer: Annotated[Optimizer, on.not_given("optimizer", "clip_norm", "layer_decay")] = (
    Optimizer()
  )
  schedule: Annotated[Schedule, on.not_given("schedule"), _ONE_PIECE] = Schedule()
  average: Annotated[Average, on.unless("average.kind", "none")] = Average()
  whitening: Annotated[Whitening, _WHITENS] = Whitening()
  proxy: Annotated[Proxy, on.only("proxy.keep")] = Proxy()
  eval: Annotated[Eval, Mark.EVALUATE] = Eval()
  allreduce: Allreduce = Allreduce()
  compile: Annotated[Literal["full", "quick"], Mark.PREDICT] = "full"
  """quick: to try things, programs that a CPU compiles in half of the time and that run a little
  slower, and one program for steps with and without a trained whitening bias; results differ by
  rounding only, and name the mode"""
  compiler_options: tuple[kinds.XlaOption, ...] = ()
  """XLA options for the training programs: ("NAME=VALUE", ...)"""
  command_buffers: bool = False
  """whether a GPU launches convolutions and loops from command buffers (CUDA graphs), as XLA does
  with other kernels by default; not timed yet"""
  conv_fusion: Literal["off", "on", "auto"] = "off"
  """whether a GPU adds, masks and offsets in cuDNN's graphs of convolutions, by an experimental
  option of XLA: fewer kernels, and bytes of bottlenecks; not timed yet; auto: on GPUs for which
  results/ measures that it is faster, none so far. It has no effect on CPUs"""
  deterministic: bool = False
  """whether a GPU uses deterministic kernels only, chosen without timing, so that a run and its
  resumption have the same bits: slower, how much depends on the GPU. CPUs need nothing for it"""
  checkpoint: Annotated[Checkpoint, Mark.PLACE] = Checkpoint()
  watchdog_seconds: Annotated[kinds.WatchdogSeconds, Mark.PLACE] = 600.0
  """seconds without progress after which a run is ended; 0: never"""
  heartbeat_seconds: Annotated[int, Field(ge=1, le=86_400), Mark.PLACE] = 30
  """seconds without a sign of life after which a process counts as lost"""
  records: Annotated[Records, Mark.PLACE] = Records()
  model: Annotated[Model, Mark.PREDICT, on.not_given("model")]
