"""A job's folder: what is written into it, what is read back, also from a damaged one."""

import json
import os
import pathlib
import subprocess
import time

import pytest
from fake_jobs import CANCELLED, SUBMITTED, TOKEN, config_of, event, facts_of, local, write_job

from jaxspeed.errors import UserError
from jaxspeed.files import TEMPORARY
from jaxspeed.launch import record, sources
from jaxspeed.launch.executor import Planned, Task

# Requests


def test_requests_are_read_as_they_were_written(tmp_path):
  facts = write_job(tmp_path, requests=())
  assert facts.submission is None and not facts.cancelled and facts.own(()) == []
  record.request(facts.folder, what="submit", token="t1")
  facts = facts_of(facts.folder)
  assert facts.submission.token == "t1" and facts.submission.id == ""
  assert abs(facts.submission.time - time.time()) < 60
  record.request(facts.folder, what="submitted", token="t1", id="12_3")
  assert facts_of(facts.folder).submission.id == "12_3"
  record.request(facts.folder, what="cancel")
  assert facts_of(facts.folder).cancelled
  # Submitted again, the job is not cancelled, and the old id is not its id.
  record.request(facts.folder, what="submit", token="t2")
  facts = facts_of(facts.folder)
  assert not facts.cancelled and facts.submission.token == "t2" and facts.submission.id == ""
  kinds = [request.what for request in facts.requests]
  assert kinds == ["submit", "submitted", "cancel", "submit"]


def test_an_id_that_comes_after_a_cancellation_does_not_revoke_it(tmp_path):
  facts = write_job(tmp_path, requests=(SUBMITTED[0], CANCELLED, SUBMITTED[1]))
  assert facts.cancelled and facts.submission.id == "7"


@pytest.mark.parametrize("end", [b'{"time": 1.0, "wh', b'{"time": 1.0}', b"\xff\xfe", b"[]", b"{}"])
def test_a_last_request_that_was_cut_off_does_not_count(tmp_path, end):
  facts = write_job(tmp_path)
  path = facts.folder / "launch" / "requests.jsonl"
  path.write_bytes(path.read_bytes() + end)
  assert facts_of(facts.folder).requests == tuple(each.sealed(facts.folder) for each in SUBMITTED)


def test_a_request_after_a_cut_off_one_has_a_line_of_its_own(tmp_path):
  facts = write_job(tmp_path)
  path = facts.folder / "launch" / "requests.jsonl"
  whole = path.read_bytes()
  path.write_bytes(whole + b'{"time": 1.0, "wh')
  record.request(facts.folder, what="cancel")
  assert facts_of(facts.folder).cancelled and path.read_bytes().startswith(whole)
  # Alone in its file, too.
  path.write_bytes(b'{"time": 1.0, "wh')
  record.request(facts.folder, what="submit", token="t")
  assert [request.what for request in facts_of(facts.folder).requests] == ["submit"]


@pytest.mark.parametrize(
  "line", [b"", b"{}", b"nothing", b'{"time": 1.0, "what": "sing"}', b'{"what": "cancel"}', b"\xff"]
)
def test_a_damaged_request_in_the_middle_is_an_error(tmp_path, line):
  facts = write_job(tmp_path)
  path = facts.folder / "launch" / "requests.jsonl"
  lines = path.read_bytes().splitlines()
  path.write_bytes(b"\n".join([lines[0], line, lines[1], b""]))
  with pytest.raises(
    UserError, match=r"requests.jsonl, line 2, is no request \(.*repair or delete"
  ):
    facts_of(facts.folder)


def test_requests_that_cannot_be_written(tmp_path, monkeypatch):
  facts = write_job(tmp_path)
  monkeypatch.setattr(os, "write", lambda *_: 3)
  with pytest.raises(UserError, match="requests.jsonl cannot be written .there is no room.*repeat"):
    record.request(facts.folder, what="cancel")
  monkeypatch.undo()
  (facts.folder / "launch" / "requests.jsonl").unlink()
  (facts.folder / "launch" / "requests.jsonl").mkdir()
  with pytest.raises(UserError, match="requests.jsonl cannot be written .Is a directory"):
    record.request(facts.folder, what="cancel")
  with pytest.raises(UserError, match="requests.jsonl cannot be read .*: move it away"):
    facts_of(facts.folder)


# Notes


def test_notes_are_read_as_they_were_written(tmp_path):
  notes = [event("started", detail="7"), event("requeued", 60, detail="a process was lost")]
  tasks = {10: [event("started", restart=1)], 2: [event("ended", restart=1, detail="75")]}
  facts = write_job(tmp_path, notes=notes, tasks=tasks)
  assert [*facts.notes] == notes and {k: [*v] for k, v in facts.tasks.items()} == tasks
  assert [*facts.tasks] == [2, 10]
  record.note(facts.folder, TOKEN, "failed", 2, "137 killed by signal 9")
  last = facts_of(facts.folder).notes[-1]
  assert (last.token, last.what, last.restart) == (TOKEN, "failed", 2)
  assert last.detail == "137 killed by signal 9" and last.where == os.uname().nodename
  assert abs(last.time - time.time()) < 60


