"""Weights of the Hugging Face hub, by its own library from a server here, and of a run's folder."""

import http.server
import os
import shutil
import threading

import jax
import numpy as np
import pytest
from toy import toy_config
from toy_images import params_of

from jaxspeed.config import stored
from jaxspeed.errors import UserError
from jaxspeed.models import hub
from jaxspeed.models.exchange import save_weights
from jaxspeed.models.resnet_weights import RESNET
from jaxspeed.run.initial import fitted
from jaxspeed.run.planned import planned
from jaxspeed.run.restore import with_file
from jaxspeed.run.session import train

constants = pytest.importorskip("huggingface_hub.constants")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Server(http.server.BaseHTTPRequestHandler):
  """The answers of the hub to a download: a file, or what it lacks."""

  files: dict[str, bytes] = {}
  cut = False

  def do_HEAD(self):
    self.answer(body=False)

  def do_GET(self):
    self.answer(body=True)

  def answer(self, body):
    owner, name, _, revision, file = (self.path.strip("/").split("/", 4) + [""] * 5)[:5]
    missing = {"private": "RepoNotFound", "gated": "GatedRepo"}.get(name)
    missing = missing or ("RevisionNotFound" if revision == "v9" else None)
    content = self.files.get(f"{owner}/{name}/{file}")
    missing = missing or (None if content else "EntryNotFound")
    self.send_response(404 if missing else 200)
    self.send_header("X-Repo-Commit", COMMIT)
    if missing:
      self.send_header("X-Error-Code", missing)
    else:
      self.send_header("ETag", '"1"')
      self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    if body and content:
      self.wfile.write(content[: len(content) // 2] if self.cut else content)

  def log_message(self, *_):
    pass


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A run of a small ResNet-18."""
  folder = tmp_path_factory.mktemp("hub") / "run"
  train(resnet(), str(folder))
  return folder


def resnet(**fields):
  config = toy_config()
  config.model = dict(name="resnet", depth=18, width=4)
  config.update_from_flattened_dict(fields)
  return config


@pytest.fixture
def served(trained, tmp_path, monkeypatch):
  """The run's weights as timm/small on a hub of this machine."""
  _, carry = params_of(trained)
  save_weights(tmp_path / "net.safetensors", jax.device_get(carry.state.eval_variables()), RESNET)
  content = (tmp_path / "net.safetensors").read_bytes()
  monkeypatch.setattr(Server, "files", {"timm/small/model.safetensors": content})
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  # As HF_ENDPOINT sets it, where it is there before the library is imported.
  endpoint = f"http://127.0.0.1:{server.server_port}"
  form = "{repo_id}/resolve/{revision}/{filename}"
  monkeypatch.setattr(constants, "ENDPOINT", endpoint)
  monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{endpoint}/{form}")
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
  hub.fetch.cache_clear()
  yield server
  server.shutdown()
  server.server_close()
  hub.fetch.cache_clear()


def begun_with(path, workdir, given=(), **fields):
  """The parameters of a run that begins with weights and hardly moves."""
  config = resnet(**{"pretrained.path": str(path), "schedule.peak": 1e-12, **fields})
  train(config, str(workdir), given=given)
  return jax.device_get(params_of(workdir)[1].state.params)


def test_a_run_begins_with_weights_of_the_hub_and_names_their_commit(trained, served, tmp_path):
  path = "hf://timm/small"
  # The weights decide the width and the depth.
  config = resnet(**{"pretrained.path": path, "model.depth": 34, "model.width": 8})
  assert f"weights: training downloads {path}" in planned(config, devices=1).lines
  found = begun_with(path, tmp_path / "a", **{"model.depth": 34, "model.width": 8})
  before = jax.device_get(params_of(trained)[1].state.eval_variables()["params"])
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9), before, found)
  kept = stored.load(tmp_path / "a" / "config.json")
  assert kept.pretrained.path == f"{path}@{COMMIT}"
  assert (kept.model.depth, kept.model.width) == (18, 4)
  decided = "the weights decide: model.depth=18 in place of the recipe's 34, model.width=4 in place"
  assert any(line.startswith(decided) for line in planned(config, devices=1).lines)
  # Without a network, the cache has them; a run that resumes needs neither.
  served.shutdown()
  served.server_close()
  hub.fetch.cache_clear()
  assert hub.pinned(path) == kept.pretrained.path
  hub.fetch.cache_clear()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(UserError, match="cannot be reached, and the cache has no copy"):
      hub.fetch(path)
    begun_with(path, tmp_path / "a", **{"model.depth": 34, "model.width": 8})


@pytest.mark.parametrize(
  "path, words",
  [
    ("hf://timm", "write hf://OWNER/NAME"),
    ("hf://timm/small/pytorch_model.bin", "write hf://OWNER/NAME.* pickles are not loaded"),
    ("hf://timm/small/../a.safetensors", "cannot contain a '..'"),
    ("hf://timm/pickled", "holds no model.safetensors: .* pickles .* are not loaded"),
    ("hf://timm/small@v9", "has no revision v9"),
    ("hf://timm/private", "no such name, or it is private"),
    ("hf://timm/gated", "gated"),
  ],
)
def test_what_the_hub_lacks_is_a_sentence(served, path, words):
  with pytest.raises(UserError, match=words):
    hub.fetch(path)


def test_a_download_that_is_cut_off_is_no_file(served, monkeypatch):
  monkeypatch.setattr(Server, "cut", True)
  with pytest.raises(UserError, match="hf://timm/small cannot be downloaded .*: run the same"):
    hub.fetch("hf://timm/small")
  monkeypatch.setattr(Server, "cut", False)
  assert hub.fetch("hf://timm/small").stat().st_size == len(
    Server.files["timm/small/model.safetensors"]
  )


def test_a_run_begins_with_the_weights_of_a_run(trained, tmp_path):
  found = begun_with(trained, tmp_path / "a", **{"model.width": 8})
  before = jax.device_get(params_of(trained)[1].state.eval_variables()["params"])
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9), before, found)
  with pytest.raises(UserError, match="width 4, but .* has width 8: set config.model.width=4"):
    begun_with(trained, tmp_path / "b", given=["model.width"], **{"model.width": 8})
  # Its classes are ours: so is its last layer.
  config = resnet(**{"pretrained.path": str(trained), "pretrained.head": "new"})
  names = tuple(map(str, range(10)))
  for given, classes, head in (
    ([], names, "keep"),
    ([], names[::-1], "new"),
    (["pretrained.head"], names, "new"),
  ):
    found = fitted(config, given, classes)
    assert (found.pretrained.head, found.pretrained.path) == (head, str(trained))


def test_runs_of_one_name_have_files_of_their_own_and_a_run_may_go_on(trained, tmp_path):
  def file_of(folder):
    return with_file(resnet(**{"pretrained.path": str(folder)})).pretrained.path

  other = shutil.copytree(trained, tmp_path / trained.name)
  before = file_of(trained), file_of(other)
  assert before == (file_of(trained), file_of(other)) and before[0] != before[1]
  os.utime(other / "checkpoints", ns=(1, 1))  # as a new checkpoint does
  assert file_of(other) != before[1]
