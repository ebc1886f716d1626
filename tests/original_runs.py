"""Runs of a recipe from made-up weights on made-up batches, and what PyTorch's originals share."""

import collections

import jax
import numpy as np
import pytest
from recipes import get_config
from tolerances import assert_equal
from toy import state_of, toy_arrays, toy_spec

from jaxspeed.data.batch import Batch
from jaxspeed.steps.programs import on_mesh, step_of

torch = pytest.importorskip("torch")
from torch_nets import airbench_logits, arrays, nchw, tensors  # noqa: E402

# Steps multiply rounding, by norms of a few images and the maxima of pools: ends of runs that began
# 1e-11 apart are up to 2e-9 apart.
TOLERANCE = 1e-8


def load(file, variant="", *, batch, **fields):
  """A recipe for 16-pixel images in epochs of four small batches, without augmentation."""
  config = get_config(file, variant)
  config.precision = "float64"
  config.batch_size = batch
  config.augment.update(crop_padding=0, flip="none", cutout=0, brightness=0.0, contrast=0.0)
  config.whitening.images = 4 * batch
  config.data.update(image_size=16, train_images=4 * batch, eval_images=batch)
  config.data.update(mean=(120.0, 110.0, 100.0), std=(60.0, 50.0, 70.0))
  config.eval.batch_size = batch
  config.update_from_flattened_dict(fields)
  return config


# Ours: the states before and after some steps, and the images and labels of these.
Run = collections.namedtuple("Run", "spec start end batches")


def run(config, steps):
  spec = toy_spec(config)
  data = toy_arrays(config)
  state = start = state_of(spec)
  table, batch = spec.plan.table_in(np.float64), config.batch_size
  mean, std = np.array(config.data.mean), np.array(config.data.std)
  programs, batches = {}, []
  for step in range(steps):
    kind = spec.plan.kind_of(step)
    if kind not in programs:
      programs[kind] = jax.jit(on_mesh(step_of(spec), spec, kind=kind))
    rows = (np.arange(batch) + step * batch) % len(data.train_labels)
    part = Batch(data.train_images[rows], data.train_labels[rows], np.ones(batch, bool))
    state, _ = programs[kind](state, part, {name: column[step] for name, column in table.items()})
    batches.append((nchw((part.image - mean) / std), torch.tensor(part.label).long()))
  return Run(spec, start, jax.device_get(state), batches)


def leaves(tree, *, bias):
  """The trained parameters of a tree of tensors, biases of norms or all others; not whitening's."""
  return [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    if path[0].key != "whiten" and (path[-1].key == "bias") is bias
  ]


def of_airbench(state):
  params, stats = tensors(state.params, gradients=True), tensors(state.batch_stats)
  params["whiten"]["kernel"].requires_grad_(False)
  return params, stats


def sgd(params, *, rates, decays):
  """torch.optim.SGD with groups of biases, other parameters and the whitening layer's bias."""
  bias = params["whiten"].get("bias")
  parts = (leaves(params, bias=True), leaves(params, bias=False), [] if bias is None else [bias])
  groups = [
    {"params": part, "lr": rate, "weight_decay": decay, "first": rate}
    for part, rate, decay in zip(parts, rates, decays, strict=True)
    if part
  ]
  return torch.optim.SGD(groups, lr=1.0, momentum=0.85, nesterov=True)


def airbench_sgd(params, batch, *, rate, decay):
  """legacy/airbench94.py: rate and decay of a summed loss from those of 1,024 examples."""
  kilostep = 1024 * (1 + 1 / (1 - 0.85))
  rate, decay = rate / kilostep, decay * batch / kilostep
  decays = (decay / (64 * rate), decay / rate, decay / rate)
  return sgd(params, rates=(64 * rate, rate, rate), decays=decays)


def airbench_rate(step, total, warmup, last):
  """airbench94's share of the rate: from a fifth to the whole, then down to the last."""
  first = int(total * warmup)
  if step < first:
    return 0.2 * (1 - step / first) + step / first
  share = (step - first) / (total - first)
  return (1 - share) + last * share


def losses_of(model, params, stats, images, labels, smoothing=0.2):
  """Each image's loss of an airbench net."""
  logits = airbench_logits(model, params, stats, images, train=True)
  return summed_loss(logits, labels, smoothing)


def summed_loss(logits, labels, smoothing):
  return torch.nn.functional.cross_entropy(
    logits, labels, label_smoothing=smoothing, reduction="none"
  )


def take_step(optimizer, loss, factor):
  """A step of PyTorch's optimizer at a share of its rates."""
  for group in optimizer.param_groups:
    group["lr"] = group["first"] * factor
  optimizer.zero_grad(set_to_none=True)
  loss.backward()
  optimizer.step()


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


def assert_model(state, params, stats):
  assert_equal(state.params, arrays(params), TOLERANCE)
  assert_equal(state.batch_stats, arrays(stats), TOLERANCE)
