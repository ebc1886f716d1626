"""Shards in a bucket: the real s3fs, against moto's server on this machine."""

import contextlib
import functools
import http.server
import itertools
import logging
import socket
import threading

import pytest
from image_files import assert_equal, joined, needs_tensorflow, train
from in_process import command
from toy_images import toy_stream, write_folder

from jaxspeed.data import remote
from jaxspeed.data.disk.sources import class_names_of, open_images
from jaxspeed.errors import UserError
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.restore import load_config
from jaxspeed.run.session import train as train_run

s3fs = pytest.importorskip("s3fs")
moto = pytest.importorskip("moto.server")
boto3 = pytest.importorskip("boto3")

URL = "s3://bucket/sets/toy/1.0.0"


class Line:
  """A proxy before a server, whose connections can be cut."""

  def __init__(self, port):
    self._port, self._open, self.cut = port, [], 0
    self._server = socket.create_server(("127.0.0.1", 0))
    self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
    threading.Thread(target=self._accept, daemon=True).start()

  def _accept(self):
    while True:
      near, _ = self._server.accept()
      if self.cut > 0:
        self.cut -= 1
        near.close()
        continue
      far = socket.create_connection(("127.0.0.1", self._port))
      self._open += [near, far]
      for pair in ((near, far), (far, near)):
        threading.Thread(target=self._pump, args=pair, daemon=True).start()

  def _pump(self, source, target):
    with source, target, contextlib.suppress(OSError):
      while data := source.recv(1 << 16):
        target.sendall(data)

  def lose(self, connections):
    """Cut what is open, and so many new connections."""
    self.cut = connections
    for each in self._open:
      with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    self._open = []


@pytest.fixture(scope="module")
def server():
  server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
  server.start()
  logging.getLogger("werkzeug").setLevel(logging.WARNING)
  yield server.get_host_and_port()[1]
  server.stop()


@pytest.fixture
def line(server, monkeypatch):
  """The line to a server with an empty bucket; libraries and we give up at once."""
  line = Line(server)
  for name, value in {
    "AWS_ENDPOINT_URL": line.address,
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",
  }.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(remote, "_PAUSES", (0.0, 0.1))
  monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
  s3fs.S3FileSystem.clear_instance_cache()
  client = boto3.client("s3")
  client.create_bucket(Bucket="bucket")
  yield line
  for each in client.list_objects_v2(Bucket="bucket").get("Contents", ()):
    client.delete_object(Bucket="bucket", Key=each["Key"])


@pytest.fixture
def uploaded(tmp_path, line):
  """A folder whose shards were uploaded."""
  folder = write_folder(tmp_path / "toy")
  flags = ["--name=toy", "--shards=2", "--workers=1"]
  done = command("prepare", "shards", str(folder), "s3://bucket/sets", *flags)
  assert done.returncode == 0 and f"--config.data.path={URL}" in done.stdout, done
  return folder


def there():
  """The ends of the objects' names."""
  files = s3fs.S3FileSystem()
  files.invalidate_cache()
  return {name.rpartition("/")[2] for name in files.find("bucket")}


@needs_tensorflow
def test_a_bucket_trains_and_evaluates_as_the_folder_does(uploaded, tmp_path, capsys, scans):
  assert {"dataset_info.json", "images.npz", "label.labels.txt", "features.json"} < there()
  local = str(tmp_path / "toy-shards/toy/1.0.0")
  far, near = (open_images(name="", path=p, cache=str(tmp_path / "c")) for p in (URL, local))
  assert not scans  # the index was uploaded too
  assert far.train.class_names == near.train.class_names == class_names_of(name="", path=URL)
  for one, other in ((far.train, near.train), (far.eval, near.eval)):
    assert_equal(joined([train(one)[0]]), joined([train(other)[0]]))
  config = toy_stream(URL, tmp_path / "cache", epochs=1.0, **{"phases.first_epoch": (0,)})
  config.phases.update(image_size=(16,), min_scale=(0.5,), eval_mode=("center",))
  train_run(config, str(tmp_path / "run"))
  capsys.readouterr()
  # A run's folder must not say what to download.
  with pytest.raises(UserError, match="evaluate downloads nothing"):
    evaluate(tmp_path / "run")
  assert f"--config.data.path={URL} uses it again" in capsys.readouterr().err
  config = load_config(tmp_path / "run")
  config.data.path = URL
  assert evaluate(tmp_path / "run", config=config)[0]["images"] == 13