def test_damaged_and_cut_off_notes_do_not_count(tmp_path):
  facts = write_job(tmp_path, notes=[event("started", detail="7")])
  path = facts.folder / "launch" / "job.tsv"
  whole = path.read_bytes()
  damaged = [b"", b"\xff", b"a\tt\tstarted\t0\tn1\t", b"5\tt\tstarted\tx\tn1\t"]
  # Without the end of its line it may have been 75.
  damaged.append(b"5\tt\tended\t0\tn1\t7")
  path.write_bytes(b"\n".join(damaged[:3]) + b"\n" + whole + b"\n".join(damaged[3:]))
  facts = facts_of(facts.folder)
  assert [note.what for note in facts.notes] == ["started"]
  # Files beside the tasks' are none of theirs.
  for name in ("x.tsv", "1.tsv.swp", "-1.tsv"):
    (facts.folder / "launch" / "tasks" / name).write_bytes(whole)
  assert facts_of(facts.folder).tasks == {}


def test_own_notes_are_those_of_the_last_submission(tmp_path):
  notes = [event("started", token="old"), event("failed", token="old"), event("started")]
  facts = write_job(tmp_path, notes=notes)
  assert facts.own(facts.notes) == notes[2:]


# job.json


def test_a_folder_without_a_job_is_none(tmp_path):
  assert record.read_facts(tmp_path) is None
  (tmp_path / "a" / "launch").mkdir(parents=True)
  assert record.read_facts(tmp_path / "a") is None


@pytest.mark.parametrize(
  "text, reason",
  [("", "it is no JSON"), ("{}", "format: Field required"), ("[]", "job.json cannot be used")],
)
def test_a_damaged_job(tmp_path, text, reason):
  facts = write_job(tmp_path)
  (facts.folder / "launch" / "job.json").write_text(text)
  with pytest.raises(UserError, match=f"{reason}.*: put the file back, or remove"):
    facts_of(facts.folder)


@pytest.mark.parametrize(
  "name, value", [("format", 2), ("index", -1), ("metric", "f1"), ("cwd", 3)]
)
def test_a_field_of_a_job_that_is_not_valid(tmp_path, name, value):
  with pytest.raises(UserError, match=rf"job.json cannot be used \({name}"):
    write_job(tmp_path, **{name: value})


def test_fields_of_later_versions_are_left_out(tmp_path):
  assert write_job(tmp_path, later=1).job.name == "a"


def planned_job(run, name="a", **overrides):
  planned = Planned(name, "configs/quickstart.py", overrides, local())
  task = Task(name, run.name, run / name, ("python", "-m", "jaxspeed.train"), run)
  config = config_of(overrides)
  made = record.make_job(planned, index=3, task=task, config=config, trees=[{"folder": "/x"}])
  return made, config


def test_a_job_is_read_as_it_was_written(tmp_path):
  made, config = planned_job(tmp_path, **{"epochs": 3.0, "data.mean": (1.0, 2.0, 3.0), "seed": 4})
  folder = tmp_path / "a"
  record.write_job(folder, made, config, ("script.sh", "echo\n"), b"# \xff\n")
  facts = facts_of(folder)
  assert facts.job.index == 3 and facts.job.epochs == 3.0 and facts.job.metric == "top1"
  assert facts.job.overrides == {"epochs": 3.0, "data.mean": [1.0, 2.0, 3.0], "seed": 4}
  assert facts.job.command == ["python", "-m", "jaxspeed.train"] and facts.job.cwd == str(tmp_path)
  assert facts.job.executor == local().to_dict() and facts.job.sources == [{"folder": "/x"}]
  assert facts.requests == facts.notes == () and facts.tasks == {}
  names = {path.name for path in (folder / "launch").iterdir()}
  files = {"job.json", "config.json", "environment.json", "script.sh", "diff.patch"}
  assert names == files | {"tasks", "logs"}
  assert (folder / "launch" / "diff.patch").read_bytes() == b"# \xff\n"
  assert json.loads((folder / "launch" / "config.json").read_text())["epochs"] == 3.0
  with pytest.raises(UserError, match="a cannot be written .*fix that or choose another root"):
    record.write_job(folder, made, config, ("script.sh", ""), b"")
  record.update_job(folder, made, config, ("script.sh", "exit\n"), b"")
  assert (folder / "launch" / "script.sh").read_text() == "exit\n"


def test_a_job_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
  made, config = planned_job(tmp_path)

  def full(path, *_, **__):
    if path.name == "environment.json":
      raise OSError(28, "No space left on device")

  monkeypatch.setattr(record, "write_atomically", full)
  with pytest.raises(UserError, match="a cannot be written .No space left on device.: make room"):
    record.write_job(tmp_path / "a", made, config, ("script.sh", ""), b"")
  assert [*tmp_path.iterdir()] == []
  write_job(tmp_path)
  with pytest.raises(
    UserError, match="a cannot be written .No space left .*and repeat the command"
  ):
    record.update_job(tmp_path / "a", made, config, ("script.sh", ""), b"")


