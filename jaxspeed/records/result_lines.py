"""The lines that show the result of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxspeed.records.statistics import interval_of_share


def format_result(result: Mapping[str, Any]) -> list[str]:
  """The lines that show a result: titles and values; for several runs also their rows and a t-test.

  Args:
    result: the return value of `results.write_result`.
  """
  if "n" not in result:
    return [*_format_figures(result), *_format_best(result)]
  return [*_format_runs(result["runs"]), *_format_figures(result), *_format_test(result)]


def _format_runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
  """A row for each run, in fixed columns below their titles."""
  cells = [
    (
      str(run["seed"]),
      format_figure(run["top1"], ".3%"),
      format_figure(run["seconds"]["train"], ".2f"),
      format_figure(run["seconds"]["to_target"], ".2f"),
    )
    for run in runs
  ]
  return _align_rows([("seed", "top1", "train s", "target s"), *cells])


def _format_test(result: Mapping[str, Any]) -> list[str]:
  """Lines on the speed of the runs, how many reached the target if any, and the t-test."""
  seconds, target = result["seconds"], format_figure(result["target"], ".3%")
  when = (
    f", after {format_figure(seconds['to_target'], '.2f')} s on average"
    if result["reached"]
    else ""
  )
  pace = (
    f"train s: mean {format_figure(seconds['train'], '.3f')}, "
    f"min {format_figure(result['seconds_min']['train'], '.3f')}"
  )
  if not result["target"]:
    return [pace]
  return [
    pace,
    f"target: {target}, reached by {result['reached']} of {result['n']} runs{when}",
    f'p = {result["p_value"]:.2g} for "the true mean is at most {target}" (one-sided t-test): a '
    "small p says that it is above",
  ]


def _format_figures(result: Mapping[str, Any]) -> list[str]:
  """Titles and values of one run or of the means of several, and lines on what they are about."""
  seconds = result["seconds"]
  cells = [("top1", format_figure(result["top1"], ".3%"))]
  if "n" in result:
    cells += [
      ("95 % CI", f"+-{format_figure(result['ci95'], '.3%')}"),
      ("sd", format_figure(result["sd"], ".3%")),
      ("runs", str(result["n"])),
    ]
  cells += [
    ("top5", format_figure(result["top5"], ".3%")),
    *([("skipped", _format_skipped(result["skipped_steps"]))] if "skipped_steps" in result else []),
    *([("target s", format_figure(seconds["to_target"], ".2f"))] if "n" not in result else []),
    ("train s", format_figure(seconds["train"], ".2f")),
    ("dawn s", format_figure(seconds["dawn"], ".2f")),
    ("compile s", format_figure(seconds["compile"].get("wall"), ".2f")),
    ("process s", format_figure(seconds["process"], ".2f")),
    *([("cost $", _format_cost(result["cost_usd"]))] if "cost_usd" in result else []),
  ]
  about = {"evaluated": _format_evaluated(result)}
  if "n" not in result and result["top1"] is not None and (images := result.get("eval_images")):
    low, high = interval_of_share(result["top1"], images)
    about["95 % CI"] = f"top1 {low:.1%} to {high:.1%}, by the number of images"
  if compiled := _format_compile(seconds["compile"]):
    about["compiled"] = compiled
  if fewer := _format_fewer(result):
    about["means"] = fewer
  about["device"] = str(result["device"])
  lines = [f"{name:<9}  {value}" for name, value in about.items()]
  return _align_rows(list(zip(*cells, strict=True))) + lines


def _format_best(result: Mapping[str, Any]) -> list[str]:
  """A line on a run's best evaluation; none if its config keeps none."""
  best = result.get("best")
  if not best:
    return []
  metric = best["metric"]
  figure = format_figure(best[metric], ".4f" if metric == "loss" else ".3%")
  return [
    f"best {metric}: {figure} after epoch {best['epoch']:g}, step {best['step']}; it was chosen on "
    f"the {images_of(result['evaluated_on'])}, which flatters it: the last epoch counts"
  ]


def images_of(evaluated_on: str) -> str:
  """The words for the evaluated images, one of `results.EVALUATED_ON`."""
  return "test images" if evaluated_on == "test" else "held-out images"


def _format_evaluated(result: Mapping[str, Any]) -> str:
  """The images that the accuracies are about, and the weights that were evaluated."""
  kind = images_of(result["evaluated_on"])
  if skipped := result.get("eval_images_skipped"):
    kind = f"{result['eval_images']:,} of {result['eval_images'] + skipped:,} {kind}"
  elif result.get("eval_images"):
    kind = f"{result['eval_images']:,} {kind}"
  return kind + (f", weights: {weights}" if (weights := result.get("evaluated_weights")) else "")


def _align_rows(rows: Sequence[Sequence[str]]) -> list[str]:
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows
  ]


def format_figure(value: Any, spec: str) -> str:
  """A number in a format; "-" for None."""
  # float: rows may contain scalars of NumPy or JAX, which support fewer formats.
  return "-" if value is None else format(float(value), spec)


def _format_compile(seconds: Mapping[str, float | None]) -> str:
  """The compile times, summed over threads: the sum may exceed the elapsed seconds; '': none."""
  names = {"cold": "cold", "cached": "from the cache"}
  parts = [
    f"{seconds[kind]:.2f} s {name}" for kind, name in names.items() if seconds.get(kind) is not None
  ]
  return f"{', '.join(parts)}, summed over threads" if parts else ""


def _format_fewer(result: Mapping[str, Any]) -> str:
  """The compile times that are means over fewer than all of several runs; '': there are none.

  Runs of one process share their programs: mostly the first one compiles them.
  """
  every = [run["seconds"].get("compile", {}) for run in result.get("runs", ())]
  names = {"wall": "compile s", "cold": "cold", "cached": "from the cache"}
  counts = {name: sum(each.get(kind) is not None for each in every) for kind, name in names.items()}
  fewer = [f"{name} over {count}" for name, count in counts.items() if 0 < count < len(every)]
  return f"over all {len(every)} runs, but {', '.join(fewer)}" if fewer else ""


def _format_skipped(steps: Mapping[str, float]) -> str:
  """Steps skipped because their gradients were not finite, as a number and a share of all."""
  return f"{steps['number']:g} steps, {steps['share']:.2%}"


def _format_cost(dollars: Mapping[str, Any]) -> str:
  to_target = dollars["to_target"]
  reached = "" if to_target is None else f", {_dollars(to_target)} to target"
  return f"{_dollars(dollars['dawn'])}{reached}"


def _dollars(value: float) -> str:
  # A run of CIFAR-10 costs a fraction of a cent.
  return f"{value:,.2f}" if value >= 1 else f"{value:.2g}"
