"""Each kind of step against the original's, stated in PyTorch from the published formulas.

In float64, at an eighth of the width, on the batches that the step gets: images are neither
cropped nor mirrored, and the originals' half precision is left out.
"""

import dataclasses
import math

import jax
import numpy as np
import pytest
from tolerances import EQUAL, assert_equal
from toy import load_recipe, toy_arrays, toy_spec

from jaxspeed.data.batch import Batch, seed_key
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps.init import init_state
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.train_step import train_step

torch = pytest.importorskip("torch")
from torch_nets import airbench_logits, arrays, nchw, resnet9_logits, tensors  # noqa: E402

functional = torch.nn.functional

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

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
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    name = path[-1].key
    if name == "kernel":
      fan_in = math.prod(leaf.shape[1:]) if leaf.ndim == 4 else leaf.shape[0]
      return rng.standard_normal(leaf.shape) / fan_in**0.5
    if name == "var":
      return rng.uniform(0.5, 1.5, leaf.shape)
    return 0.2 * rng.standard_normal(leaf.shape) + (name == "scale")

  model = {"params": shapes.params, "batch_stats": shapes.batch_stats}
  model = jax.tree_util.tree_map_with_path(draw, model)
  state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
  return state.replace(
    **model,
    key=seed_key(0),
    average=state.average and model,
    slow=state.slow and model,
    proxy=shapes.proxy and filled(shapes.proxy, seed + 1),
  )


def weights_of(state):
  """What the tests compare."""
  proxy = state.proxy and weights_of(state.proxy)
  return state.params, state.batch_stats, state.average, state.slow, proxy


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
        on_mesh(train_step, spec, kind=kind),
        compiler_options={"xla_backend_optimization_level": 0},
      )
    rows = (np.arange(batch) + step * batch) % len(data.train_labels)
    part = Batch(data.train_images[rows], data.train_labels[rows], np.ones(batch, bool))
    hyper = {name: column[step] for name, column in table.items()}
    state, _ = programs[kind](state, part, hyper)
    moved, _ = programs[kind](moved, part, hyper)
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


def test_airbench94_sgd_with_lookahead():
  """legacy/airbench94.py: eight steps, whose whitening bias is frozen after four."""
  batch, total = 16, 8
  config = load("cifar10_airbench.py", "94", batch=batch, epochs=2.0)
  config.model.widths = (8, 32, 32)
  config.whitening.bias_epochs = 1.0
  config.schedule.peak *= batch / 1024
  ours = run(config, total)

  params, stats = of_airbench(ours.start)
  optimizer = airbench94_optimizer(params, batch, rate=11.5, decay=0.0153)
  lookahead = Lookahead(params, stats)
  for step in range(total):
    params["whiten"]["bias"].requires_grad_(step < 4)
    set_rates(optimizer, airbench_rate(step, total, 0.23, 0.07))
    logits = airbench_logits(ours.spec.model, params, stats, ours.images[step], train=True)
    optimizer.zero_grad(set_to_none=True)
    summed_loss(logits, ours.labels[step], 0.2).sum().backward()
    optimizer.step()
    done = step + 1
    if done % 5 == 0:
      lookahead.update(0.95**5 * (done / total) ** 3)
  lookahead.update(1.0)
  assert_model(ours.end, params, stats, ours.tolerance)
  moved = np.abs(ours.end.params["whiten"]["bias"] - ours.start.params["whiten"]["bias"])
  assert moved.min() > 0


def orthogonal(u, coefficients, epsilon):
  """Three steps of Newton and Schulz's iteration from a filter's update [o, i h w]."""
  a, b, c = coefficients
  x = u / (torch.linalg.norm(u) + epsilon)
  for _ in range(3):
    gram = x @ x.T
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x


class Muon:
  """Muon with Nesterov momentum on filters OHWI, whose matrices have rows of i, h and w."""

  def __init__(self, filters, *, momentum, coefficients, epsilon, decay=0.0):
    self.filters, self.momentum, self.decay = filters, momentum, decay
    self.iteration = (coefficients, epsilon)
    self.buffers = [torch.zeros_like(w) for w in filters]

  def step(self, rate, *, renormalize=True):
    with torch.no_grad():
      for w, buffer in zip(self.filters, self.buffers, strict=True):
        buffer.mul_(self.momentum).add_(w.grad)
        update = w.grad + self.momentum * buffer
        if renormalize:
          w.mul_(len(w) ** 0.5 / torch.linalg.norm(w))
        matrix = update.permute(0, 3, 1, 2).reshape(len(w), -1)
        u = orthogonal(matrix, *self.iteration).reshape(len(w), w.shape[3], *w.shape[1:3])
        w.sub_(rate * u.permute(0, 2, 3, 1)).mul_(1 - rate * self.decay)
        w.grad = None


