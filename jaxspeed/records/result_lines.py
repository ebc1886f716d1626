"""The lines that show the result of a run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxspeed.records.statistics import interval_of_share


def format_result(result: Mapping[str, Any]) -> list[str]:
  """The lines that show a `Result`, or `Results` with a row for each run and a t-test."""
  if "n" not in result:
    return [*_figures(result), *_best(result)]
  return [*_runs(result["runs"]), *_figures(result), *_test(result)]


def _runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
  rows: list[tuple[str, ...]] = [("seed", "top1", "train s", "target s")]
  for run in runs:
    seconds = [format_figure(run["seconds"][name], ".2f") for name in ("train", "to_target")]
    rows.append((str(run["seed"]), format_figure(run["top1"], ".3%"), *seconds))
  return _aligned(rows)


def _test(result: Mapping[str, Any]) -> Iterator[str]:
  """Lines on the speed of the runs, how many reached the target if any, and the t-test."""
  seconds, target = result["seconds"], format_figure(result["target"], ".3%")
  least = format_figure(result["seconds_min"]["train"], ".3f")
  yield f"train s: mean {format_figure(seconds['train'], '.3f')}, min {least}"
  if result["target"]:
    mean = format_figure(seconds["to_target"], ".2f")
    when = f", after {mean} s on average" if result["reached"] else ""
    yield f"target: {target}, reached by {result['reached']} of {result['n']} runs{when}"
    yield (
      f'p = {result["p_value"]:.2g} for "the true mean is at most {target}" (one-sided t-test): a '
      "small p says that it is above"
    )


def _figures(result: Mapping[str, Any]) -> list[str]:
  """Titles and values of one run or of the means of several, and lines on what they are about."""
  seconds, several = result["seconds"], "n" in result
  cells = {"top1": format_figure(result["top1"], ".3%")}
  if several:
    cells["95 % CI"] = f"+-{format_figure(result['ci95'], '.3%')}"
    cells |= {"sd": format_figure(result["sd"], ".3%"), "runs": str(result["n"])}
  cells["top5"] = format_figure(result["top5"], ".3%")
  if skipped := result.get("skipped_steps"):
    cells["skipped"] = f"{skipped['number']:g} steps, {skipped['share']:.2%}"
  if not several:
    cells["target s"] = format_figure(seconds["to_target"], ".2f")
  clocks = {name: seconds[name] for name in ("train", "dawn", "process")}
  clocks["compile"] = seconds["compile"].get("wall")
  for name in ("train", "dawn", "compile", "process"):
    cells[f"{name} s"] = format_figure(clocks[name], ".2f")
  if cost := result.get("cost_usd"):
    reached = "" if cost["to_target"] is None else f", {_dollars(cost['to_target'])} to target"
    cells["cost $"] = f"{_dollars(cost['dawn'])}{reached}"
  about = {"evaluated": _evaluated(result)}
  if not several and result["top1"] is not None and (images := result.get("eval_images")):
    low, high = interval_of_share(result["top1"], images)
    about["95 % CI"] = f"top1 {low:.1%} to {high:.1%}, by the number of images"
  about["compiled"] = _compiled(seconds["compile"])
  if result.get("config", {}).get("compile") == "quick":
    about["compiled"] += "; quick programs (config.compile), whose times are no record"
  about["device"] = str(result["device"])
  lines = [f"{name:<9}  {value}" for name, value in about.items() if value]
  return _aligned([tuple(cells), tuple(cells.values())]) + lines


def _best(result: Mapping[str, Any]) -> Iterator[str]:
  """A line on a run's best evaluation; none if its config keeps none."""
  if best := result.get("best"):
    metric = best["metric"]
    figure = format_figure(best[metric], ".4f" if metric == "loss" else ".3%")
    yield (
      f"best {metric}: {figure} after epoch {best['epoch']:g}, step {best['step']}; it was chosen "
      f"on the {images_of(result['evaluated_on'])}, which flatters it: the last epoch counts"
    )


def images_of(evaluated_on: str) -> str:
  """The words for the evaluated images, one of `Result.evaluated_on`."""
  return "test images" if evaluated_on == "test" else "held-out images"


def _evaluated(result: Mapping[str, Any]) -> str:
  """The images that the accuracies are about, and the weights that were evaluated."""
  kind, weights = images_of(result["evaluated_on"]), result.get("evaluated_weights")
  if images := result.get("eval_images"):
    skipped = result.get("eval_images_skipped")
    kind = f"{images:,} of {images + skipped:,} {kind}" if skipped else f"{images:,} {kind}"
  return f"{kind}, weights: {weights}" if weights else kind


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows
  ]


def format_figure(value: Any, spec: str) -> str:
  """A number in a format; "-" for None."""
  # float: rows may contain scalars of NumPy or JAX, which support fewer formats.
  return "-" if value is None else format(float(value), spec)


def _compiled(seconds: Mapping[str, float | None]) -> str:
  """The compile times, summed over threads: the sum may exceed the elapsed seconds; '': none."""
  names = {"cold": "cold", "cached": "from the cache"}
  parts = [
    f"{seconds[kind]:.2f} s {name}" for kind, name in names.items() if seconds.get(kind) is not None
  ]
  return f"{', '.join(parts)}, summed over threads" if parts else ""


def _dollars(value: float) -> str:
  # A run of CIFAR-10 costs a fraction of a cent.
  return f"{value:,.2f}" if value >= 1 else f"{value:.2g}"
