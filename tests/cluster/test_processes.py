"""Processes that find each other and train as one: by flags, Slurm, Open MPI, a Kubernetes job."""

import json
import re
import shutil
import socket
import subprocess
import sys

import jax
import local_cluster
import numpy as np
import pytest
from tolerances import EQUAL, assert_equal
from toy_images import params_of, write_folder

from jaxspeed.cluster import processes as processes_lib
from jaxspeed.cluster.peers import Peers, find_peers, first_host, own_gpus
from jaxspeed.errors import LOST_PEER, UserError
from jaxspeed.records.thumbnails import FILE as THUMBNAILS
from jaxspeed.records.thumbnails import read_thumbnails
from jaxspeed.records.writer import read_metrics

QUICKSTART = "--config=configs/quickstart.py"
CPP_LOG = re.compile(r"WARNING: All log messages before absl::|[IWE]\d{4} \d\d:")


def test_a_process_on_its_own_has_no_peers():
  assert find_peers(environment={}) is None
  assert find_peers("host:1", 1, 0, environment={}) is None
  # The shell of a batch script is no step of Slurm.
  assert find_peers(environment={"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}) is None


def test_flags_come_first():
  environment = {"SLURM_STEP_NODELIST": "n1", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}
  peers = find_peers("10.0.0.1:62000", 2, 1, environment=environment)
  assert peers == Peers("10.0.0.1:62000", 2, 1, None, 0, "the flags")


SLURM = {
  "SLURM_JOB_ID": "4711",
  "SLURM_STEP_ID": "0",
  "SLURM_STEP_NODELIST": "gpu[07-08],login1",
  "SLURM_STEP_NUM_TASKS": "6",
  "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
  "SLURM_PROCID": "3",
  "SLURM_NODEID": "1",
  "SLURM_LOCALID": "1",
}


def test_a_step_of_slurm():
  peers = find_peers(environment=SLURM)
  assert (peers.processes, peers.process, peers.local, peers.local_process) == (6, 3, 2, 1)
  host, _, port = peers.coordinator.partition(":")
  assert host == "gpu07" and 61440 <= int(port) < 65536
  assert find_peers(environment=SLURM | {"SLURM_PROCID": "0"}).coordinator == peers.coordinator
  other = find_peers(environment=SLURM | {"SLURM_JOB_ID": "4712"}).coordinator
  assert other.partition(":")[2] != port
  assert find_peers(environment=SLURM | {"SLURM_NODEID": "2", "SLURM_LOCALID": "0"}).local == 1
  # An address that is given counts also here.
  given = find_peers(environment=SLURM | {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:9"})
  assert given.coordinator == "127.0.0.1:9" and given.process == 3


OPEN_MPI = {
  "OMPI_COMM_WORLD_SIZE": "4",
  "OMPI_COMM_WORLD_RANK": "2",
  "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
  "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}


def test_open_mpi_of_version_4_and_5():
  uri = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}
  peers = find_peers(environment=OPEN_MPI | uri)
  assert (peers.processes, peers.process, peers.local, peers.local_process) == (4, 2, 2, 0)
  assert peers.coordinator.startswith("10.96.0.1:")
  one_host = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-a-1@1"}
  assert find_peers(environment=one_host).coordinator.startswith("127.0.0.1:")
  with pytest.raises(
    UserError, match="mpirun does not say where process 0 runs: add --coordinator"
  ):
    find_peers(environment=OPEN_MPI)
  assert find_peers("node1:62000", environment=OPEN_MPI).coordinator == "node1:62000"


def test_an_indexed_job_of_kubernetes():
  environment = {
    "JAX_COORDINATOR_ADDRESS": "train-worker-0-0.train:62000",
    "JAX_NUM_PROCESSES": "4",
    "JOB_COMPLETION_INDEX": "3",
  }
  peers = find_peers(environment=environment)
  assert (peers.coordinator, peers.processes, peers.process) == (
    "train-worker-0-0.train:62000",
    4,
    3,
  )
  assert find_peers(environment=environment | {"JAX_PROCESS_ID": "1"}).process == 1


@pytest.mark.parametrize(
  "arguments, environment, sentence",
  [
    (("h:1", 2, None), {}, "--process_id is missing: .* belong together"),
    ((None, 2, 0), {}, "--coordinator is missing"),
    (("h:1", None, None), {}, "--num_processes is missing"),
    (("h:1", 2, 2), {}, r"process_id is 2 of num_processes 2 \(the flags\): it counts from 0"),
    (("host", 2, 0), {}, "the coordinator 'host' .* is no HOST:PORT"),
    (("host:99999", 2, 0), {}, "is no HOST:PORT"),
    ((), {"JAX_NUM_PROCESSES": "x", "JAX_PROCESS_ID": "0", "JAX_COORDINATOR_ADDRESS": "h:1"},
     "JAX_NUM_PROCESSES=x is no number"),
    ((), {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "JAX_COORDINATOR_ADDRESS=HOST:PORT"),
  ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(arguments, environment, sentence):
  with pytest.raises(UserError, match=sentence):
    find_peers(*arguments, environment=environment)


@pytest.mark.parametrize(
  "hosts, first",
  [("n1", "n1"), ("n[1-3]", "n1"), ("n[07,09],m1", "n07"), ("a-b,c", "a-b"), ("n[12]", "n12")],
)
def test_the_first_host_of_a_list(hosts, first):
  assert first_host(hosts) == first


def peers_of(local, local_process=0):
  return Peers("h:1", 8, 0, local, local_process, "a test")


def test_gpus_are_shared_out_among_the_processes_of_a_host():
  eight = [str(i) for i in range(8)]
  # One process a host has all of them, where Slurm's detection in JAX would give it the first.
  assert own_gpus(peers_of(1), eight, bound=False) is None
  assert own_gpus(peers_of(None), eight, bound=False) is None
  assert own_gpus(peers_of(8, 5), eight, bound=False) == [5]
  assert own_gpus(peers_of(2, 1), eight, bound=True) == [4, 5, 6, 7]
  # Already its own one by --gpus-per-task: number 5 of one visible GPU does not exist.
  assert own_gpus(peers_of(8, 5), ["3"], bound=True) is None
  assert own_gpus(peers_of(2), [], bound=False) is None
  with pytest.raises(
    UserError, match="3 processes share the 8 GPUs of .*: start one process per GPU"
  ):
    own_gpus(peers_of(3), eight, bound=False)


def test_a_coordinator_that_cannot_be_reached_is_a_sentence(monkeypatch):
  port = local_cluster.free_port()
  with pytest.raises(
    UserError, match=f"process 1 got no answer from process 0 at 127.0.0.1:{port}"
  ):
    processes_lib.connect(
      Peers(f"127.0.0.1:{port}", 2, 1, None, 0, "a test"), heartbeat_seconds=10, timeout=1
    )
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", port))
    taken.listen()
    with pytest.raises(UserError, match=f"process 0 cannot listen at 127.0.0.1:{port}"):
      processes_lib.connect(
        Peers(f"127.0.0.1:{port}", 2, 0, None, 0, "a test"), heartbeat_seconds=10
      )

  def unknown(*_, **__):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

  monkeypatch.setattr(socket, "getaddrinfo", unknown)
  with pytest.raises(UserError, match="host 'nowhere' .* is not known on this one"):
    processes_lib._resolve("nowhere", peers_of(1), patience=0.1)


def listening(port):
  """Local addresses at which somebody listens on a port, as /proc/net/tcp writes them."""
  found = set()
  for table in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
      address, state = line.split()[1], line.split()[3]
      if state == "0A" and int(address.rpartition(":")[2], 16) == port:
        found.add(address.rpartition(":")[0])
  return found


def few_steps(caches, tmp, feed, processes):
  """Flags of a run of 20 steps whose norms see eight images, whatever the number of processes."""
  flags = [
    QUICKSTART,
    f"--workdir={tmp}/{feed}-{processes}",
    f"--config.compile_cache={caches}/programs",
    "--config.batch_size=32",
    "--config.model.width=4",
    f"--config.accumulate={4 // processes}",
    "--config.precision=float64",
    "--config.average.kind=none",
  ]
  if feed == "stream":
    flags += [
      "--config.data.feed=stream",
      "--config.model.whiten=False",
      f"--config.data.path={write_folder(caches / 'images', train=64, held_out=13)}",
      f"--config.data.cache={caches}/data",
      "--config.data.image_size=16",
      "--config.data.mean=(120,120,120)",
      "--config.data.std=(60,60,60)",
      "--config.data.classes=4",
      "--config.augment.flip=random",
      "--config.augment.crop_padding=0",
      "--config.augment.cutout=0",
      "--config.eval.mode=center",
      "--config.epochs=10",  # of two steps
    ]
  else:
    flags += ["--config.epochs=0.42"]  # 20 of 46 steps
  return flags


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
    with local_cluster.processes(*few_steps(caches, tmp, feed, count), count=count) as run:
      ended = run.wait(240)
    assert [e.code for e in ended] == [0] * count, ended
    folder = tmp / f"{feed}-{count}"
    step, carry = params_of(folder)
    assert step == 20
    leaves = jax.tree.leaves(jax.device_get(carry.state.params))
    params[count] = np.concatenate([leaf.reshape(-1) for leaf in leaves])
    (rows[count],) = [read_metrics(folder)[-1]]
    starts[count] = ended
    shown[count] = read_thumbnails(folder / THUMBNAILS)
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
def test_the_coordinator_listens_at_its_address_only_and_a_lost_process_is_told(tmp_path):
  caches = tmp_path / "caches"
  flags = [f for f in few_steps(caches, tmp_path, "resident", 2) if "epochs" not in f]
  flags.append("--config.epochs=200")
  with local_cluster.processes(*flags, count=2) as run:
    run[0].wait_for("starting", 120)
    command = (local_cluster.pathlib.Path("/proc") / str(run[0].pid) / "cmdline").read_text()
    port = int(command.partition("--coordinator=127.0.0.1:")[2].split("\0")[0])
    # 127.0.0.1, alone or as ::ffff:127.0.0.1, and neither 0.0.0.0 nor ::.
    assert {address[-8:] for address in listening(port)} == {"0100007F"}
    run[1].signal(local_cluster.signal.SIGKILL)
    ended = run.wait(60)
  assert ended[0].code == LOST_PEER
  assert "process 0 of 2" in ended[0].err and "has lost another process" in ended[0].err


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI's mpirun is not installed")
def test_mpirun_says_who_takes_part(tmp_path):
  command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
  flags = [QUICKSTART, "--config.epochs=1", "--config.model.width=4"]
  done = subprocess.run(
    [*command, sys.executable, "-m", "jaxspeed.train", *flags, f"--workdir={tmp_path}/run"],
    cwd=local_cluster.ROOT,
    env=local_cluster.environment(),
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert "2 processes on 1 host, mesh data=2" in done.stdout
  assert read_metrics(tmp_path / "run")[-1]["world"] == 2