def test_a_folder_that_was_half_written_is_no_job(tmp_path):
  facts = write_job(tmp_path)
  (facts.folder / "launch" / "job.json").unlink()
  (tmp_path / f"{TEMPORARY}0123" / "launch").mkdir(parents=True)
  assert record.read_facts(facts.folder) is None


# Environment


def test_secrets_are_left_out_by_name_and_value():
  secrets = {
    "JAX_API_KEY": "k1", "SLURM_TOKEN": "k2", "PYTHON_PASSWORD": "k3", "TF_SECRET": "k4",
    "SLURM_JWT_AUTH": "k5", "FI_CREDENTIALS": "k6", "TPU_private_x": "k7", "XLA_cookies": "k8",
  }  # fmt: skip
  plain = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--a", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"}
  others = {"HOME": "/root", "AWS_ACCESS_KEY_ID": "k9", "EDITOR": "vi", "JAXON": "1", "MY_JAX": "1"}
  found = sources.environment(secrets | plain | others)
  assert found.items() >= plain.items()
  assert found.keys().isdisjoint(secrets) and found.keys().isdisjoint({*others} - {"JAXON"})
  assert not any(value in str(found) for value in [*secrets.values(), "k9"])
  assert [*found] == sorted(found)


# Sources


def git(folder, *arguments):
  identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
  command = ["git", "-C", str(folder), *identity, *arguments]
  done = subprocess.run(command, check=True, capture_output=True, text=True)
  return done.stdout.strip()


@pytest.fixture
def tree(tmp_path, monkeypatch):
  """A working tree of one committed file."""
  # Neither the user's settings nor a repository above count.
  monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
  monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
  for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
    monkeypatch.delenv(name, raising=False)
  folder = tmp_path / "tree"
  (folder / "part").mkdir(parents=True)
  git(folder, "init", "-q")
  (folder / "part" / "a.py").write_text("one\n")
  git(folder, "add", ".")
  git(folder, "commit", "-qm", "A file")
  return folder.resolve()


def test_a_clean_tree(tree):
  commit = git(tree, "rev-parse", "HEAD")
  found = sources.sources(tree, tree / "part")
  assert found.trees == [{"folder": str(tree), "commit": commit, "changed": False}]
  assert found.diff == b""


def test_changes_and_files_that_are_not_in_git(tree):
  (tree / "part" / "a.py").write_text("two\n")
  (tree / "new.py").write_text("secret content\n")
  (tree / ".gitignore").write_text("ignored\n")
  (tree / "ignored").write_text("x")
  found = sources.sources(tree / "part")
  assert found.trees[0]["changed"] and found.trees[0]["folder"] == str(tree)
  text = found.diff.decode()
  assert text.startswith(f"# changes of {tree} since {found.trees[0]['commit']}\n")
  assert "# not in git: new.py\n" in text and "ignored" not in text.replace(".gitignore", "")
  assert "-one\n+two\n" in text and "secret content" not in text
  # The patch gives the changes back.
  git(tree, "checkout", "-q", "part/a.py")
  (tree.parent / "patch").write_bytes(found.diff)
  git(tree, "apply", str(tree.parent / "patch"))
  assert (tree / "part" / "a.py").read_text() == "two\n"


def test_staged_changes_count_too(tree):
  (tree / "part" / "a.py").write_text("two\n")
  git(tree, "add", ".")
  found = sources.sources(tree)
  assert found.trees[0]["changed"] and b"+two" in found.diff


def test_many_and_large_changes_are_cut_short(tree, monkeypatch):
  monkeypatch.setattr(sources, "_MOST_DIFF", 50)
  (tree / "part" / "a.py").write_text("two\n" * 100)
  for i in range(103):
    (tree / f"{i:03d}").touch()
  text = sources.sources(tree).diff.decode()
  assert text.count("# not in git: ") == 100 and "# and 3 more files that are not in git\n" in text
  assert "+two" not in text and "bytes, too large to store\n" in text


def test_a_repository_without_a_commit(tree):
  bare = tree.parent / "empty"
  bare.mkdir()
  git(bare, "init", "-q")
  (bare / "a.py").touch()
  found = sources.sources(bare, tree)
  assert [(row["commit"] != "", row["changed"]) for row in found.trees] == [
    (False, True),
    (True, False),
  ]
  assert b"# not in git: a.py" in found.diff


def test_folders_outside_of_any_repository(tree, monkeypatch):
  assert sources.sources(tree.parent, pathlib.Path("/nowhere")) == ([], b"")
  monkeypatch.setenv("PATH", str(tree))
  assert sources.sources(tree) == ([], b"")
