"""What tells the groups of a report apart, and what may not be compared."""

import datetime

from test_report import Parsed, write_run
from test_report_inputs import change

from jaxspeed.report.command import read_all
from jaxspeed.report.data import groups_of
from jaxspeed.report.page import page

NOW = datetime.datetime(2026, 1, 1)


def text_of(groups):
  """The text of a report's page."""
  return "".join(Parsed(page(groups, now=NOW)).text)


def test_groups_with_the_same_first_fields_are_told_apart_by_their_folders(tmp_path):
  """A name has four fields, in the order of the alphabet: two of the three runs share them."""
  for place, folder in enumerate(("x/a", "y/a", "y/b")):
    config = write_run(tmp_path / folder, images=48, seed=place) / "config.json"
    last = int(place == 2)
    change(config, augment={"cutout": last, "pad": last}, average={"decay": 0.5 + last / 4})
    change(config, batch_size=100 + last, patience=place)
  groups = groups_of(read_all([tmp_path]))
  assert {group.folder for group in groups} == {"x/a", "y/a", "y/b"}
  assert len({group.name for group in groups}) == 3
  assert all(group.name.endswith(f" ({group.folder})") for group in groups)
  shown = text_of(groups)
  assert all(shown.count(group.name) > 2 for group in groups) and "folder" in shown
  two = groups_of(read_all([tmp_path / "x", tmp_path / "y" / "b"]))
  assert [group.folder for group in two] == ["", ""]
