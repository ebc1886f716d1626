"""Lists the shipped recipes and their variants with source, hardware and published figure.

python -m jaxspeed.recipes                  # all of them
python -m jaxspeed.recipes imagenet18       # some, or recipe files
python -m jaxspeed.recipes --json
"""

from absl import flags

from jaxspeed.config import flags as command_line
from jaxspeed.config import output
from jaxspeed.config.recipe import Published, published, shipped
from jaxspeed.errors import printable
from jaxspeed.files import dump_json
from jaxspeed.records.durations import duration


def main() -> None:
  """Reads the flags and the names of recipes; prints a table, or JSON."""
  as_json = flags.DEFINE_bool("json", False, "Prints the same as JSON.")

  def run(names: list[str]) -> None:
    recipes = {name: published(name) for name in names or shipped()}
    if as_json.value:
      rows = {n: {v: row._asdict() for v, row in each.items()} for n, each in recipes.items()}
      print(dump_json(rows, indent=1))
    else:
      print("\n".join(map(printable, _lines(recipes))))

  command_line.run(run)


def _lines(recipes: dict[str, dict[str, Published]]) -> list[str]:
  """The table of recipes."""
  rows = [("recipe", "source", "hardware", "accuracy", "time", "which covers")]
  for name, variants in recipes.items():
    rows += [(f"{name}:{each}".rstrip(":"), *_figures(variants[each])) for each in variants]
  return [*output.table(rows), "", "Figures as published, not by jaxspeed."]


def _figures(row: Published) -> tuple[str, str, str, str, str]:
  """Source, hardware, accuracy and time in words, and what the time covers."""
  runs = f" ({row.runs:,} runs)" if row.runs else ""
  time = "" if row.seconds is None else duration(row.seconds, as_published=True)
  time = ", ".join(part for part in (time, row.epochs_in_words) if part)
  return row.source, row.hardware, row.accuracy_in_words + runs, time, row.clock


if __name__ == "__main__":
  main()
