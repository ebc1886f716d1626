"""Each kind of step against the original's, stated in PyTorch from the published formulas.

In float64, at an eighth of the width, on the batches that the step gets: images are neither
cropped nor mirrored, and the originals' half precision is left out.
"""

import jax
import numpy as np
import original_runs as runs
import pytest
from recipes import get_config
from tolerances import assert_equal

from jaxspeed.planning.plan import StepKind

torch = pytest.importorskip("torch")
from torch_nets import Muon, arrays, resnet9_logits, tensors  # noqa: E402

pytestmark = pytest.mark.equivalence


def test_airbench94_sgd_with_lookahead():
  """legacy/airbench94.py: eight steps, whose whitening bias is frozen after four."""
  batch, total = 16, 8
  config = runs.load("cifar10_airbench", "94", batch=batch, epochs=2.0)
  config.model.widths = (8, 32, 32)
  config.whitening.bias_epochs = 1.0
  config.schedule.peak *= batch / 1024
  ours = runs.run(config, total)

  params, stats = runs.of_airbench(ours.start)
  optimizer = runs.airbench_sgd(params, batch, rate=11.5, decay=0.0153)
  lookahead = runs.Lookahead(params, stats)
  for step, (images, labels) in enumerate(ours.batches):
    params["whiten"]["bias"].requires_grad_(step < 4)
    loss = runs.losses_of(ours.spec.model, params, stats, images, labels).sum()
    runs.take_step(optimizer, loss, runs.airbench_rate(step, total, 0.23, 0.07))
    done = step + 1
    if done % 5 == 0:
      lookahead.update(0.95**5 * (done / total) ** 3)
  lookahead.update(1.0)
  runs.assert_model(ours.end, params, stats)
  moved = np.abs(ours.end.params["whiten"]["bias"] - ours.start.params["whiten"]["bias"])
  assert moved.min() > 0


@pytest.mark.parametrize("name", ["airbench94_muon", "hiverge"])
def test_recipes_of_muon(name):
  """airbench94_muon.py: six of eight steps, whose whitening bias is frozen after four.

  And cifar10_speedrun.py at 06c6072: six of forty steps, in two of which Muon renormalises. The
  1e-5 that is added to a norm for the second time, and the 1e-7 to the norms of weights, are less
  than half the spacing of its float16 there, and so nothing.
  """
  batch, steps, hiverge = 16, 6, name == "hiverge"
  recipe = ("cifar10",) if hiverge else ("cifar10_airbench", "94_muon")
  config = runs.load(*recipe, batch=batch, epochs=10.0 if hiverge else 2.0)
  # The recipe's rates of the summed loss, for a small batch.
  share = batch / get_config(*recipe).batch_size
  config.model.update(widths=(8, 32, 32), head_scale=1 / 32)
  fields, whitening = config.optimizer, config.whitening
  fields.update(
    bias_rate_factor=fields.bias_rate_factor * share,
    head_rate_factor=fields.head_rate_factor * share,
  )
  fields.update(muon_decay=fields.muon_decay * share, muon_epsilon=fields.muon_epsilon / share)
  whitening.update(
    bias_rate_factor=whitening.bias_rate_factor * share, bias_epochs=2.0 if hiverge else 1.0
  )
  ours = runs.run(config, steps)
  total, smoothing = ours.spec.plan.total_steps, ours.spec.config.label_smoothing
  assert total == (40 if hiverge else 8)

  if hiverge:
    whiten_steps, momentum, rate, muon_decay = 8, 0.825, 0.205, 1.0418e-6 * batch
    bias_rate, head_rate, decay = 0.0573, 0.5415, 1.0418e-6 * batch
    muon = dict(momentum=0.655, coefficients=(3.4576, -4.7391, 2.0843), epsilon=1e-5)
  else:
    whiten_steps, momentum, rate, muon_decay = 4, 0.85, 0.24, 0.0
    bias_rate, head_rate, decay = 0.053, 0.67, 2e-6 * batch
    muon = dict(momentum=0.6, coefficients=(3.4445, -4.7750, 2.0315), epsilon=1e-7)
  params, stats = runs.of_airbench(ours.start)
  others = runs.leaves(params, bias=False)
  theirs = Muon([leaf for leaf in others if leaf.ndim == 4], decay=muon_decay, **muon)
  groups = (
    ([params["whiten"]["bias"]], bias_rate),
    (runs.leaves(params, bias=True), bias_rate),
    ([leaf for leaf in others if leaf.ndim == 2], head_rate),
  )
  optimizer = torch.optim.SGD(
    [{"params": part, "lr": lr, "weight_decay": decay / lr} for part, lr in groups],
    momentum=momentum,
    nesterov=True,
  )
  last, renormalized = 0, []
  for step, batch in enumerate(ours.batches):
    params["whiten"]["bias"].requires_grad_(step < whiten_steps)
    runs.losses_of(ours.spec.model, params, stats, *batch, smoothing).sum().backward()
    left = [1 - step / whiten_steps] + [1 - step / total] * 2
    for group, (_, lr), share in zip(optimizer.param_groups, groups, left, strict=True):
      group["lr"] = lr * share
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    # hiverge: 2 steps after the last time at first, 17 in the end.
    due = not hiverge or step + 1 - last >= 2 + int(15 * (step + 1) / total)
    last = step + 1 if due else last
    renormalized.append(due)
    theirs.step(rate * (1 - step / total), renormalize=due)
  assert renormalized == ([0, 1, 0, 0, 1, 0] if hiverge else [1] * 6)
  runs.assert_model(ours.end, params, stats)


