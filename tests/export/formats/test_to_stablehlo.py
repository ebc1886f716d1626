"""StableHLO files: what they compute, for models of the package and of one's own."""

import dataclasses
import json
import signal

import flax.linen as nn
import jax
import numpy as np
import pytest
from exported import NAMES, network, photographs, spread
from in_process import command

from jaxspeed.errors import UserError
from jaxspeed.export.formats import to_stablehlo
from jaxspeed.export.formats.to_stablehlo import PLATFORMS, metadata_file, write_stablehlo
from jaxspeed.files import write_atomically
from jaxspeed.models.airbench import Airbench
from jaxspeed.run import export as export_lib


class Counting(nn.Module):
  """A model that asks for the number of its images, as docs/extending.md does."""

  @nn.compact
  def __call__(self, images, *, train):
    return nn.Dense(10, name="head")(images.reshape(len(images), -1))


class Untraceable(nn.Module):
  """A model that needs the values of its images."""

  @nn.compact
  def __call__(self, images, *, train):
    return nn.Dense(10, name="head")(images[:, 0, 0]) * float(images.max())


@pytest.mark.parametrize(
  "model, dtype", [(Airbench(widths=(4, 8, 8)), "uint8"), (Counting(), "float32")]
)
def test_probabilities_are_those_of_the_model(model, dtype, tmp_path):
  images = photographs(16)
  if dtype == "float32":
    images = images.astype(np.float32) / 255
  own = isinstance(model, Counting)
  made, expected = spread(network(model, 16, input_dtype=dtype, own=own), images)
  path = tmp_path / "net.stablehlo"
  write_stablehlo(path, made)
  program = jax.export.deserialize(bytearray(path.read_bytes()))
  assert program.platforms == PLATFORMS
  for part in (slice(0, 1), slice(None)):
    np.testing.assert_allclose(program.call(images[part]), expected[part], rtol=0, atol=1e-5)
  found = json.loads(metadata_file(path).read_text())
  assert found["class_names"] == list(NAMES) and found["image_size"] == 16


def test_a_model_that_cannot_be_traced_leaves_nothing(tmp_path):
  made = dataclasses.replace(network(Counting(), 1, own=True), model=Untraceable())
  with pytest.raises(UserError, match="^Untraceable cannot be exported for batches of any size"):
    write_stablehlo(tmp_path / "net.stablehlo", made)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [UserError("the disk is full."), SystemExit("SIGTERM: full")])
def test_metadata_do_not_stay_without_their_program(error, tmp_path, monkeypatch):
  write = to_stablehlo.write

  def fail_program(path, content):
    if path.suffix == ".stablehlo":
      raise error
    write(path, content)

  monkeypatch.setattr(to_stablehlo, "write", fail_program)
  path = tmp_path / "net.stablehlo"
  made = network(Counting(), 4, own=True)
  with pytest.raises(type(error), match="full"):
    write_stablehlo(path, made)
  assert list(tmp_path.iterdir()) == []
  metadata_file(path).write_text("of an older program")
  with pytest.raises(type(error), match="full"):
    write_stablehlo(path, made)
  assert metadata_file(path).read_text() == "of an older program"


@pytest.mark.parametrize("content", ['{"lr": 0.1}', "[1]", "no JSON", ""])
def test_metadata_replace_only_metadata(content, tmp_path):
  path, made = tmp_path / "net", network(Counting(), 4, own=True)
  beside = metadata_file(path)
  beside.write_text(content)
  with pytest.raises(UserError, match=f"^{beside}, which the metadata of {path} would replace, "):
    export_lib.write_network(path, made, file_format="stablehlo")
  assert beside.read_text() == content and not path.exists()
  beside.unlink()
  for _ in range(2):
    export_lib.write_network(path, made, file_format="stablehlo")
  assert json.loads(beside.read_text())["class_names"] == list(NAMES)


def test_sigterm_removes_the_half_file(tmp_path, monkeypatch):
  def half(path, _):
    def content():
      yield b"half"
      signal.raise_signal(signal.SIGTERM)

    write_atomically(path, content())

  monkeypatch.setattr(export_lib, "check_place", half)
  done = command("export", "run", "--format=onnx", f"--out={tmp_path / 'a.onnx'}")
  assert done.returncode == 143 and list(tmp_path.iterdir()) == []
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