def load_muon(file, variant, *, batch, epochs, bias_epochs):
  """A recipe of Muon's with its rates of the summed loss, for a small batch."""
  config = load(file, variant, batch=batch, epochs=epochs)
  share = batch / load_recipe(file, variant).batch_size
  config.model.update(widths=(8, 32, 32), head_scale=1 / 32)
  fields = config.optimizer
  fields.update(bias_rate=fields.bias_rate * share, head_rate=fields.head_rate * share)
  fields.update(muon_decay=fields.muon_decay * share, muon_epsilon=fields.muon_epsilon / share)
  config.whitening.update(bias_rate=config.whitening.bias_rate * share, bias_epochs=bias_epochs)
  return config


def muon_run(ours, muon, *, steps, whiten_steps, sgd_momentum, bias_rate, head_rate, decay, rate):
  """What both recipes of Muon's share: `muon` makes theirs, the rest is torch's SGD."""
  total, smoothing = ours.spec.plan.total_steps, ours.spec.config.label_smoothing
  params, stats = of_airbench(ours.start)
  others = [leaf for leaf in leaves(params, bias=False) if leaf.ndim == 2]
  filters = [leaf for leaf in leaves(params, bias=False) if leaf.ndim == 4]
  optimizer = torch.optim.SGD(
    [
      {"params": [params["whiten"]["bias"]], "lr": bias_rate, "weight_decay": decay / bias_rate},
      {"params": leaves(params, bias=True), "lr": bias_rate, "weight_decay": decay / bias_rate},
      {"params": others, "lr": head_rate, "weight_decay": decay / head_rate},
    ],
    momentum=sgd_momentum,
    nesterov=True,
  )
  theirs = muon(filters)
  first = [group["lr"] for group in optimizer.param_groups]
  last = 0
  for step in range(steps):
    params["whiten"]["bias"].requires_grad_(step < whiten_steps)
    logits = airbench_logits(ours.spec.model, params, stats, ours.images[step], train=True)
    summed_loss(logits, ours.labels[step], smoothing).sum().backward()
    left = [1 - step / whiten_steps] + [1 - step / total] * 2
    for group, lr, share in zip(optimizer.param_groups, first, left, strict=True):
      group["lr"] = lr * share
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    renormalize = True
    if ours.spec.config.optimizer.muon_renormalize == "growing":
      # hiverge: 2 steps after the last time at first, 17 in the end.
      renormalize = step + 1 - last >= 2 + int(15 * (step + 1) / total)
      last = step + 1 if renormalize else last
    theirs.step(rate * (1 - step / total), renormalize=renormalize)
  assert_model(ours.end, params, stats, ours.tolerance)


def test_airbench94_muon():
  """airbench94_muon.py: six of eight steps, whose whitening bias is frozen after four."""
  batch = 16
  config = load_muon("cifar10_airbench.py", "94_muon", batch=batch, epochs=2.0, bias_epochs=1.0)

  def muon(filters):
    return Muon(filters, momentum=0.6, coefficients=(3.4445, -4.7750, 2.0315), epsilon=1e-7)

  muon_run(
    run(config, 6),
    muon,
    steps=6,
    whiten_steps=4,
    sgd_momentum=0.85,
    bias_rate=0.053,
    head_rate=0.67,
    decay=2e-6 * batch,
    rate=0.24,
  )


def test_hiverge():
  """cifar10_speedrun.py at 06c6072: six of forty steps, in two of which Muon renormalises.

  The 1e-5 that is added to a norm for the second time, and the 1e-7 to the norms of weights, are
  less than half the spacing of its float16 there, and so nothing.
  """
  batch = 16
  config = load_muon("cifar10.py", None, batch=batch, epochs=10.0, bias_epochs=2.0)
  decay = 1.0418e-6 * batch

  def muon(filters):
    return Muon(
      filters,
      momentum=0.655,
      coefficients=(3.4576, -4.7391, 2.0843),
      epsilon=1e-5,
      decay=decay,
    )

  ours = run(config, 6)
  assert ours.spec.plan.table["renormalize"][:6].tolist() == [0, 1, 0, 0, 1, 0]
  muon_run(
    ours,
    muon,
    steps=6,
    whiten_steps=8,
    sgd_momentum=0.825,
    bias_rate=0.0573,
    head_rate=0.5415,
    decay=decay,
    rate=0.205,
  )


def test_hlb_with_its_average():
  """main.py of version 0.7.0: the average begins in epoch 2, as a copy, and is then gone back to.

  The rate has its knots where the recipe's header says.
  """
  batch, steps = 32, 16
  config = load("cifar10_hlb.py", batch=batch)
  config.model.widths = (8, 32, 64)
  config.optimizer.weight_decay *= batch / 1024
  ours = run(config, steps)
  total = ours.spec.plan.total_steps
  assert total == 49

  params, stats = of_airbench(ours.start)
  rate, decay = 1.525 / 512, 6.687e-4 * batch
  optimizer = sgd(
    params, [], momentum=0.85, rates=(64 * rate, rate, rate), decays=(decay / 64, decay, 0)
  )
  average = None
  for step in range(steps):
    set_rates(optimizer, np.interp(step, [0, int(0.23 * total), total], [0, 1, 0.07]))
    logits = airbench_logits(ours.spec.model, params, stats, ours.images[step], train=True)
    optimizer.zero_grad(set_to_none=True)
    (summed_loss(logits, ours.labels[step], 0.2).sum() * 512 / batch).backward()
    optimizer.step()
    done = step + 1
    if step // 4 >= 2 and done % 5 == 0:
      if average is None:
        average = Lookahead(params, stats)
      else:
        average.update(0.95**5 * (done / total) ** 3)
  assert average is not None
  assert_model(ours.end, params, stats, ours.tolerance)
  slow = {"params": ours.end.slow["params"], "batch_stats": ours.end.slow["batch_stats"]}
  slow = jax.tree.leaves((slow["params"], slow["batch_stats"]))
  assert_equal(slow, arrays(average.slow), ours.tolerance)