def test_an_upload_that_breaks_off_leaves_no_set(uploaded, tmp_path, monkeypatch):
  folder = tmp_path / "toy-shards/toy/1.0.0"
  upload = functools.partial(remote.upload, folder, URL, show=lambda *_: None)
  calls = itertools.count(1)

  def call(*arguments, real=remote._call):
    if next(calls) == 10:  # of the labels, of removing the description, of eight files
      raise UserError("lost")
    return real(*arguments)

  with monkeypatch.context() as patched:
    patched.setattr(remote, "_call", call)
    with pytest.raises(UserError, match="lost"):
      upload()
  assert next(calls) == 11 and remote.INFO not in there()
  upload()
  assert remote.INFO in there()
  (folder / "label.labels.txt").write_text("cat\ndog\n")
  with pytest.raises(UserError, match="holds a data set with other classes"):
    upload()


@needs_tensorflow
def test_a_connection_that_is_lost_is_made_again_or_named(uploaded, tmp_path, line):
  split = open_images(name="", path=URL, cache=str(tmp_path / "c")).train
  whole = joined([train(split)[0]])
  line.lose(1)
  assert_equal(joined([train(split)[0]]), whole)
  line.lose(10**6)
  with pytest.raises(
    UserError, match=rf"{URL}/toy-train.tfrecord-0.* cannot be read \(.*network\.$"
  ):
    train(split)
  line.cut = 0


def test_what_is_missing_or_not_allowed_is_one_sentence(uploaded, tmp_path, line, server):
  images = open_images(name="", path=URL, cache=str(tmp_path / "c"))
  s3fs.S3FileSystem().rm(f"{URL}/toy-validation.tfrecord-00000-of-00002")
  with pytest.raises(
    UserError, match=r"validation.tfrecord-00000-of-00002 does not exist: .*shards"
  ):
    [images.eval.read(number) for number in range(len(images.eval))]
  for path in ("s3://bucket/nothing", "s3://no-bucket/toy"):
    with pytest.raises(UserError, match=f"^{path}/dataset_info.json does not exist: name the fold"):
      open_images(name="", path=path, cache=str(tmp_path / "c"))
  flags = ["--name=toy", "--shards=2", "--workers=1"]
  done = command("prepare", "shards", str(uploaded), "s3://no-bucket/sets", *flags)
  assert done.returncode == 2 and "jaxspeed: s3://no-bucket/sets/toy/1.0.0/" in done.stderr
  connection = http.client.HTTPConnection("127.0.0.1", server)
  connection.request("POST", "/moto-api/reset-auth", body=b"0")
  connection.getresponse().read()
  try:
    with pytest.raises(UserError, match=r"cannot be read \(.*\): check the address, the credentia"):
      open_images(name="", path=URL, cache=str(tmp_path / "c"))
  finally:
    connection.request("POST", "/moto-api/reset-auth", body=b"1000000")
    connection.getresponse().read()


def test_addresses_that_nothing_reads_are_one_sentence(tmp_path, monkeypatch):
  monkeypatch.setattr(remote, "_PAUSES", ())
  for path, words in {
    "s4://bucket/set": "cannot be read (Protocol not known: s4)",
    "http://127.0.0.1:1/set": "cannot be read (",
  }.items():
    with pytest.raises(UserError) as refused:
      remote.fetch_about(path, tmp_path)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@needs_tensorflow
def test_a_set_without_an_index_is_scanned_once(uploaded, tmp_path, scans):
  s3fs.S3FileSystem().rm(f"{URL}/.jaxspeed/images.npz")
  for _ in range(2):
    images = open_images(name="", path=URL, cache=str(tmp_path / "c"))
    assert len(scans) == 4 and images.train.width.all()


def test_a_server_that_sends_whole_files_only_is_named(tmp_path):
  class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments):
      super().__init__(*arguments, directory=str(tmp_path))

    def log_message(self, *arguments):
      pass

  (tmp_path / "a.bin").write_bytes(bytes(range(100)))
  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
    threading.Thread(target=web.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{web.server_port}/a.bin"
    assert remote.read(url) == bytes(range(100))
    with pytest.raises(UserError, match="the server sends whole files only"):
      remote.read(url, 10, 20)
    web.shutdown()
