"""Decoders' lines on descriptor 2: counted in a command, and everything else passed on."""

import io
import json
import subprocess
import sys

import pytest
import tiny_sets
from PIL import Image

from jaxspeed.config import decoder_lines, output

BEGIN = """
import json, os, signal, sys
from jaxspeed.config import decoder_lines, output
output.guard()
decoder_lines.catch()
def native(line):
  os.write(2, line.encode())
"""
CORRUPT = "Corrupt JPEG data: 1477 extraneous bytes before marker 0xd9"


def run(script, **options):
  options = dict(capture_output=True, text=True, timeout=120) | options
  return subprocess.run([sys.executable, "-c", BEGIN + script], **options)


def test_decoders_lines_are_counted_and_others_are_seen():
  script = f"""
native("{CORRUPT}\\n" * 3 + "words of a library\\n")
native("Premature end of JPEG file\\n")
native("half a li")
native("ne\\n")
print("own words", file=sys.stderr)
lines = decoder_lines.take()
print(json.dumps([lines, decoder_lines.take()]))
native("the end\\n")
"""
  done = run(script)
  assert json.loads(done.stdout) == [{CORRUPT: 3, "Premature end of JPEG file": 1}, {}]
  assert sorted(done.stderr.splitlines()) == [
    "half a line",
    "own words",
    "the end",
    "words of a library",
  ]


@pytest.mark.parametrize("end", ["os.abort()", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_last_words_of_a_crash_are_seen(end):
  done = run(f'native("{CORRUPT}\\nlast words\\n")\n{end}')
  assert done.returncode < 0 and "last words\n" in done.stderr and CORRUPT not in done.stderr


def test_a_descriptor_that_is_closed_or_full_changes_nothing():
  script = f'native("{CORRUPT}\\nother\\n")\nprint(json.dumps(decoder_lines.take()))'
  with open("/dev/full", "wb") as full:
    done = run(script, capture_output=False, stdout=subprocess.PIPE, stderr=full)
  assert (done.returncode, json.loads(done.stdout)) == (0, {CORRUPT: 1})
  command = [sys.executable, "-c", BEGIN + script]
  done = subprocess.run(
    ["sh", "-c", 'exec "$@" 2>&-', "sh", *command], stdout=subprocess.PIPE, timeout=120, check=True
  )
  assert json.loads(done.stdout) == {CORRUPT: 1}


def test_without_its_process_lines_are_seen():
  script = f"""
os.kill(decoder_lines._filter._process.pid, signal.SIGKILL)
decoder_lines._filter._process.wait()
print(json.dumps(decoder_lines.take()))
decoder_lines.catch()
native("{CORRUPT}\\n")
print(json.dumps(decoder_lines.take()))
"""
  done = run(script)
  assert done.stdout.splitlines() == ["{}", json.dumps({CORRUPT: 1})], done


def test_only_commands_catch_them():
  assert not output.is_guarded()
  decoder_lines.catch()
  assert decoder_lines.take() == {}


def test_what_is_said_of_them():
  assert decoder_lines.describe({}, 4) == (
    "the decoder warned 4 times of damaged images, which it decoded all the same"
  )
  lines = {"a": 1, "b": 5, "c": 2, "d": 1, "e": 1}
  assert decoder_lines.describe(lines, 12) == (
    "the decoder warned 12 times of damaged images, which it decoded all the same: "
    '"b" (5), "c" (2), "a" (1) and 2 other warnings'
  )


def test_tensorflow_writes_such_lines(tmp_path):
  """Surplus bytes before the end of a JPEG, as in three of ImageNet's images."""
  pytest.importorskip("tensorflow")
  buffer = io.BytesIO()
  image = tiny_sets.random_images(0, 1, height=40, width=48)[0]
  Image.fromarray(image).save(buffer, "JPEG")
  encoded = buffer.getvalue()
  (tmp_path / "damaged.jpg").write_bytes(encoded[:-2] + b"surplus" + encoded[-2:])
  script = """
from jaxspeed.data.disk.images import import_tensorflow
tf = import_tensorflow()
image = tf.io.decode_jpeg(open("damaged.jpg", "rb").read())
print(json.dumps([list(image.shape), decoder_lines.take()]))
"""
  done = run(script, cwd=tmp_path)
  shape, lines = json.loads(done.stdout)
  assert shape == [40, 48, 3] and list(lines.values()) == [1], done
  assert "extraneous bytes" in next(iter(lines)) and "JPEG" not in done.stderr
