"""Runs that resume with other images than they began with."""

import pytest
from toy import load_recipe

from jaxspeed.config import checks
from jaxspeed.errors import UserError
from jaxspeed.run import setup
from jaxspeed.run.saver import check_images


def config(**fields):
  recipe = load_recipe("quickstart.py")
  recipe.update_from_flattened_dict(
    {"data.path": "photos", "data.train_images": 30, "data.std": (9.0,) * 3} | fields
  )
  return checks.checked(recipe.to_dict())


def refusal(folder, *, given=(), **fields):
  """What a start with other fields says, of which the recipe leaves the mean to the images."""
  setup.pin_config(folder, config(**{"data.mean": (1.0, 2.0, 3.0)}))
  (folder / "metrics.jsonl").write_text("a row")
  recipe = config(**{"data.mean": ()})
  derived = setup._derived(recipe, setup.FOLLOWING - set(given))
  with pytest.raises(UserError) as caught:
    setup.pin_config(folder, config(**{"data.mean": (1.0, 2.0, 3.0)} | fields), derived=derived)
  return str(caught.value)


def test_fewer_images_have_changed_and_no_config_has(tmp_path):
  assert refusal(tmp_path, **{"data.train_images": 29, "data.classes": 9}) == (
    f"the images at photos have changed since the run in {tmp_path} began (config.data.classes: "
    "10 -> 9; config.data.train_images: 30 -> 29): put them back, or choose another --workdir."
  )
  words = "began (config.data.mean: [1.0, 2.0, 3.0] -> [1.0, 2.0, 4.0]): put them back"
  assert words in refusal(tmp_path, **{"data.mean": (1.0, 2.0, 4.0)})


@pytest.mark.parametrize(
  "given, fields",
  [
    ((), {"data.train_images": 29, "epochs": 3.0}),
    (("data.classes",), {"data.classes": 9}),
    ((), {"data.std": (1.0, 2.0, 4.0)}),
  ],
)
def test_a_field_that_the_user_changes_is_another_config(tmp_path, given, fields):
  assert "holds a run of another config (" in refusal(tmp_path, given=given, **fields)


@pytest.mark.parametrize(
  "kind, words", [("arrays", "pixels"), ("files", "names"), ("csv", "names")]
)
def test_a_checksum_says_what_it_compares(kind, words):
  check_images(f"{kind} 00000000", f"{kind} 00000000", 5)
  check_images("", f"{kind} 00000000", 5)
  with pytest.raises(UserError, match=rf"of step 5 \(their {words}, their labels, or which are "):
    check_images(f"{kind} 00000000", f"{kind} 00000001", 5)
