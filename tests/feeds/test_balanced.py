"""Balanced sampling and class weights in both feeds: batches, devices, processes, resumption."""

import contextlib
import dataclasses

import jax
import numpy as np
import optax
import pytest
from tolerances import assert_equal
from toy import LinearNet, toy_arrays, toy_config
from toy_images import toy_stream

from jaxspeed.data.batch import balanced_order
from jaxspeed.data.disk.sets import ImageSets
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.feeds.resident import ResidentFeed
from jaxspeed.feeds.stream import batches_from
from jaxspeed.run.setup import class_counts, open_data, plan_of, uneven_classes
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.spec import make_train_spec
from jaxspeed.steps.state import Carry


def resident_feed(devices, **fields):
  """A feed of 70 images in batches of 16, placed on the devices."""
  changed = {"precision": "float64", "data.train_images": 70, "average.kind": "none"}
  config = toy_config(**(changed | {"augment.flip": "alternating"} | fields))
  data, mesh = toy_arrays(config), mesh_lib.make_mesh(devices)
  spec = make_train_spec(
    config,
    plan_of(config, data, devices=devices),
    mesh,
    model=LinearNet(),
    optimizer=optax.identity(),
    class_counts=class_counts(data),
  )
  feed = ResidentFeed(data, spec)
  feed.place()
  return feed, spec, data


def states(feed, carry, first, last):
  """The states after each step, on the host."""
  found = []
  for each in feed.train(carry, 7, first, last):
    found.append(jax.device_get(each.carry.state))
    carry = each.carry
  return found


def carried(state, spec, step):
  """A carry whose next step is `step`."""
  placed = state.replace(step=np.int32(step)), MetricSums.zero(spec.accumulation)
  return Carry(*mesh_lib.replicate(jax.device_get(placed), spec.mesh))


@pytest.mark.equivalence
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("balance", ["sampling", "weights"])
def test_a_resident_run_is_the_same_on_any_devices_and_from_any_step(balance):
  found = {}
  for devices in (1, 8):
    feed, spec, data = resident_feed(devices, **{"data.balance": balance})
    whole = states(feed, carried(feed.init(7), spec, 4), 4, 8)
    rest = states(feed, carried(whole[1], spec, 6), 6, 8)
    found[devices] = whole[-1].params
    if devices == 1:
      for one, other in zip(whole[2:], rest, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
  assert_equal(found[8], found[1])


@pytest.mark.parametrize("last_batch", ["drop", "carry_over"])
def test_the_batches_of_an_epoch_in_memory_are_balanced(last_batch):
  feed, spec, data = resident_feed(
    1, **{"data.balance": "sampling", "data.last_batch": last_batch, "precision": "float32"}
  )
  assert len(feed.programs) == 3  # without one for the order
  for epoch in range(2):
    order = feed._order(7, epoch)
    found = np.bincount(data.train_labels[np.asarray(order.index)], minlength=10)
    assert found.sum() == 4 * 16 and np.ptp(found) <= 1


@pytest.mark.parametrize("last_batch", ["drop", "keep"])
def test_the_batches_of_a_stream_are_balanced_on_any_processes(places, last_batch, monkeypatch):
  phases = {"phases.copies": (20, 0), "data.last_batch": last_batch}
  config = toy_stream(*places, **{"data.balance": "sampling"}, **phases)
  images = open_data(config).sets[0]
  # The second phase reads copies of fewer images, of which class 1 has three and class 3 none.
  label = images.train.label
  kept = np.flatnonzero((label != 3) & ((label != 1) | (np.cumsum(label == 1) <= 3)))
  fewer = images._replace(train=images.train.take(kept))
  sets = ImageSets({20: images, 0: fewer})
  spec = make_train_spec(config, plan_of(config, sets, devices=2), mesh_lib.make_mesh(2))

  def batches(phase, *, skipped=0, process=0, processes=1):
    monkeypatch.setattr(jax, "process_index", lambda: process)
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    first = phase.first_step + skipped
    with contextlib.closing(batches_from(sets, spec, 7, first, {})) as found:
      return [next(found) for _ in range(phase.steps_per_epoch - skipped)]

  for phase, present in zip(spec.plan.phases, (4, 3), strict=True):
    whole = batches(phase)
    label, mask, flip = (
      np.concatenate([getattr(batch, name) for batch in whole])
      for name in ("label", "mask", "flip")
    )
    found = np.bincount(label[mask])
    assert len(found) == present and found.sum() == phase.images and np.ptp(found) <= 1
    split = sets.sets[phase.copies].train
    parts = dict(images=phase.images, flip=config.augment.flip)
    expected = balanced_order(split.label, 7, phase.first_epoch, **parts)
    np.testing.assert_array_equal(label[mask], split.label[expected.index])
    np.testing.assert_array_equal(flip[mask], expected.flip)
    halves = [batches(phase, skipped=1, process=each, processes=2) for each in range(2)]
    for batch, *both in zip(whole[1:], *halves, strict=True):
      for name in ("image", "label", "mask", "flip"):
        joined = np.concatenate([getattr(half, name) for half in both])
        np.testing.assert_array_equal(getattr(batch, name), joined)


def test_a_line_names_the_field_for_uneven_classes():
  config = toy_config(**{"data.train_images": 200, "data.eval_images": 50})
  data = toy_arrays(config)
  assert uneven_classes(config, data) == []
  kept = data.train_labels != 3
  kept[np.flatnonzero(~kept)[0]] = True
  data = dataclasses.replace(
    data, train_images=data.train_images[kept], train_labels=data.train_labels[kept]
  )
  (line,) = uneven_classes(config, data)
  assert "training images and 3 1; --config.data.balance=sampling shows" in line
  config.data.balance = "sampling"
  assert uneven_classes(config, data) == []
