"""Processes that find each other and train as one: by flags, Slurm, Open MPI, a Kubernetes job."""

import contextlib
import functools
import json
import pathlib
import re
import shutil
import socket
import sys

import jax
import local_cluster
import numpy as np
import pytest
from commands import run
from tolerances import EQUAL, assert_equal
from toy_images import params_of, write_folder
from toy_stream_config import HELD_OUT, TRAIN

from jaxspeed.cluster import processes as processes_lib
from jaxspeed.cluster.peers import Peers
from jaxspeed.errors import UserError
from jaxspeed.records.arrays import Thumbnails
from jaxspeed.records.writer import read_metrics

QUICKSTART = "--config=configs/quickstart.py"
CPP_LOG = re.compile(r"WARNING: All log messages before absl::|[IWE]\d{4} \d\d:")


def test_a_coordinator_that_cannot_be_reached_is_a_sentence(monkeypatch):
  port = local_cluster.free_port()
  peers = [Peers(f"127.0.0.1:{port}", 2, i, None, 0, "a test") for i in range(2)]
  with pytest.raises(UserError, match=f"process 1 got no answer from .* at 127.0.0.1:{port}"):
    processes_lib.connect(peers[1], heartbeat_seconds=10, timeout=1)
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", port))
    taken.listen()
    with pytest.raises(UserError, match=f"process 0 cannot listen at 127.0.0.1:{port}"):
      processes_lib.connect(peers[0], heartbeat_seconds=10)

  def unknown(*_, **__):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

  monkeypatch.setattr(socket, "getaddrinfo", unknown)
  with pytest.raises(UserError, match="host 'nowhere' .* is not known on this one"):
    processes_lib._resolve("nowhere", Peers("h:1", 8, 0, 1, 0, "a test"), patience=0.1)


@pytest.mark.parametrize("error", [None, ValueError, RuntimeError])
def test_hosts_of_a_tpu_find_each_other_by_themselves_or_say_so(monkeypatch, error):
  started = []

  def initialize(**options):
    started.append(options)
    if error:
      raise error("no coordinator\nmore")

  monkeypatch.setenv("JAX_PLATFORMS", "" if error else "tpu,cpu")
  monkeypatch.setattr(processes_lib, "_joined", None)
  monkeypatch.setattr(processes_lib, "_exit_where_xla_aborts", lambda: None)
  monkeypatch.setattr(jax.distributed, "initialize", initialize)
  monkeypatch.setattr(jax, "process_count", lambda: 4)
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  monkeypatch.setattr(jax.config, "update", lambda *_: None)
  for has_tpu in (False, True):
    monkeypatch.setattr(processes_lib, "has_tpu", lambda has_tpu=has_tpu: has_tpu)
    # One in no slice, a ValueError of JAX, trains alone.
    refused = pytest.raises(UserError, match="did not meet: no coordinator$")
    with refused if has_tpu and error is RuntimeError else contextlib.nullcontext():
      processes_lib.connect_tpu_hosts(heartbeat_seconds=10)
    joined = has_tpu and not error
    assert processes_lib.several() is joined and processes_lib.is_primary() is not joined
  assert started == [{"heartbeat_timeout_seconds": 10}]


def listening(port):
  """Local addresses at which somebody listens on a port, as /proc/net/tcp writes them."""
  found = set()
  for table in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
      address, state = line.split()[1], line.split()[3]
      if state == "0A" and int(address.rpartition(":")[2], 16) == port:
        found.add(address.rpartition(":")[0])
  return found


def few_steps(caches, feed, processes):
  """Flags of 20 steps whose norms see eight images, whatever the number of processes."""
  recipe, epochs = "configs/quickstart.py", 0.42
  if feed == "stream":
    write_folder(caches / "images", train=TRAIN, held_out=HELD_OUT)
    recipe, epochs = f"tests/toy_stream_config.py:{caches}", 4
  return [
    f"--config={recipe}",
    f"--config.epochs={epochs}",
    "--config.batch_size=32",
    "--config.model.width=4",
    f"--config.accumulate={4 // processes}",
    "--config.precision=float64",
    "--config.average.kind=none",
  ]


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_one_two_and_four_processes_come_to_the_same_parameters(feed, tmp_path_factory):
  if feed == "stream":
    pytest.importorskip("tensorflow")
  tmp, caches = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("caches")
  params, rows, starts, shown = {}, {}, {}, {}
  for count in (1, 2, 4):
    folder = tmp / f"{feed}-{count}"
    flags = (*few_steps(caches, feed, count), f"--workdir={folder}")
    with local_cluster.processes(*flags, count=count) as group:
      if count > 1:
        # 127.0.0.1, alone or as ::ffff:127.0.0.1, and neither 0.0.0.0 nor ::.
        command = pathlib.Path(f"/proc/{group[0].pid}/cmdline").read_text()
        port = int(command.partition("--coordinator=127.0.0.1:")[2].split("\0")[0])
        local_cluster.wait_until(functools.partial(listening, port), 120, "the coordinator")
        assert {address[-8:] for address in listening(port)} == {"0100007F"}
      ended = group.wait(240)
    assert [e.code for e in ended] == [0] * count, ended
    step, carry = params_of(folder)
    assert step == 20
    leaves = jax.tree.leaves(jax.device_get(carry.state.params))
    params[count] = np.concatenate([leaf.reshape(-1) for leaf in leaves])
    (rows[count],) = [read_metrics(folder)[-1]]
    starts[count] = ended
    shown[count] = Thumbnails.read(folder, 10)
  for count in (2, 4):
    assert_equal(params[count], params[1])
    for name in ("train_loss", "eval_loss"):
      assert rows[count][name] == pytest.approx(rows[1][name], rel=EQUAL)
    assert rows[count]["eval_top1"] == rows[1]["eval_top1"]
    assert rows[count]["world"] == count
    # The images for the report are those of the whole batch, whoever read them.
    np.testing.assert_array_equal(shown[count].train_image, shown[1].train_image)
    assert shown[count].eval_image.shape == shown[1].eval_image.shape
  # One process prints and writes, the others nothing.
  assert "2 processes on 1 host, mesh data=2" in starts[2][0].out
  assert "all-reduces of" in starts[2][0].out and "connect" in starts[2][0].out
  printed = [line for line in starts[2][1].out.splitlines() if not line.startswith("[Gloo]")]
  # TensorFlow's C++ tells of a missing CUDA whatever its log level is.
  told = [line for line in starts[2][1].err.splitlines() if not CPP_LOG.match(line)]
  assert printed == told == []
  assert json.loads((tmp / f"{feed}-2" / "result.json").read_text())["top1"] == rows[2]["eval_top1"]


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI's mpirun is not installed")
def test_mpirun_says_who_takes_part(tmp_path):
  command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
  flags = [QUICKSTART, "--config.epochs=1", "--config.model.width=4"]
  command += [sys.executable, "-m", "jaxspeed.train", *flags, f"--workdir={tmp_path}/run"]
  done = run(*command, env=local_cluster.environment())
  assert "2 processes on 1 host, mesh data=2" in done.stdout
  assert read_metrics(tmp_path / "run")[-1]["world"] == 2