def test_airbench96_with_a_proxy():
  """airbench96_faster.py: the small net keeps 8 of 16 images, and learns in steps 0 and 4.

  The large net is one convolution a group shorter than there, for the compiler's time.
  """
  batch, keep, total = 16, 8, 8
  config = load("cifar10_airbench.py", "96_faster", batch=batch, epochs=2.0)
  config.model.update(widths=(16, 48, 64), depth=2)
  config.proxy.update(keep=keep, widths=(4, 8, 8))
  config.schedule.peak *= batch / 1024
  steps = 6
  ours = run(config, steps)
  assert {ours.spec.plan.kind_of(step) for step in range(steps)} == {
    StepKind(whiten_bias=True, proxy_learns=learns) for learns in (True, False)
  }

  small_params, small_stats = of_airbench(ours.start.proxy)
  small_params["whiten"]["bias"].requires_grad_(False)
  small = airbench94_optimizer(small_params, batch, rate=9.0, decay=0.012)
  chosen = []
  for step in range(steps):
    set_rates(small, airbench_rate(step, total, 0.1, 0.0))
    logits = airbench_logits(
      ours.spec.proxy.model, small_params, small_stats, ours.images[step], train=True
    )
    losses = summed_loss(logits, ours.labels[step], 0.2)
    chosen.append(losses.argsort()[-keep:])
    if step % 4 == 0:
      small.zero_grad(set_to_none=True)
      losses[chosen[-1]].sum().backward()
      small.step()

  params, stats = of_airbench(ours.start)
  optimizer = airbench94_optimizer(params, batch, rate=9.0, decay=0.012)
  lookahead = Lookahead(params, stats)
  for step, rows in enumerate(chosen):
    set_rates(optimizer, airbench_rate(step, total, 0.1, 0.0))
    logits = airbench_logits(ours.spec.model, params, stats, ours.images[step][rows], train=True)
    optimizer.zero_grad(set_to_none=True)
    summed_loss(logits, ours.labels[step][rows], 0.2).sum().backward()
    optimizer.step()
    done = step + 1
    if done % 5 == 0:
      lookahead.update(0.95**5 * (done / total) ** 3)
  assert_model(ours.end.proxy, small_params, small_stats, ours.tolerance)
  assert_model(ours.end, params, stats, ours.tolerance)


def test_myrtles_ghost_norm_and_moving_average():
  """bag_of_tricks.ipynb, the rung "ema": the rate in the momentum, 16 ghost batches, an average.

  Each ghost batch has running statistics of its own there; the mean of them is kept here.
  """
  batch, steps, momentum = 32, 5, 0.9
  config = load("cifar10_resnet9.py", "ema", batch=batch, epochs=13.0)
  config.model.width = 8
  ours = run(config, steps)
  model, epochs = ours.spec.model, config.epochs

  params = tensors(ours.start.params, gradients=True)
  params["whiten"]["kernel"].requires_grad_(False)
  stats = [tensors(ours.start.batch_stats) for _ in range(model.ghost_splits)]
  average = tensors((ours.start.params, [ours.start.batch_stats] * model.ghost_splits))
  velocity = jax.tree.map(torch.zeros_like, params)
  for step in range(steps):
    logits = resnet9_logits(model, params, stats, ours.images[step], train=True)
    summed_loss(logits, ours.labels[step], 0.2).sum().backward()
    rate = np.interp((step + 1) / 4, [0, epochs / 5, epochs - 2], [0, 1.0, 0.1]) / batch
    with torch.no_grad():
      for path, w in jax.tree_util.tree_leaves_with_path(params):
        if w.grad is None:
          continue
        factor = 64 if path[-1].key == "bias" else 1
        v = velocity
        for part in path:
          v = v[part.key]
        dw = -rate * factor * (w.grad + 5e-4 * batch / factor * w)
        v.mul_(momentum).add_(dw)
        w.add_(dw + momentum * v)
        w.grad = None
      if step % 4 % 5 == 0:
        keep = 0.99**5
        for slow, now in zip(
          jax.tree.leaves(average), jax.tree.leaves((params, stats)), strict=True
        ):
          slow.mul_(keep).add_((1 - keep) * now)

  def mean(ghosts):
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *ghosts)

  assert_model(ours.end, params, mean(stats), ours.tolerance)
  assert_equal(ours.end.average["params"], arrays(average[0]), ours.tolerance)
  assert_equal(ours.end.average["batch_stats"], arrays(mean(average[1])), ours.tolerance)
