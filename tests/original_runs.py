"""Runs of a recipe from made-up weights on made-up batches, and what PyTorch's originals share."""

import dataclasses

import jax
import numpy as np
import pytest
from tolerances import EQUAL, assert_equal
from toy import load_recipe, toy_arrays, toy_spec

from jaxspeed.data.batch import Batch, seed_key
from jaxspeed.steps.init import init_state
from jaxspeed.steps.programs import on_mesh, step_of

torch = pytest.importorskip("torch")
from torch_nets import arrays, drawn, nchw, tensors  # noqa: E402

functional = torch.nn.functional


# Steps multiply rounding, by norms of a few images and the maxima of pools. By how much says the
# program itself, started a second time from numbers that differ by EQUAL, which is far above what
# one step rounds. A program that multiplied it by more than this would be a test of nothing.
LARGEST_TOLERANCE = 1e-6


def load(file, variant=None, *, batch, **fields):
  """A recipe for 16-pixel images in epochs of four small batches, without augmentation."""
  config = load_recipe(file, variant)
  config.precision = "float64"
  config.batch_size = batch
  config.augment.update(crop_padding=0, flip="none", cutout=0, brightness=0.0, contrast=0.0)
  config.whitening.images = 4 * batch
  config.data.update(image_size=16, train_images=4 * batch, eval_images=batch)
  config.data.update(mean=(120.0, 110.0, 100.0), std=(60.0, 50.0, 70.0))
  config.eval.batch_size = batch
  config.update_from_flattened_dict(fields)
  return config


def filled(shapes, seed):
  """A state of these shapes: every parameter at random, no momentum, averages as the net is."""
  model = {"params": shapes.params, "batch_stats": shapes.batch_stats}
  model = drawn(model, np.random.default_rng(seed))
  state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
  return state.replace(
    **model,
    key=seed_key(0),
    ema=state.ema and model,
    lookahead=state.lookahead and model,
    proxy=shapes.proxy and filled(shapes.proxy, seed + 1),
  )


def weights_of(state):
  """What the tests compare."""
  proxy = state.proxy and weights_of(state.proxy)
  return state.params, state.batch_stats, state.ema, state.lookahead, proxy


def disturbed(state):
  """Every number of a start times 1 +- EQUAL at most."""
  rng = np.random.default_rng(1)

  def move(leaf):
    if not np.issubdtype(leaf.dtype, np.floating):
      return leaf
    return leaf * (1 + EQUAL * rng.uniform(-1, 1, leaf.shape))

  return jax.tree.map(move, state.replace(key=None)).replace(key=state.key)


def distance(a, b):
  """The largest difference between two states, each relative to the largest number of an array."""
  pairs = zip(jax.tree.leaves(weights_of(a)), jax.tree.leaves(weights_of(b)), strict=True)
  return max(np.abs(x - y).max() / np.abs(y).max() for x, y in pairs)


@dataclasses.dataclass(frozen=True)
class Run:
  """Ours: the states before and after some steps, and the batches of these.

  `tolerance`: how far the end moved, relative to the largest number of each array, where every
  number of the start was moved by up to EQUAL.
  """

  spec: object
  start: object
  end: object
  tolerance: float
  images: list
  labels: list


def run(config, steps):
  spec = toy_spec(config)
  data = toy_arrays(config)
  shapes = jax.eval_shape(on_mesh(init_state, spec), seed_key(0), data.train_images)
  start = filled(shapes, seed=0)
  state, moved = start, disturbed(start)
  table, batch = spec.plan.table_in(np.float64), config.batch_size
  programs, images, labels = {}, [], []
  for step in range(steps):
    kind = spec.plan.kind_of(step)
    if kind not in programs:
      # Half of the seconds would be the compiler's.
      programs[kind] = jax.jit(
        on_mesh(step_of(spec), spec, kind=kind),
        compiler_options={"xla_backend_optimization_level": 0},
      )
    rows = (np.arange(batch) + step * batch) % len(data.train_labels)
    part = Batch(data.train_images[rows], data.train_labels[rows], np.ones(batch, bool))
    row = {name: column[step] for name, column in table.items()}
    state, _ = programs[kind](state, part, row)
    moved, _ = programs[kind](moved, part, row)
    normal = (part.image / 255 - np.array(config.data.mean) / 255) / (
      np.array(config.data.std) / 255
    )
    images.append(nchw(normal))
    labels.append(torch.tensor(part.label).long())
  assert len(programs) == len({spec.plan.kind_of(step) for step in range(steps)})
  end = jax.device_get(state)
  tolerance = max(EQUAL, distance(jax.device_get(moved), end))
  assert tolerance < LARGEST_TOLERANCE
  return Run(spec, start, end, tolerance, images, labels)


def leaves(tree, *, bias):
  """The trained parameters of a tree of tensors, biases of norms or all others; not whitening's."""
  return [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    if path[0].key != "whiten" and (path[-1].key == "bias") is bias
  ]


def sgd(params, whiten_bias, *, momentum, rates, decays):
  """torch.optim.SGD with groups of biases, other parameters and the whitening layer's bias."""
  groups = [
    {"params": tensors, "lr": rate, "weight_decay": decay}
    for tensors, rate, decay in zip(
      (leaves(params, bias=True), leaves(params, bias=False), whiten_bias),
      rates,
      decays,
      strict=True,
    )
    if tensors
  ]
  return torch.optim.SGD(groups, lr=1.0, momentum=momentum, nesterov=True)


def set_rates(optimizer, factor):
  for group in optimizer.param_groups:
    group["lr"] = group.setdefault("first", group["lr"]) * factor


def summed_loss(logits, labels, smoothing):
  return functional.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")


def airbench_rate(step, total, warmup, last):
  """airbench94's share of the rate: from a fifth to the whole, then down to the last."""
  first = int(total * warmup)
  if step < first:
    return 0.2 * (1 - step / first) + step / first
  share = (step - first) / (total - first)
  return (1 - share) + last * share


class Lookahead:
  """The slow copy of all parameters and statistics, to which the net goes back."""

  def __init__(self, *trees):
    self.fast = jax.tree.leaves(trees)
    self.slow = [x.detach().clone() for x in self.fast]

  def update(self, decay):
    with torch.no_grad():
      for slow, fast in zip(self.slow, self.fast, strict=True):
        slow.mul_(decay).add_((1 - decay) * fast)
        fast.copy_(slow)


def of_airbench(state):
  params, stats = tensors(state.params, gradients=True), tensors(state.batch_stats)
  params["whiten"]["kernel"].requires_grad_(False)
  return params, stats


def assert_model(state, params, stats, tolerance):
  assert_equal(state.params, arrays(params), tolerance)
  assert_equal(state.batch_stats, arrays(stats), tolerance)


def airbench_decoupled(batch, *, rate, decay):
  """airbench's rate of the summed loss and its decay of a step, from those of 1,024 examples."""
  kilostep = 1024 * (1 + 1 / (1 - 0.85))
  return rate / kilostep, decay * batch / kilostep


def airbench94_optimizer(params, batch, *, rate, decay):
  rate, decay = airbench_decoupled(batch, rate=rate, decay=decay)
  return sgd(
    params,
    [params["whiten"]["bias"]],
    momentum=0.85,
    rates=(64 * rate, rate, rate),
    decays=(decay / (64 * rate), decay / rate, decay / rate),
  )
