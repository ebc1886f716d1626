"""The table of `predict --csv`: its images, its lines, and what is left of one that fails."""

import contextlib
import csv
import os
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_process import command, mistake
from PIL import Image
from toy import LinearNet, toy_config

from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.run import predict as predict_lib
from jaxspeed.run import predict_csv
from jaxspeed.run.predict import BrokenImage, Predictor
from jaxspeed.run.predict_csv import find_images, write_csv
from jaxspeed.run.restore import Weights
from jaxspeed.steps.spec import make_train_spec

NAMES = ("cat, tame", 'a "dog"', "two\nlines", "\udcff", "a\rb", *"fghij")


def predictor_on(devices):
  """Float64 weights that were not trained, in batches of at most 4 images a device."""
  config = toy_config(precision="float64")
  plan = make_plan(config, devices=devices)
  spec = make_train_spec(
    config, plan, mesh_lib.make_mesh(devices), model=LinearNet(dtype=jnp.float64)
  )
  variables = spec.model.init(jax.random.key(0), np.zeros((1, 8, 8, 3)), train=False)
  variables = mesh_lib.replicate(jax.device_get(variables), spec.mesh)
  return Predictor(Weights(spec, spec.plan.total_steps, variables), NAMES)


@pytest.fixture(scope="module")
def predictor():
  with precision.wide_enough("float64"):
    yield predictor_on(1)


