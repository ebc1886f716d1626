"""Lists the shipped recipes with source, hardware and published figure.

python -m jaxspeed.recipes                  # all of them, each with its default variant
python -m jaxspeed.recipes imagenet18       # the variants of one, or of a recipe file
python -m jaxspeed.recipes --json
"""

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
    recipes = {name: _facts(name) for name in names or shipped()}
    if as_json.value:
      print(dump_json({name: _to_json(facts) for name, facts in recipes.items()}, indent=1))
    elif names:
      print("\n".join(map(printable, _variants(names[0], recipes[names[0]]))))
    else:
      print("\n".join(map(printable, _all(recipes))))

  command_line.run(run)


def _facts(name: str) -> Facts:
  file, colon, _ = name.partition(":")
  if not file:
    raise UserError("a recipe's name is empty: name one, as imagenet18, or none for a list of all.")
  if colon:
    raise UserError(f"{name} names a variant: write {file} for a list of all.")
  return facts_of(name)


def _to_json(facts: Facts) -> dict[str, Any]:
  variants = {name: row.model_dump() for name, row in facts.variants.items()}
  return facts._asdict() | {"variants": variants}


def _all(recipes: dict[str, Facts]) -> list[str]:
  """A line for each recipe with the figures of its default variant."""
  rows = [
    (
      _called(name, facts.default),
      str(len(facts.variants)),
      *_figures(facts.variants[facts.default]),
    )
    for name, facts in recipes.items()
  ]
  return [
    *output.table([("recipe", "variants", "source", "hardware", "accuracy", "time"), *rows]),
    "",
    "Figures as published, not by jaxspeed, for the variant that is named here.",
    "jaxspeed recipes NAME shows all variants of a recipe, and what their times cover.",
  ]


def _variants(name: str, facts: Facts) -> list[str]:
  """A title and a line for each variant."""
  rows = [
    (_called(name, variant), *_figures(row), row.clock) for variant, row in facts.variants.items()
  ]
  heads = ("recipe", "source", "hardware", "accuracy", "time", "which covers")
  known = any(row.accuracy_in_words or row.seconds is not None for row in facts.variants.values())
  figures = "figures as published" if known else "no figures are published"
  return [
    *([facts.title, ""] if facts.title else []),
    *output.table([heads, *rows]),
    "",
    f"jaxspeed train {_called(name, facts.default)} trains it; {figures}.",
  ]


def _called(name: str, variant: str) -> str:
  return f"{name}:{variant}" if variant else name


def _figures(row: Published) -> tuple[str, str, str, str]:
  """Source, hardware, accuracy and time in words."""
  runs = f" ({row.runs:,} runs)" if row.runs else ""
  time = "" if row.seconds is None else duration(row.seconds, as_published=True)
  time = ", ".join(part for part in (time, row.epochs_in_words) if part)
  return row.source, row.hardware, row.accuracy_in_words + runs, time


if __name__ == "__main__":
  main()
