"""Files that are whole or not there, under names that nobody can guess; JSON that is checked."""

import dataclasses
import errno
import json
import os
import pathlib
import threading
from typing import Annotated

import pytest
from pydantic import Field

from jaxspeed import files
from jaxspeed.errors import UserError, mend
from jaxspeed.files import (
  TEMPORARY,
  dump_json,
  new_file,
  open_locked,
  parse_json,
  read_bytes,
  read_json,
  try_lock,
  write_atomically,
)

# Written whole


def test_text_bytes_and_parts_replace_a_file_and_wait_for_the_disk_if_they_are_to_last(
  tmp_path, monkeypatch
):
  synced = []
  monkeypatch.setattr(os, "fsync", synced.append)
  for content in ("héllo\n", b"h\xc3\xa9llo\n", [b"h\xc3\xa9", b"llo\n"]):
    for sync in (False, True):
      synced.clear()
      (tmp_path / "a.txt").write_text("old")
      write_atomically(tmp_path / "a.txt", content, sync=sync)
      assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "héllo\n"
      assert [p.name for p in tmp_path.iterdir()] == ["a.txt"] and len(synced) == sync


def test_only_regular_files_are_replaced(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "replace", lambda *_: pytest.fail("it was replaced"))
  os.mkfifo(tmp_path / "pipe")
  (tmp_path / "link").symlink_to("pipe")
  for path in (tmp_path / "pipe", tmp_path / "link", "/dev/stdout"):
    with pytest.raises(OSError, match="it is no regular file"):
      write_atomically(path, "a")
  assert len(list(tmp_path.iterdir())) == 2


def test_the_permissions_are_those_of_any_new_file(tmp_path):
  before = os.umask(0o027)
  try:
    write_atomically(tmp_path / "a", "a")
  finally:
    os.umask(before)
  assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_link_in_the_way_is_not_followed_and_its_name_not_to_be_guessed(tmp_path, monkeypatch):
  seen = set()
  for _ in range(3):
    with new_file(tmp_path / "a") as file:
      seen.add(pathlib.Path(file.name).name)
  assert len(seen) == 3 and all(len(name) == len(TEMPORARY) + 16 for name in seen)
  (tmp_path / "victim").write_text("precious")
  monkeypatch.setattr(files.secrets, "token_hex", lambda _: "guessed")
  (tmp_path / f"{TEMPORARY}guessed").symlink_to("victim")
  with pytest.raises(FileExistsError):
    write_atomically(tmp_path / "b", "a")
  assert (tmp_path / "victim").read_text() == "precious" and not (tmp_path / "b").exists()


def test_a_failure_names_the_file_and_leaves_nothing(tmp_path, monkeypatch):
  (tmp_path / "folder").mkdir()
  (tmp_path / "folder" / "kept").touch()
  with pytest.raises(IsADirectoryError) as error:
    write_atomically(tmp_path / "folder", "a")
  assert error.value.filename == str(tmp_path / "folder")
  with pytest.raises(FileNotFoundError) as error:
    write_atomically(tmp_path / "none" / "a", "a")
  assert error.value.filename == str(tmp_path / "none" / "a")

  def broken():
    yield b"half"
    raise OSError(5, "Input/output error", "the source")

  with pytest.raises(OSError) as error:
    write_atomically(tmp_path / "b", broken())
  assert error.value.filename == "the source"
  assert [p.name for p in tmp_path.iterdir()] == ["folder"]


# Locks


def test_a_lock_has_one_holder(tmp_path):
  first = open_locked(tmp_path / "lock")
  assert first is not None and open_locked(tmp_path / "lock") is None
  with open(tmp_path / "lock") as other:
    assert not try_lock(other.fileno())
  os.close(first)
  second = open_locked(tmp_path / "lock")
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
  descriptor = open_locked(path)
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
    parse_json(json.dumps(value), Entry)
  assert str(error.value).startswith(words)


@pytest.mark.parametrize(
  "text, reason",
  [
    ("", "Expecting value: line 1"),
    ("{} {}", "Extra data: line 1"),
    ('{"a": -Infinity}', "-Infinity is no number"),
    ("[" * 100_000, "maximum recursion depth"),
    (b'"\xff"', "'utf-8' codec can't decode byte 0xff"),
  ],
)
def test_what_is_no_strict_json(text, reason):
  with pytest.raises(ValueError, match=f"^it is no JSON: {reason}"):
    parse_json(text)


def test_what_json_may_hold():
  assert parse_json(json.dumps(GOOD), Entry) == GOOD
  for value in (float("nan"), [float("inf")], {"a": -float("inf")}):
    with pytest.raises(ValueError):
      dump_json(value)


def test_a_file_that_cannot_be_used_is_named_with_what_to_do(tmp_path):
  path = tmp_path / "a.json"
  assert read_json(path, Entry, "delete it") is None
  with pytest.raises(FileNotFoundError):
    read_bytes(path)
  for content, reason in (
    (b"{}", "rows: Field required"),
    (b"\xff\xfe", "it is no JSON: Expecting value: line 1 column 1 (char 0)"),
  ):
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
      read_json(path, Entry, "delete it")
    assert str(error.value) == f"{path} cannot be used ({reason}): delete it."


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
        found[name] = read_bytes(tmp_path / name)
      except ValueError as error:
        found[name] = str(error)

  thread = threading.Thread(target=read_all, daemon=True)
  thread.start()
  thread.join(20)
  assert found == words


@pytest.mark.parametrize(
  "code, advice",
  [(errno.EMFILE, "ulimit -n"), (errno.ENOSPC, "make room"), (errno.EACCES, "fix that")],
)
def test_advice_fits_the_error_of_the_disk(code, advice):
  assert advice in mend(OSError(code, os.strerror(code)))
