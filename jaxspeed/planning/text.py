"""A plan as text and as CSV, and its average in words."""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from jaxspeed.config import output
from jaxspeed.optim.make import Group
from jaxspeed.planning.plan import Plan, momenta


def describe(config: ConfigDict, plan: Plan) -> str:
  """The plan as text: steps and images of the phases, learning rates, evaluation, its note."""
  rate = plan.table["learning_rate"]
  turns = sorted({0, int(np.argmax(rate)), plan.total_steps - 1})
  lines = [f"{config.name}: {plan.total_steps} steps, {plan.examples(plan.total_steps)} images"]
  for phase in plan.phases:
    first, last = phase.first_epoch + 1, phase.first_epoch + phase.epochs
    lines.append(
      f"{f'epoch {first}' if first == last else f'epochs {first}-{last}'}: "
      f"{phase.steps_per_epoch} steps an epoch, batch {phase.batch_size}, "
      f"{phase.image_size} x {phase.image_size} pixels"
    )
  schedule = "segments" if config.schedule.segments else config.schedule.name
  lines.append(
    f"optimizer: {config.optimizer.name}; learning rate: {schedule}, every step in --csv"
  )
  lines += [f"learning rate at step {step + 1}: {rate[step]:.6g}" for step in turns]
  modes = " -> ".join(dict.fromkeys(phase.eval_mode for phase in plan.phases))
  lines.append(f"evaluation: {plan.eval_images} images, mode {modes}")
  return "\n".join([*lines, *filter(None, [config.records.note])])


# What `Published.rates_for` means.
_ORIGINAL = {
  "summed loss": "learning rates for the summed loss, and the decay of a step",
  "1,024 images": "for 1,024 images, before momentum lengthens steps 1 + 1 / (1 - momentum) times",
}
_COLUMNS = "group,parameters,learning rate,weight decay,momentum,original's,decay".split(",")


def group_lines(
  config: ConfigDict,
  plan: Plan,
  groups: Mapping[str, Group],
  counts: Mapping[str, int],
  rates_for: str,
) -> Iterator[str]:
  """A table of the groups of parameters: their sizes, learning rates, decays and momenta.

  `groups` says how each label is trained, `counts` how many parameters have it, and `rates_for` is
  that of `Published`.
  """
  fields, batch = config.optimizer, plan.phases[0].batch_size
  if fields.name not in ("sgd", "muon"):
    rates_for = ""  # the originals' units are those of SGD
  images, rate_unit, decay_unit = config.proxy.keep or batch, 1.0, 1.0  # the loss is their mean
  if rates_for == "1,024 images":
    rate_unit = 1024 * (1 + 1 / (1 - fields.momentum))
    decay_unit = rate_unit / batch
  rows = [_COLUMNS]
  for label, count in sorted(counts.items(), key=lambda each: -each[1]):
    group = groups[label]
    rates = plan.table[group.rate_name] * group.rate_factor if group.rule else np.zeros(1)
    ends = [int(np.argmax(rates)), -1]
    rates, momentum, decay = rates[ends], momenta(config, plan)[ends], group.weight_decay
    if group.rule == "muon":
      momentum = np.full(2, fields.muon_momentum)
    row = [_span(rates) if rates[0] else "not trained", "", "", "", ""]
    if rates[0] and decay is not None:
      row[1:3] = f"{decay:.4g}", _span(momentum)
    if row[1] and rates_for in _ORIGINAL:  # Muon does not see the scale of a loss
      row[3] = _span(rates * (1 if group.rule == "muon" else rate_unit / images))
      row[4] = f"{rates[0] * decay * decay_unit:.4g}"
    rows.append([label, f"{count:,}", *row])
  yield from output.table(rows)
  yield "learning rates and momenta: at the peak -> at the end, for the mean loss of a batch"
  if fields.layer_decay != 1:
    yield f"learning rates of the last layer; each layer before has {fields.layer_decay:g} times it"
  if rates_for in _ORIGINAL:
    yield f"original's: {_ORIGINAL[rates_for]}"


def _span(values: Float[np.ndarray, "2"]) -> str:
  """Two values as text, or one if they are equal."""
  return " -> ".join(dict.fromkeys(f"{value:.4g}" for value in values))


def csv_lines(config: ConfigDict, plan: Plan) -> Iterator[str]:
  """A CSV header and a line for each step; epochs count from 0, the steps in them from 1.

  `global_batch` counts the images that a step learns from: it is smaller in a short last step of an
  epoch. Numbers have all the digits needed to read back the same value.
  """
  yield "epoch,step_in_epoch,image_size,global_batch,learning_rate,momentum,min_scale"
  rate = plan.table["learning_rate"].tolist()
  momentum = momenta(config, plan)
  seen = 0
  for step, (r, m) in enumerate(zip(rate, momentum.tolist(), strict=True)):
    phase, (epoch, step_in_epoch) = plan.phase_of(step), plan.epoch_of(step)
    before, seen = seen, plan.examples(step + 1)
    place = f"{epoch},{step_in_epoch + 1},{phase.image_size}"
    yield f"{place},{seen - before},{r!r},{m!r},{phase.min_scale!r}"


def describe_average(fields: ConfigDict) -> str:
  """The weights that are evaluated with `config.average`, in words."""
  if fields.kind == "none":
    return "the live weights"
  every = "every step" if fields.every == 1 else f"every {fields.every} steps"
  if fields.kind == "lookahead":
    return f"the live weights, set to their average {every} and after the last step (lookahead)"
  reach = f", over at most {fields.reach:.0%} of the steps so far" if fields.reach else ""
  average = f"an exponential moving average (decay {fields.decay:g} per step, {every}{reach})"
  return f"{average}, which lags behind in the first epochs"
