"""`own_images:PATH` chooses its values from the images at PATH, and the plan states them."""

import pytest
from image_files import noise, write
from in_process import command, mistake
from recipes import recipe

import jaxspeed

OWN = recipe("own_images")


@pytest.mark.parametrize(
  "images, side, chosen",
  [
    (3, 500, (2, 100, (96, 128))),
    (100, 224, (8, 100, (96, 128))),
    (5_000, 32, (32, 14, (48, 64))),
    (9_469, 100, (64, 10, (72, 96))),
    (1_281_167, 400, (64, 10, (96, 128))),
  ],
)
def test_the_values_follow_the_number_and_the_size_of_the_images(images, side, chosen):
  assert OWN.choose(OWN.Found(images, side, 10)) == chosen


def folder(root, classes, **splits):
  """Images of 24 x 20 pixels: `splits` has the number of each class's in folders of classes."""
  names = [
    f"{split}/class_{label:03d}/{i}.jpg".removeprefix("here/")
    for split, count in splits.items()
    for label in range(classes)
    for i in range(count)
  ]
  return write(root, dict.fromkeys(names, noise(0)))


@pytest.mark.parametrize(
  "classes, splits, expected, overrides",
  [
    (2, {"here": 10}, "18 training images of 2 classes, half of them at least 20 px", []),
    (1_000, {"train": 1, "val": 1}, "1,000 training images of 1,000 classes", []),
    (3, {"train": 10}, "27 training images of 3 classes", ["--config.tune_on=validation"]),
  ],
)
def test_the_plan_states_what_was_chosen(tmp_path, capsys, classes, splits, expected, overrides):
  path = folder(tmp_path / "photos", classes, **splits)
  done = command("plan", f"own_images:{path}", *overrides)
  assert done.returncode == 0 and f"own_images chose for {expected}" in done.stdout
  assert "48 px, then 64 px; batches of 8 " in done.stdout and "PATH" not in done.stdout
  config = jaxspeed.recipe(f"own_images:{path}", epochs=3)
  assert (config.data.path, config.data.classes, config.epochs) == (str(path), classes, 3)
  assert not any(capsys.readouterr())


def test_without_images_the_values_are_a_default_and_a_wrong_path_is_named(tmp_path):
  told = "no images were named, as in own_images:PATH, so own_images chose for 1,000"
  assert told in command("plan", "own_images").stdout
  (one := tmp_path / "one" / "cats").mkdir(parents=True)
  assert f"{tmp_path / 'none'} does not exist" in mistake("plan", f"own_images:{tmp_path / 'none'}")
  write(one, {"a.jpg": noise(0), "b.jpg": noise(1)})
  assert "has one class, cats" in mistake("plan", f"own_images:{one.parent}")
