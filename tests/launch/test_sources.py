"""The state of code and environment that a run stores, once for all of its jobs."""

import os
import pathlib

import pytest
from commands import run

from jaxspeed.launch import sources


def test_secrets_are_left_out_by_name_and_value():
  secrets = {
    "JAX_API_KEY": "k1", "SLURM_TOKEN": "k2", "PYTHON_PASSWORD": "k3", "TPU_private_x": "k7",
  }  # fmt: skip
  plain = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--a", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"}
  others = {"HOME": "/root", "AWS_ACCESS_KEY_ID": "k9", "EDITOR": "vi", "JAXON": "1", "MY_JAX": "1"}
  found = sources.environment(secrets | plain | others)
  assert found.items() >= plain.items()
  assert found.keys().isdisjoint(secrets) and found.keys().isdisjoint({*others} - {"JAXON"})
  assert not any(value in str(found) for value in [*secrets.values(), "k9"])
  assert [*found] == sorted(found)


def git(folder, *arguments):
  identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
  return run("git", *identity, *arguments, cwd=folder).stdout.strip()


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


def test_changes_and_files_that_are_not_in_git(tree):
  commit = git(tree, "rev-parse", "HEAD")
  assert sources.working_trees(tree, tree / "part") == f"# {tree} at {commit}\n".encode()
  (tree / "part" / "a.py").write_text("two\n")
  (tree / "new.py").write_text("secret content\n")
  (tree / ".gitignore").write_text("ignored\n")
  (tree / "ignored").write_text("x")
  text = sources.working_trees(tree / "part").decode()
  assert text.startswith(f"# {tree} at {commit}\n")
  assert "# not in git: new.py\n" in text and "ignored" not in text.replace(".gitignore", "")
  assert "-one\n+two\n" in text and "secret content" not in text


def test_folders_without_a_commit_or_a_repository(tree, monkeypatch):
  bare = tree.parent / "empty"
  bare.mkdir()
  git(bare, "init", "-q")
  text = sources.working_trees(bare, tree).decode()
  assert text.startswith(f"# {bare.resolve()} at no commit\n# {tree} at ")
  assert sources.working_trees(tree.parent, pathlib.Path("/nowhere")) == b""
  monkeypatch.setenv("PATH", str(tree))  # without git
  assert sources.working_trees(tree) == b""


def test_a_state_is_stored_once_and_a_changed_one_beside_it(tree, tmp_path, monkeypatch):
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  run = tmp_path / "run"
  first = sources.store(run, tree)
  assert sources.store(run, tree) == first
  (tree / "part" / "a.py").write_text("two\n")
  second = sources.store(run, tree)
  folder = run / ".launch" / "sources"
  assert {path.name for path in folder.iterdir()} == {f"{first}.patch", f"{second}.patch"}
  text = (folder / f"{second}.patch").read_text()
  assert "+two" in text and '\n# JAX_PLATFORMS="cpu"\n' in text
  # The patch gives the changes back.
  git(tree, "checkout", "-q", "HEAD", "part/a.py")
  git(tree, "apply", str(folder / f"{second}.patch"))
  assert (tree / "part" / "a.py").read_text() == "two\n"