@pytest.fixture
def photos(tmp_path):
  """Eleven images in a folder and its sub-folders, one broken one and one of another kind."""
  rng = np.random.default_rng(0)
  folder = tmp_path / "photos"
  names = [f"{i}.png" for i in range(6)]
  names += ["b/c/a, b.png", 'b/"q".png', "b/two\nlines.jpg", "b/r\r.png", b"b/\xe9.png"]
  for name in names:
    path = os.path.join(os.fsencode(folder), os.fsencode(name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
      Image.fromarray(rng.integers(256, size=(9, 12, 3), dtype=np.uint8)).save(file, "PNG")
  (folder / "b" / "x.jpg").write_text("no image")
  (folder / "notes.txt").write_text("")
  (folder / ".hidden.png").write_text("")
  return folder


def written(predictor, images, path, top=3):
  """The rows of a table, and what `write_csv` returned."""
  done = write_csv(str(path), predictor, images, top=top, show=lambda *_: None)
  with open(path, encoding="utf-8", newline="") as file:
    return list(csv.reader(file)), done


def test_a_table_has_the_probabilities_that_files_get_one_by_one(predictor, photos, tmp_path):
  images = find_images([str(photos)])
  assert len(images.paths) == 12 and images.names == images.paths
  assert images.notes[0].startswith("1 file is left out") and ".txt (1)" in images.notes[0]
  (header, *rows), done = written(predictor, images, tmp_path / "a.csv")
  assert header[:5] == ["file", "label", "probability", "label_2", "probability_2"]
  assert (done.images, done.broken) == (12, 1) and done.seconds > 0
  shown = [name.replace("\udce9", "\\xe9") for name in images.paths]
  assert [row[0] for row in rows] == shown
  alone = [row for path in images.paths for row in predictor.rows([path])]
  labels = [name.replace("\udcff", "\\xff") for name in NAMES]
  for row, path, expected in zip(rows, images.paths, alone, strict=True):
    if path.endswith("x.jpg"):
      assert row[1:] == 6 * [""] + ["it is not an image of a known format"]
      continue
    expected = predictor.likeliest(expected, 3)
    assert row[1:7:2] == [labels[NAMES.index(name)] for name, _ in expected] and row[7] == ""
    # Six digits are written.
    found = [float(cell) for cell in row[2:7:2]]
    np.testing.assert_allclose(found, [p for _, p in expected], rtol=5e-6)
  # Devices share a batch.
  for one, other in zip(alone, predictor_on(2).rows(images.paths), strict=True):
    if not isinstance(one, BrokenImage):
      np.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_list_names_its_images_as_it_does(predictor, photos, tmp_path):
  listed = photos.parent / "more.csv"
  listed.write_text("id;path\n1;photos/0.png\n2;photos/gone.png\n3;photos/0.png\n")
  images = find_images([str(listed), str(photos / "1.png")])
  assert images.names == ["photos/0.png", "photos/gone.png", "photos/0.png", str(photos / "1.png")]
  (_, one, gone, two, _), _ = written(predictor, images, tmp_path / "a.csv", top=1)
  assert one == two and one[1:3] != ["", ""]
  assert gone == ["photos/gone.png", "", "", "there is no such file"]
  # A cell that a spreadsheet would compute is text, and a table is a list too.
  quoted = [(name, f"'{name}") for name in ("=1+1.png", "+a.png", "-a.png", "@a.png")]
  for name, cell in (*quoted, ("'a.png", "'a.png")):
    listed.write_text(f"path\n{cell}\n")
    images = find_images([str(listed)])
    (_, (shown, *_)), _ = written(predictor, images, tmp_path / "a.csv", top=1)
    assert (images.names, shown) == ([name], cell)
  listed.write_text("name\na.png\n")
  for name, words in (
    (listed, "has no column file: its first line must name the columns, with commas "),
    ("none.csv", "cannot be read .No such file"),
  ):
    with pytest.raises(UserError, match=words):
      find_images([str(name)])


def test_what_is_no_file_in_a_folder_or_list_is_a_row_with_an_error(predictor, tmp_path):
  folder = tmp_path / "odd"
  folder.mkdir()
  (folder / "loop.png").symlink_to("loop.png")
  (folder / "gone.png").symlink_to("nowhere")
  (folder / "up").symlink_to(tmp_path)  # a link to a folder is not followed
  os.mkfifo(folder / "pipe.png")
  listed = tmp_path / "list.csv"
  os.mkfifo(tmp_path / "pipe.png")
  listed.write_text("file\nhttp://x/y.png\n./pipe.png\n")
  images = find_images([str(folder), str(listed)])
  assert not images.notes
  (_, *rows), done = written(predictor, images, tmp_path / "a.csv", top=1)
  names = [str(folder / name) for name in ("gone.png", "loop.png", "pipe.png")]
  assert [row[0] for row in rows] == [*names, "http://x/y.png", "./pipe.png"]
  gone, odd = "there is no such file", "it is no regular file"
  assert [row[3] for row in rows] == [gone, "Too many levels of symbolic links", odd, gone, odd]
  assert done.broken == 5


def test_few_photos_are_decoded_at_a_time_and_few_are_read_ahead(predictor, monkeypatch):
  inside, most, read = threading.Semaphore(0), [], []

  def fake(path, size, resize, *, antialias):
    read.append(path)
    inside.release()
    most.append(inside._value)
    inside.acquire()
    return np.zeros((size, size, 3), np.uint8)

  monkeypatch.setattr(predict_lib, "read_image", fake)
  monkeypatch.setattr(predict_lib, "usable_cpus", lambda: 2)
  found = predictor.rows([*map(str, range(100_000))])
  next(found)
  found.close()
  assert max(most) <= 2
  assert len(read) == 2 * 4  # two batches


@pytest.fixture
def run(predictor, monkeypatch):
  """The command with this predictor in place of a run's."""
  monkeypatch.setattr(predict_lib, "run_predictor", lambda *_: contextlib.nullcontext(predictor))
  return lambda *arguments: command("predict", "--workdir=run", *arguments)


def test_the_command_prints_or_writes_the_table_and_counts_what_is_broken(run, photos, tmp_path):
  done = run(str(photos), "--csv=-")
  assert done.returncode == 2
  note, count, broken = done.stderr.splitlines()
  assert note.startswith("jaxspeed: note: 1 file is left out")
  assert count.startswith("jaxspeed: 12 images in ") and count.endswith(" a second")
  assert broken == "jaxspeed: 1 of 12 files could not be read: see the column error."
  path = tmp_path / "a.csv"
  quiet = run(str(photos), f"--csv={path}", "--quiet")
  assert (quiet.returncode, quiet.stdout, quiet.stderr) == (2, "", broken + "\n")
  assert path.read_bytes().decode() == done.stdout
  assert done.stdout.startswith("file,label,probability,error\n")
  good = run(str(photos / "0.png"), f"--csv={path}", "--top=20", "--quiet")
  assert (good.returncode, good.stderr) == (0, "")
  assert path.read_text().count("label_") == 9  # of ten classes


def test_sigterm_removes_the_half_table_and_leaves_an_earlier_one(
  run, photos, tmp_path, monkeypatch
):
  lines = predict_csv._line

  def terminated(cells):
    if cells[0].endswith("5.png"):
      signal.raise_signal(signal.SIGTERM)
    return lines(cells)

  monkeypatch.setattr(predict_csv, "_line", terminated)
  path = tmp_path / "out" / "a.csv"
  for before in ([], ["a.csv"]):
    path.parent.mkdir(exist_ok=True)
    assert run(str(photos), f"--csv={path}").returncode == 143
    assert os.listdir(path.parent) == before
    path.write_text("before")
  assert path.read_text() == "before"
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_where_no_table_can_be_written_nothing_is_loaded(photos, tmp_path):
  listed, image = tmp_path / "list.csv", photos / "0.png"
  listed.write_text("file\nphotos/0.png\n")
  replaced = "is a file to read, and would be replaced: name another one."
  for source, out, words in (
    (photos, "", "is a folder: name a file"),
    (listed, listed, replaced),
    (listed, image, replaced),
    (photos, image, replaced),
  ):
    sentence = mistake("predict", "--workdir=run", str(source), f"--csv={out}")
    assert sentence.startswith(f"--csv={out} {words}")
