"""Draws docs/pictures/ladder.png: the seconds and the accuracy of the recipes of CIFAR-10.

pip install 'jaxspeed[docs]' && python scripts/draw_ladder.py

Small marks are what is published of each recipe (`jaxspeed recipes`), large ones the accuracies in
results/, at the published seconds of their recipe: the figures of a CPU's clock would say nothing.
"""

import json
import pathlib

import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter, PercentFormatter, ScalarFormatter

from jaxspeed.config.recipe import facts_of
from jaxspeed.records.statistics import interval_of_share

ROOT = pathlib.Path(__file__).parents[1]
_RECIPES = {
  "cifar10_resnet9": "myrtle.ai's ladder, 1 V100",
  "cifar10_hlb": "hlb-CIFAR10, 1 A100",
  "cifar10_airbench": "airbench, 1 A100",
  "cifar10": "hiverge, 1 A100",
}


def main() -> None:
  """Draws the picture."""
  plt.rcParams["font.size"] = 11
  figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
  seconds = {}
  for recipe, label in _RECIPES.items():
    rows = {f"{recipe}/{name}".rstrip("/"): row for name, row in facts_of(recipe).variants.items()}
    seconds |= {name: row.seconds for name, row in rows.items()}
    style = "o-" if recipe == "cifar10_resnet9" else "o"
    x, y = [row.seconds for row in rows.values()], [row.top1 for row in rows.values()]
    axes.plot(x, y, style, ms=5, label=label)
  for number, path in enumerate(sorted((ROOT / "results").glob("cifar10*.json"))):
    row = json.loads(path.read_text())
    top1, (low, high) = row["top1"], interval_of_share(row["top1"], 10_000)
    axes.errorbar(
      seconds[row["config"]["name"]],
      top1,
      yerr=[[top1 - low], [high - top1]],
      fmt="kD",
      capsize=4,
      label="measured here, 1 run, 95 % interval" if not number else None,
    )
  axes.set(xscale="log", xlabel="published seconds (logarithmic)", ylabel="top-1 on the test set")
  axes.set_xticks([2, 5, 10, 20, 50])
  axes.xaxis.set_major_formatter(ScalarFormatter())
  axes.xaxis.set_minor_formatter(NullFormatter())
  axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
  axes.grid(alpha=0.3)
  axes.legend(frameon=False, loc="upper left")
  path = ROOT / "docs" / "pictures" / "ladder.png"
  path.parent.mkdir(exist_ok=True)
  figure.savefig(path, dpi=130)


if __name__ == "__main__":
  main()
