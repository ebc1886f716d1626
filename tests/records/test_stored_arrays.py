"""predictions.npz and thumbnails.npz: written, read, damaged; and the figures by class of them."""

import dataclasses
import io
import math

import numpy as np
import pytest
from sklearn import metrics

from jaxspeed.errors import UserError
from jaxspeed.files import dump_json
from jaxspeed.records import class_figures
from jaxspeed.records.arrays import Predictions, Thumbnails


def some(n=5, names=()):
  rng = np.random.default_rng(0)
  return Predictions(
    step=7,
    index=np.arange(1, n + 1, dtype=np.int32),
    label=rng.integers(1000, size=n).astype(np.int32),
    predicted=rng.integers(-1, 1000, size=n).astype(np.int32),
    probability=rng.random(n).astype(np.float32),
    loss=rng.exponential(size=n).astype(np.float32),
    names=tuple(names),
  )


@pytest.mark.parametrize("names", [(), ["a.jpg", "b/ä ö.jpg", "c\udcff.jpg", "d, byte 17", "e\n"]])
def test_what_is_written_is_read(tmp_path, names):
  written = some(names=names)
  written.write(tmp_path)
  found = Predictions.read(tmp_path, 1000)
  for field in dataclasses.fields(Predictions):
    expected, value = getattr(written, field.name), getattr(found, field.name)
    np.testing.assert_array_equal(value, expected)
    if field.name not in ("step", "names"):
      assert value.dtype == expected.dtype
  assert type(found.step) is int and type(found.names) is tuple and found.names == written.names
  # Of a split of seven images, the first and the last could not be read.
  assert some().named([*"0123456"]).names == tuple("12345") and some().named([]).names == ()


def bytes_of(**changes):
  """A file of predictions with other arrays; None leaves one out."""
  columns = dataclasses.asdict(some()) | {"names": np.zeros(0, np.uint8)} | changes
  content = io.BytesIO()
  columns = {name: value for name, value in columns.items() if value is not None}
  np.savez_compressed(content, **columns)
  return content.getvalue()


