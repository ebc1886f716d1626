"""Lists the shipped recipes with source, hardware and published figure.

python -m jaxspeed.recipes                  # all of them, each with its default variant
python -m jaxspeed.recipes imagenet18       # the variants of one, or of a recipe file
python -m jaxspeed.recipes --json
"""

from collections.abc import Iterator
from typing import Any

from absl import flags

from jaxspeed.config import flags as command_line
from jaxspeed.config import output
from jaxspeed.config.recipe import Facts, Published, facts_of, shipped
from jaxspeed.errors import UserError, printable
from jaxspeed.files import dump_json
from jaxspeed.records.durations import duration


def main() -> None:
  """Reads the flags and the name of a recipe; prints a table, or JSON."""
  as_json = flags.DEFINE_bool("json", False, "Prints the same as JSON.")

  def run(names: list[str]) -> None:
    if len(names) > 1:
      raise UserError(f"{names[1]!r} is one recipe too many: name one, or none for a list of all.")
    if names and ":" in names[0]:
      raise UserError(f"{names[0]} names a variant: write {names[0].partition(':')[0]} for all.")
    recipes = {name: facts_of(name) for name in names or shipped()}
    if as_json.value:
      print(dump_json({name: _to_json(facts) for name, facts in recipes.items()}, indent=1))
    else:
      print("\n".join(map(printable, _lines(recipes, every=bool(names)))))

  command_line.run(run)


def _to_json(facts: Facts) -> dict[str, Any]:
  variants = {name: row._asdict() for name, row in facts.variants.items()}
  return facts._asdict() | {"variants": variants}


def _lines(recipes: dict[str, Facts], *, every: bool) -> Iterator[str]:
  """A line for each recipe with the figures of its default variant, or of `every` variant."""
  rows = [("recipe", "variants", "source", "hardware", "accuracy", "time", "which covers")]
  for name, facts in recipes.items():
    for variant, row in facts.variants.items():
      called = f"{name}:{variant}" if variant else name
      count, covers = ("", row.clock) if every else (str(len(facts.variants)), "")
      if every or variant == facts.default:
        rows.append((called, count, *_figures(row), covers))
  titles = [facts.title for facts in recipes.values() if every and facts.title]
  yield from ([*titles, ""] if titles else [])
  yield from output.table(rows)
  yield from ("", "Figures as published, not by jaxspeed, for the variants that are named here.")
  if not every:
    yield "jaxspeed recipes NAME shows all variants of a recipe, and what their times cover."


def _figures(row: Published) -> tuple[str, str, str, str]:
  """Source, hardware, accuracy and time in words."""
  runs = f" ({row.runs:,} runs)" if row.runs else ""
  time = "" if row.seconds is None else duration(row.seconds, as_published=True)
  time = ", ".join(part for part in (time, row.epochs_in_words) if part)
  return row.source, row.hardware, row.accuracy_in_words + runs, time


if __name__ == "__main__":
  main()
