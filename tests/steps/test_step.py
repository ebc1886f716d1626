"""The step: one device equals eight, scan equals loop, overflows, losses of one's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_steps import small_airbench
from tolerances import assert_equal
from toy import toy_arrays, toy_config, toy_spec

from jaxspeed.config.registry import AUGMENTATIONS, LOSSES
from jaxspeed.data.batch import Batch, seed_key
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import options, precision
from jaxspeed.errors import UserError
from jaxspeed.feeds import resident
from jaxspeed.feeds.resident import ResidentFeed, compile_programs
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps import eval_step
from jaxspeed.steps.hard_examples import select_hard_examples
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums, cross_entropy
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.programs import order_of as order_of_job
from jaxspeed.steps.state import Carry
from jaxspeed.steps.train_step import train_step

PLAIN = StepKind()


@pytest.fixture(scope="module", autouse=True)
def _no_evaluation():
  """The program of an evaluation, which only a warm-up calls here, is empty."""

  def empty(spec):
    return on_mesh(lambda *_, spec: jnp.zeros((), jnp.float32), spec)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(eval_step, "evaluate_on_mesh", empty)
    yield


def make_feed(job, *, whole_epochs=False):
  """A feed whose programs run a step on a CPU, or epochs as on accelerators."""
  feed = object.__new__(ResidentFeed)
  feed.spec, feed.data = job, toy_arrays(job.config)
  feed._programs, feed.carry = compile_programs(job, whole_epochs=whole_epochs)
  feed.whole_epochs = whole_epochs
  feed.place()
  return feed


def begin(feed):
  job = feed.spec
  sums = mesh_lib.replicate(MetricSums.zero(job.accumulation), job.mesh)
  return Carry(feed.init(job.config.seed), sums)


def take(feed, carry, first, stop):
  """The carry after the steps `first` <= step < `stop`, and their losses."""
  losses = []
  for done in feed.train(carry, feed.spec.config.seed, first, stop):
    carry = done.carry
    losses.extend(np.atleast_1d(np.asarray(done.losses))[: done.count])
  return carry, losses


def run_steps(job, number, order_of_epoch=None):
  """The carry after `number` steps of the first epoch, and their losses."""
  feed = make_feed(job)
  if order_of_epoch is not None:
    order = feed._order(job.config.seed, 0)
    index = mesh_lib.replicate(order_of_epoch(np.asarray(order.index)), job.mesh)
    feed._order = lambda *_: order.replace(index=index)
  return jax.device_get(take(feed, begin(feed), 0, number))


def regroup(order):
  """An order in whose batches of 64 the images of a ghost batch of eight lie side by side."""
  return order.reshape(4, 8, 8).transpose(0, 2, 1).reshape(-1)


def assert_same_run(first, second, *parts):
  """Carries and losses of two programs are equal, or these parts of the states are."""
  (carry, losses), (other, other_losses) = first, second
  assert_equal(np.array(losses), np.array(other_losses))
  for name in parts:
    assert_equal(getattr(carry.state, name), getattr(other.state, name))


# Ghost batches make the norms of one device see what those of eight do: sample i of its batch is in
# ghost batch i mod 8, so the order for eight devices gives device d the samples d, d + 8, ...
GHOSTS = {"augment.crop_padding": 0, "batch_size": 64, "data.train_images": 256}
GHOSTS["precision"] = "float64"


@pytest.fixture(scope="module")
def ghosts():
  with precision.wide_enough("float64"):
    return run_steps(toy_spec(toy_config(**{"model.ghost_splits": 8}, **GHOSTS)), 4)


@pytest.mark.equivalence
@pytest.mark.parametrize("parts, devices, group_mb", [(8, 1, 4.0), (2, 4, 0.001), (1, 8, 4.0)])
def test_devices_and_accumulated_parts_are_ghost_batches(ghosts, parts, devices, group_mb):
  carry, losses = ghosts
  fields = {"accumulate": parts, "allreduce.group_mb": group_mb} | GHOSTS
  parted = toy_spec(toy_config(**fields), devices=devices)
  other, other_losses = run_steps(parted, 4, regroup)
  assert_same_run(ghosts, (other, other_losses), "params", "batch_stats", "ema", "opt_state")
  assert losses[0] != losses[-1]
  assert carry.sums.count == other.sums.count == 256
  assert carry.sums.top5 == other.sums.top5


@pytest.mark.equivalence
def test_steps_in_the_forms_for_gpus_are_those_of_a_cpu(monkeypatch):
  config = toy_config(precision="float64", **{"data.train_images": 128})
  on_cpu = run_steps(toy_spec(config), 5)
  shared = []

  def on_gpu(*arguments, default, cpu=None, tpu=None):
    if getattr(cpu, "__qualname__", "").startswith("update"):
      shared.extend(x.shape for x in arguments if x.ndim == 1)
    return default(*arguments)

  monkeypatch.setattr(jax.lax, "platform_dependent", on_gpu)
  assert_same_run(on_cpu, run_steps(toy_spec(config), 5), "params", "batch_stats", "opt_state")
  assert (1 + len(toy_spec(config).plan.table),) in shared  # the step's scalars are one array


def assert_epochs_equal_steps(job, *stops):
  """One program takes the steps up to each of `stops` that a loop of steps takes.

  The first ones are steps, as where a CPU saves inside an epoch and an accelerator resumes.
  """
  by_step, whole = (make_feed(job, whole_epochs=each) for each in (False, True))
  assert whole.whole_epochs
  whole.warm_up()
  carry, other = begin(by_step), begin(by_step)
  losses, told = [], []
  for first, stop in zip((0, *stops), stops, strict=False):
    carry, part = take(by_step, carry, first, stop)
    losses += part
    other, part = take(whole if first else by_step, other, first, stop)
    told += part
  assert_equal(np.array(told), np.array(losses))
  assert_equal(jax.device_get(other), jax.device_get(carry))
  return whole


@pytest.mark.equivalence
def test_one_program_of_epochs_of_any_length_and_any_calls_equals_a_loop_of_steps(monkeypatch):
  # The program draws the numbers of crops, squares and erasing before its loop, a step its own.
  fields = {"augment.flip": "random", "augment.cutout": 3, "augment.erasing": 0.5, "epochs": 1.5}
  job = toy_spec(toy_config(precision="float64", **fields))
  # Epochs of 4 and 2 steps; the second part begins inside an epoch, where a CPU may have saved.
  feed = assert_epochs_equal_steps(job, 3, 4, 6)
  feed._steps_per_call = 4
  whole, losses = take(feed, begin(feed), 0, 4)
  monkeypatch.setattr(resident, "_SECONDS", 0.0)
  feed._steps_per_call = 2
  counts = [done.count for done in feed.train(begin(feed), 0, 0, 4)]
  assert counts == [2, 1, 1]
  feed._steps_per_call = 2
  carry, told = take(feed, begin(feed), 0, 4)
  assert told == losses
  for one, other in zip(jax.tree.leaves(carry.state), jax.tree.leaves(whole.state), strict=True):
    np.testing.assert_array_equal(one, other)
  assert_equal(jax.device_get(carry.sums), jax.device_get(whole.sums))


@pytest.mark.equivalence
def test_one_program_takes_steps_of_two_kinds_in_turns():
  # A proxy learns in every third step; the second part begins between two of them.
  fields = {"proxy.keep": 6, "proxy.every": 3, "model.depth": 2, "precision": "float64"}
  fields |= {"whitening.bias_epochs": 0.0}
  job = toy_spec(small_airbench("96_faster", **fields))
  (span,) = job.plan.step_ranges()
  assert len(span.kinds) == 3
  assert_epochs_equal_steps(job, 2, 4, 8)


def test_carried_epochs_show_each_image_once_before_one_comes_again():
  # Batches of 16 out of 70 images: 4 steps an epoch, which leave 6 over.
  job = toy_spec(toy_config(**{"data.last_batch": "carry_over", "data.train_images": 70}))
  order_of = jax.jit(on_mesh(order_of_job, job))
  orders = [order_of(seed_key(0), np.int32(epoch)) for epoch in range(job.plan.epochs)]
  shown = np.concatenate([order.index[: 4 * 16] for order in orders])
  assert sorted(shown[:70]) == list(range(70)) and len(shown) == job.plan.examples(8) == 128


def one_step(job):
  """A state, a batch of 16, and the compiled step."""
  arrays = toy_arrays(job.config)
  batch = Batch(arrays.train_images[:16], arrays.train_labels[:16], np.ones(16, bool))
  state = jax.jit(on_mesh(init_state, job))(seed_key(0), arrays.train_images)
  return state, batch, jax.jit(on_mesh(train_step, job, kind=PLAIN))


def test_a_batch_without_examples_leaves_finite_parameters():
  state, batch, train = one_step(toy_spec(toy_config(**{"augment.crop_padding": 0})))
  row = {"learning_rate": jnp.float32(0.1), "average_keep": jnp.float32(1.0)}
  new, sums = train(state, batch.replace(mask=np.zeros(16, bool)), row)
  assert int(sums.count) == 0
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new.params))


@pytest.mark.float16
def test_an_overflow_skips_the_step_and_halves_the_scale():
  job = toy_spec(toy_config(precision="float16", **{"augment.crop_padding": 0}))
  state, batch, train = one_step(job)
  huge = state.replace(loss_scale=state.loss_scale.replace(scale=jnp.float32(2.0**40)))
  huge = mesh_lib.replicate(huge, job.mesh)
  row = {"learning_rate": jnp.float32(0.1), "average_keep": jnp.float32(0.5)}
  new, _ = train(huge, batch, row)
  for name in ("params", "opt_state", "ema"):
    jax.tree.map(np.testing.assert_array_equal, getattr(new, name), getattr(state, name))
  assert float(new.loss_scale.scale) == 2.0**39
  assert int(new.step) == 1
  train(new, batch, row)
  assert train._cache_size() == 1


def of_labels(labels):
  """A loss that looks up the labels of images by their numbers: the cross entropy."""
  labels = jnp.asarray(labels)

  def losses(logits, target, batch, done):
    by_number = jax.nn.one_hot(labels[batch.index], logits.shape[-1], dtype=logits.dtype)
    return cross_entropy(logits, by_number)

  return lambda config: losses


@pytest.mark.equivalence
def test_a_loss_of_ones_own_sees_the_number_of_each_image(monkeypatch):
  config = toy_config(precision="float64", label_smoothing=0.0, accumulate=2)
  plain = run_steps(toy_spec(config, devices=2), 3)
  monkeypatch.setitem(LOSSES, "by_number", of_labels(toy_arrays(config).train_labels))
  config.loss = "by_number"
  assert_same_run(plain, run_steps(toy_spec(config, devices=2), 3), "params")
  monkeypatch.setitem(LOSSES, "by_number", lambda config: lambda logits, *_: logits.mean())
  with pytest.raises(UserError, match=r"'by_number' returns an array of shape \(\) for 8 images"):
    run_steps(toy_spec(config), 1)


@pytest.mark.usefixtures("float64")
def test_an_augmentation_of_ones_own_changes_what_is_learned_but_not_what_is_counted(monkeypatch):
  def sums_with(change, steps=1):
    monkeypatch.setitem(AUGMENTATIONS, "mine", lambda config: change)
    own = "mine" if change else ""
    config = toy_config(**{"augment.own": own, "label_smoothing": 0.0})
    carry, _ = run_steps(toy_spec(config), steps)
    return carry.sums

  plain = sums_with(None)
  zeros = sums_with(lambda key, batch, done: batch.replace(label=0 * batch.label))
  assert (zeros.top1, zeros.top5, zeros.count) == (plain.top1, plain.top5, plain.count)
  assert abs(zeros.loss - plain.loss) > 0.1
  pruned = sums_with(lambda key, batch, done: batch.replace(mask=batch.mask & (batch.index < 32)))
  assert 0 < pruned.count < plain.count == 16 and pruned.loss < plain.loss
  begun = sums_with(
    lambda key, batch, done: batch.replace(mask=batch.mask & (0 < done) & (done < 1)), steps=2
  )
  assert begun.count == plain.count  # of the second step alone


@pytest.mark.equivalence
def test_quick_programs_compute_the_same_steps():
  fields = {"precision": "float64", "whitening.bias_epochs": 0.5}
  full = toy_spec(small_airbench("94", **fields))
  quick = toy_spec(small_airbench("94", **fields, compile="quick"))
  assert [len(job.plan.step_ranges()) for job in (full, quick)] == [2, 1]
  assert options.quick("cpu").items() <= quick.common_options("cpu").items()
  assert options.quick("gpu") == {} != options.quick("cpu")
  runs = [run_steps(job, 4) for job in (full, quick)]  # two of them train the bias
  assert_same_run(*runs, "params", "batch_stats", "lookahead")


def test_a_proxy_keeps_no_masked_image():
  job = toy_spec(small_airbench("96_faster", **{"proxy.keep": 6, "model.depth": 2}))
  arrays = toy_arrays(job.config)
  proxy = jax.jit(on_mesh(init_state, job))(seed_key(0), arrays.train_images).proxy
  images = np.random.default_rng(0).standard_normal((16, 12, 12, 3)).astype(np.float32)
  row = {name: column[0] for name, column in job.plan.table_in(np.float32).items()}
  choose = jax.jit(on_mesh(select_hard_examples, job.proxy, keep=6, kind=PLAIN))

  def kept(mask):
    labels, weight = arrays.train_labels[:16], np.zeros(16, np.float32)
    batch = Batch(images, labels, mask, partner=labels, partner_weight=weight)
    return set(choose(proxy, batch, row)[1].tolist())

  first = kept(np.ones(16, bool))
  assert len(first) == 6
  assert not kept(~np.isin(np.arange(16), [*first])) & first


def test_the_seed_decides_the_parameters_and_the_first_images_the_whitening():
  job = toy_spec(toy_config(**{"whitening.images": 32}))
  init = jax.jit(on_mesh(init_state, job))
  images = toy_arrays(job.config).train_images
  others, turned = images.copy(), images.copy()
  others[32:], turned[:32] = 0, images[:32][::-1, ::-1]
  first, same, turned, other = (
    init(seed_key(seed), each).params
    for seed, each in ((1, images), (1, others), (1, turned), (2, images))
  )
  jax.tree.map(np.testing.assert_array_equal, first, same)
  assert not np.allclose(first["whiten"]["kernel"], turned["whiten"]["kernel"])
  np.testing.assert_array_equal(first["head"]["kernel"], turned["head"]["kernel"])
  assert not np.array_equal(first["head"]["kernel"], other["head"]["kernel"])