DAMAGED = {
  "empty": (b"", ""),
  "cut off": (bytes_of()[:-100], "not a zip file"),
  "no loss": (bytes_of(loss=None), "loss"),
  "pickled": (bytes_of(label=np.array([{}], dtype=object)), "Object arrays cannot be loaded"),
  "a shorter column": (bytes_of(label=np.zeros(4, np.int32)), r"label is int32 of shape \(4,\)"),
  "another class": (bytes_of(label=np.full(5, 1000, np.int32)), "label has others than the 1000"),
  "two names": (bytes_of(names=np.frombuffer(b"a\0b", np.uint8)), "it names 2 of 5 images"),
  "a step of text": (bytes_of(step=np.array("x")), "step is <U1"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_one_sentence(tmp_path, kind):
  content, reason = DAMAGED[kind]
  path = tmp_path / "predictions.npz"
  path.write_bytes(content)
  told = rf"cannot be used \(.*{reason}.*\): restore the file"
  with pytest.raises(UserError, match=told) as error:
    Predictions.read(tmp_path, 1000)
  sentence = str(error.value)
  assert sentence.startswith(str(path)) and "\n" not in sentence and sentence.endswith("without.")


def test_what_unpacks_to_too_much_or_shows_other_images_is_refused(tmp_path, monkeypatch):
  assert Predictions.read(tmp_path, 1000) is None
  monkeypatch.setattr("jaxspeed.records.arrays._MOST_BYTES", 1 << 20)
  path = tmp_path / "predictions.npz"
  path.write_bytes(bytes_of(index=np.zeros(1 << 19, np.int32)))
  assert path.stat().st_size < 10_000
  with pytest.raises(UserError, match="its arrays are too large"):
    Predictions.read(tmp_path, 1000)
  image, label = np.zeros((4, 8, 8, 3), np.uint8), np.zeros(4, np.int32)
  found = Thumbnails(40, label, image, image, label, label, np.zeros(4, np.float32), image[:0])
  dataclasses.replace(found, eval_image=image[:3]).write(tmp_path)
  with pytest.raises(UserError, match=r"eval_image is uint8 of shape \(3, 8, 8, 3\)"):
    Thumbnails.read(tmp_path, 8)


NAMES = [f"class {i}" for i in range(7)]


def predictions_of(label, predicted, probability=0.5):
  n = len(label)
  confidence = np.broadcast_to(np.float32(probability), n)
  label, predicted = np.array(label, np.int32), np.array(predicted, np.int32)
  return Predictions(3, np.arange(n, dtype=np.int32), label, predicted, confidence, confidence)


def made_up(n=500, classes=7, missing=()):
  """Uneven classes, those in `missing` without an image but predicted now and then."""
  rng = np.random.default_rng(0)
  present = [c for c in range(classes) if c not in missing]
  weights = np.arange(1, len(present) + 1)
  label = rng.choice(present, size=n, p=weights / weights.sum())
  predicted = np.where(rng.random(n) < 0.5, label, rng.integers(classes, size=n))
  return predictions_of(label, predicted, rng.random(n))


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("missing", [(), (0, 3)])
def test_accuracies_and_the_matrix_are_scikit_learns(missing):
  found = made_up(missing=missing)
  figures = class_figures.figures_of(found, NAMES)
  matrix = metrics.confusion_matrix(found.label, found.predicted, labels=range(7))
  assert figures["confusion"] == matrix.tolist()
  assert figures["per_class"] == {
    name: {"top1": row[c] / row.sum() if row.any() else None, "images": row.sum()}
    for c, (name, row) in enumerate(zip(NAMES, matrix, strict=True))
  }
  mean = metrics.balanced_accuracy_score(found.label, found.predicted)
  assert figures["macro_top1"] == pytest.approx(mean, rel=1e-14)
  pairs = [(-matrix[a, b], a, b) for a in range(7) for b in range(7) if a != b and matrix[a, b]]
  assert class_figures.worst_confusions(found, NAMES) == [
    {"label": NAMES[a], "predicted": NAMES[b], "images": -n, "of": matrix[a].sum()}
    for n, a, b in sorted(pairs)[:10]
  ]


def test_the_calibration_error_is_the_formula_of_guo_et_al():
  found, error = made_up(), class_figures.expected_calibration_error
  gaps = 0.0
  for m in range(1, 16):
    inside = ((m - 1) / 15 < found.probability) & (found.probability <= m / 15)
    gap = found.right[inside].mean() - found.probability[inside].mean(dtype=np.float64)
    gaps += inside.mean() * abs(gap)
  assert error(found.probability, found.right) == pytest.approx(gaps, rel=1e-12)
  assert class_figures.figures_of(found, NAMES)["ece"] == error(found.probability, found.right)
  # An edge belongs to the bin below it: in one bin with 0.26, the two gaps of 1/4 would cancel.
  assert error(np.array([0.25, 0.26]), np.array([False, True]), 4) == pytest.approx(0.99 / 2)
  assert math.isnan(error(np.array([np.nan, 1.0]), np.array([False, True])))


def test_of_many_classes_only_the_worst_are_told_and_each_by_a_name_that_json_can_hold():
  for classes, worst, left_out in (
    (20, 20, set()),
    (21, 10, set()),
    (101, 10, {"confusion"}),
    (1001, 10, {"confusion", "per_class"}),
  ):
    found, names = made_up(n=3000, classes=classes), [*map(str, range(classes))]
    told = class_figures.figures_of(found, names, most_confused=100)
    assert set(told) == {"macro_top1", "ece", "per_class", "confusion"} - left_out
    accuracies = [each["top1"] for each in class_figures.worst_classes(found, names)]
    assert len(accuracies) == worst and accuracies == sorted(accuracies)
    assert len(class_figures.worst_confusions(found, names)) == 10
  # A folder's name need not be UTF-8; pydantic refuses the lone surrogate that stands for a byte.
  keys = class_figures.keys_of(["cat", "b\udcff", "dog\n"])
  assert keys == ["cat", "b\\xff", "dog\\n"] and dump_json(keys).isascii()
  assert class_figures.keys_of(["a\n", "a\\n"]) == ["0", "1"]
  # An image without a prediction is wrong, and in no column.
  found = predictions_of([0, 1, 0], [0, -1, 1])
  figures = class_figures.figures_of(found, NAMES[:2])
  assert (figures["confusion"], figures["macro_top1"]) == ([[1, 1], [0, 0]], 0.25)
  assert [c["images"] for c in class_figures.worst_confusions(found, NAMES[:2])] == [1]
