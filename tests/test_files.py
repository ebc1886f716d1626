"""Files that are whole or not there, under names that nobody can guess; JSON that is checked."""

import dataclasses
import json
import os
import pathlib
import threading
from typing import Annotated

import pytest
from pydantic import Field

from jaxspeed import files
from jaxspeed.errors import UserError

# Written whole


@pytest.mark.parametrize("content", ["héllo\n", b"h\xc3\xa9llo\n", [b"h\xc3\xa9", b"llo\n"]])
@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_replaced_with_the_usual_permissions(content, sync, tmp_path, monkeypatch):
  synced, path, before = [], tmp_path / "a.txt", os.umask(0o027)
  monkeypatch.setattr(os, "fsync", synced.append)
  try:
    path.write_text("old")
    path.chmod(0o600)
    files.write_atomically(path, content, sync=sync)
  finally:
    os.umask(before)
  assert path.read_text(encoding="utf-8") == "héllo\n" and path.stat().st_mode & 0o777 == 0o640
  assert [p.name for p in tmp_path.iterdir()] == ["a.txt"] and len(synced) == sync


def test_only_regular_files_are_replaced(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "replace", lambda *_: pytest.fail("it was replaced"))
  os.mkfifo(tmp_path / "pipe")
  (tmp_path / "link").symlink_to("pipe")
  for path in (tmp_path / "pipe", tmp_path / "link", "/dev/stdout"):
    with pytest.raises(OSError, match="it is no regular file"):
      files.write_atomically(path, "a")
  assert len(list(tmp_path.iterdir())) == 2


def test_a_link_in_the_way_is_not_followed_and_its_name_not_to_be_guessed(tmp_path, monkeypatch):
  seen = set()
  for _ in range(3):
    with files.new_file(tmp_path / "a") as file:
      seen.add(pathlib.Path(file.name).name)
  assert len(seen) == 3 and all(len(name) == len(files.TEMPORARY) + 16 for name in seen)
  (tmp_path / "victim").write_text("precious")
  monkeypatch.setattr(files.secrets, "token_hex", lambda _: "guessed")
  (tmp_path / f"{files.TEMPORARY}guessed").symlink_to("victim")
  with pytest.raises(FileExistsError):
    files.write_atomically(tmp_path / "b", "a")
  assert (tmp_path / "victim").read_text() == "precious" and not (tmp_path / "b").exists()


def test_a_failure_names_the_file_and_leaves_nothing(tmp_path):
  (tmp_path / "folder" / "kept").mkdir(parents=True)

  def broken():
    yield b"half"
    raise OSError(5, "Input/output error", "the source")

  for name, content, named in (
    ("folder", "a", str(tmp_path / "folder")),
    ("none/a", "a", str(tmp_path / "none" / "a")),
    ("b", broken(), "the source"),
  ):
    with pytest.raises(OSError) as error:
      files.write_atomically(tmp_path / name, content)
    assert error.value.filename == named
  assert [p.name for p in tmp_path.iterdir()] == ["folder"]


# Locks


def test_a_lock_has_one_holder(tmp_path):
  first = files.open_locked(tmp_path / "lock")
  assert first is not None and files.open_locked(tmp_path / "lock") is None
  with open(tmp_path / "lock") as other:
    assert not files.try_lock(other.fileno())
  os.close(first)
  second = files.open_locked(tmp_path / "lock")
  assert second is not None
  os.close(second)


def test_the_lock_of_a_file_that_was_removed_meanwhile_is_none(tmp_path, monkeypatch):
  path, tries = tmp_path / "lock", []

  def removed_before(descriptor):
    tries.append(descriptor)
    if len(tries) == 1:
      path.unlink()
    return True

  monkeypatch.setattr(files, "try_lock", removed_before)
  descriptor = files.open_locked(path)
  assert descriptor is not None and len(tries) == 2
  assert os.path.samestat(os.fstat(descriptor), path.stat())
  os.close(descriptor)


# JSON


@dataclasses.dataclass
class Row:
  step: Annotated[int, Field(ge=1)]
  sizes: dict[str, tuple[int, int]]


@dataclasses.dataclass
class Entry:
  rows: list[Row]
  done: bool = False


GOOD = {"rows": [{"step": 1, "sizes": {"b": [1, 2]}}], "more": 1}


def one_row(step=1, sizes=None):
  return {"rows": [{"step": step, "sizes": sizes or {}}]}


@pytest.mark.parametrize(
  "value, words",
  [
    ([], "Input should be an object"),
    ({}, "rows: Field required"),
    (one_row(sizes={"b": [1, "2"]}), "rows.0.sizes.b.1: Input should be a valid integer"),
    (one_row(sizes={"\n\u2028": 3}), "rows.0.sizes.\\n\\u2028: Input should be"),
    (one_row(step=True), "rows.0.step: Input should be a valid int"),
    (one_row(step=0), "rows.0.step: Input should be greater than"),
  ],
)
def test_a_value_of_another_type_is_named(value, words):
  with pytest.raises(ValueError) as error:
    files.parse_json(json.dumps(value), Entry)
  assert str(error.value).startswith(words)


@pytest.mark.parametrize(
  "text, reason",
  [
    ("", "Expecting value: line 1"),
    ("{} {}", "Extra data: line 1"),
    ('{"a": -Infinity}', "-Infinity is no number"),
    ("[" * 100_000, "maximum recursion depth"),
    (b'"\xff"', "'utf-8' codec can't decode byte 0xff"),
    (b"\xff\xfe", "Expecting value: line 1"),
  ],
)
def test_what_is_no_strict_json(text, reason):
  with pytest.raises(ValueError, match=f"^it is no JSON: {reason}"):
    files.parse_json(text)


def test_what_json_may_hold():
  assert files.parse_json(json.dumps(GOOD), Entry) == GOOD
  for value in (float("nan"), [float("inf")], {"a": -float("inf")}):
    with pytest.raises(ValueError):
      files.dump_json(value)


def test_a_file_that_cannot_be_used_is_named_with_what_to_do(tmp_path):
  path = tmp_path / "a.json"
  assert files.read_json(path, Entry, "delete it") is None
  with pytest.raises(FileNotFoundError):
    files.read_bytes(path)
  path.write_bytes(b"{}")
  with pytest.raises(UserError) as error:
    files.read_json(path, Entry, "delete it")
  assert str(error.value) == f"{path} cannot be used (rows: Field required): delete it."


def test_only_regular_files_are_read(tmp_path, monkeypatch):
  (tmp_path / "folder").mkdir()
  os.mkfifo(tmp_path / "pipe")
  (tmp_path / "loop").symlink_to("loop")
  (tmp_path / "large").write_bytes(b"[" + b" " * 100 + b"]")
  monkeypatch.setattr(files, "_MOST_BYTES", 101)
  words = {
    "folder": "it is no regular file",
    "pipe": "it is no regular file",
    "loop": "Too many levels of symbolic links",
    "large": "it has 102 bytes",
  }
  # A reader that waits for a pipe's writer must not take the whole suite with it.
  found: dict[str, str] = {}

  def read_all():
    for name in words:
      try:
        found[name] = files.read_bytes(tmp_path / name)
      except ValueError as error:
        found[name] = str(error)

  thread = threading.Thread(target=read_all, daemon=True)
  thread.start()
  thread.join(20)
  assert found == words