def test_hlb_with_its_average():
  """main.py of version 0.7.0: the average begins in epoch 2, as a copy, and is then gone back to.

  The rate has its knots where the recipe's header says.
  """
  batch, steps, average = 32, 16, None
  config = runs.load("cifar10_hlb", batch=batch)
  config.model.widths = (8, 32, 64)
  config.optimizer.weight_decay *= batch / 1024
  ours = runs.run(config, steps)
  total = ours.spec.plan.total_steps
  assert total == 49

  params, stats = runs.of_airbench(ours.start)
  rate, decay = 1.525 / 512, 6.687e-4 * batch
  optimizer = runs.sgd(params, rates=(64 * rate, rate, rate), decays=(decay / 64, decay, 0))
  for step, (images, labels) in enumerate(ours.batches):
    loss = runs.losses_of(ours.spec.model, params, stats, images, labels).sum() * 512 / batch
    runs.take_step(optimizer, loss, np.interp(step, [0, int(0.23 * total), total], [0, 1, 0.07]))
    done = step + 1
    if step // 4 >= 2 and done % 5 == 0:
      if average is None:
        average = runs.Lookahead(params, stats)
      else:
        average.update(0.95**5 * (done / total) ** 3)
  assert average is not None
  runs.assert_model(ours.end, params, stats)
  slow = jax.tree.leaves((ours.end.lookahead["params"], ours.end.lookahead["batch_stats"]))
  assert_equal(slow, arrays(average.slow), runs.TOLERANCE)


def test_airbench96_with_a_proxy():
  """airbench96_faster.py: the small net keeps 8 of 16 images, and learns in steps 0 and 4.

  The large net is one convolution a group shorter than there, for the compiler's time.
  """
  batch, keep, total, steps = 16, 8, 8, 6
  config = runs.load("cifar10_airbench", "96_faster", batch=batch, epochs=2.0)
  config.model.update(widths=(16, 48, 64), depth=2)
  config.proxy.update(keep=keep, widths=(4, 8, 8))
  config.schedule.peak *= batch / 1024
  ours = runs.run(config, steps)
  assert {ours.spec.plan.kind_of(step) for step in range(steps)} == {
    StepKind(whiten_bias=True, proxy_learns=learns) for learns in (True, False)
  }

  params, stats = runs.of_airbench(ours.start)
  small_params, small_stats = runs.of_airbench(ours.start.proxy)
  small_params["whiten"]["bias"].requires_grad_(False)
  optimizer, small = (
    runs.airbench_sgd(each, batch, rate=9.0, decay=0.012) for each in (params, small_params)
  )
  lookahead = runs.Lookahead(params, stats)
  for step, (images, labels) in enumerate(ours.batches):
    factor = runs.airbench_rate(step, total, 0.1, 0.0)
    losses = runs.losses_of(ours.spec.proxy.model, small_params, small_stats, images, labels)
    rows = losses.argsort()[-keep:]
    if step % 4 == 0:
      runs.take_step(small, losses[rows].sum(), factor)
    loss = runs.losses_of(ours.spec.model, params, stats, images[rows], labels[rows]).sum()
    runs.take_step(optimizer, loss, factor)
    done = step + 1
    if done % 5 == 0:
      lookahead.update(0.95**5 * (done / total) ** 3)
  runs.assert_model(ours.end.proxy, small_params, small_stats)
  runs.assert_model(ours.end, params, stats)


def test_myrtles_ghost_norm_and_moving_average():
  """bag_of_tricks.ipynb, the rung "ema": the rate in the momentum, 16 ghost batches, an average.

  Each ghost batch has running statistics of its own there; the mean of them is kept here.
  """
  batch, steps, momentum = 32, 5, 0.9
  config = runs.load("cifar10_resnet9", "ema", batch=batch, epochs=13.0)
  config.model.width = 8
  ours = runs.run(config, steps)
  model, epochs = ours.spec.model, config.epochs

  params = tensors(ours.start.params, gradients=True)
  params["whiten"]["kernel"].requires_grad_(False)
  stats = [tensors(ours.start.batch_stats) for _ in range(model.ghost_splits)]
  average = tensors((ours.start.params, [ours.start.batch_stats] * model.ghost_splits))
  velocity = jax.tree.map(torch.zeros_like, params)
  for step, (images, labels) in enumerate(ours.batches):
    logits = resnet9_logits(model, params, stats, images, train=True)
    runs.summed_loss(logits, labels, 0.2).sum().backward()
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

  runs.assert_model(ours.end, params, mean(stats))
  assert_equal(ours.end.ema["params"], arrays(average[0]), runs.TOLERANCE)
  assert_equal(ours.end.ema["batch_stats"], arrays(mean(average[1])), runs.TOLERANCE)
