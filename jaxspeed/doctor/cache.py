"""The state of the cache of compiled programs; whoever can write there can run code."""

import dataclasses
import functools
import itertools
import os
import pathlib
import shlex
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspeed.doctor.machine import file_system, hidden_owner, is_remote
from jaxspeed.doctor.part import Advice, Part, amount

# Seconds in which files are counted; 10,000 take 0.05 s on a local disk.
_COUNTING = 1.0
# DIR: a folder of the user, on a local disk.
_ELSEWHERE = "export JAXSPEED_COMPILE_CACHE=DIR"
# Paths that a sentence names.
_NAMED = 3


@dataclasses.dataclass(frozen=True)
class Content:
  """The files of a cache.

  Attributes:
    entries: the number of programs.
    size: the bytes of all files.
    counted: whether all were counted in time.
    odd: the number of files that others own, or can change.
    example: one of these; "" without.
  """

  entries: int = 0
  size: int = 0
  counted: bool = True
  odd: int = 0
  example: str = ""


@dataclasses.dataclass(frozen=True)
class CacheFacts:
  """What is known of the cache's folder.

  Attributes:
    path: the folder; links are followed.
    problem: why it cannot be examined; "" if it can.
    exists: whether the folder is there.
    writable: whether this process can write to it, or make it.
    content: its files.
    foreign: the folders on the way to it, and itself, that belong to other users than this one and
      root, and the numbers of these users.
    hidden: those of them whose owner this container does not show.
    loose: the folders on the way to it, and itself, in which others can put or replace files.
    kind: its type of file system.
  """

  path: str
  problem: str = ""
  exists: bool = False
  writable: bool = False
  content: Content = Content()
  foreign: Mapping[str, int] = dataclasses.field(default_factory=dict)
  hidden: tuple[str, ...] = ()
  loose: tuple[str, ...] = ()
  kind: str = ""


def look_at(folder: pathlib.Path, *, mounts: str, seconds: float = _COUNTING) -> CacheFacts:
  """Collects the facts from names, sizes, owners and modes, and tries to write; leaves nothing."""
  try:
    given = folder.expanduser().absolute()
    path = pathlib.Path(os.path.realpath(given))
  except (RuntimeError, OSError, ValueError) as error:
    return CacheFacts(str(folder), problem=f"it names no folder ({error})")
  kind = file_system(path, mounts)
  try:
    way = [each for each in dict.fromkeys((path, *path.parents, *given.parents)) if each.exists()]
    if not way[0].is_dir():
      what = "it" if way[0] == path else str(way[0])
      return CacheFacts(str(path), problem=f"{what} is no folder", exists=path.exists(), kind=kind)
    exists, refused = path.exists(), _refusal(way[0])
    if refused and not exists:
      return CacheFacts(str(path), problem=f"it cannot be made ({refused})", kind=kind)
    facts = CacheFacts(str(path), exists=exists, writable=not refused, kind=kind)
    facts = dataclasses.replace(facts, **_trust(way, path, given))
    return dataclasses.replace(facts, content=_count(path, seconds)) if exists else facts
  except OSError as error:
    reason = error.strerror or str(error)
    return CacheFacts(str(path), problem=reason, exists=True, kind=kind)


def _refusal(folder: pathlib.Path) -> str:
  """Why nothing can be made in a folder; "" if it can. Modes do not tell: root meets /proc too."""
  try:
    os.rmdir(tempfile.mkdtemp(prefix=".jaxspeed-", dir=folder))
  except OSError as error:
    return error.strerror or str(error)
  return ""


def _trust(way: Sequence[pathlib.Path], path: pathlib.Path, given: pathlib.Path) -> dict[str, Any]:
  """`foreign`, `hidden` and `loose` of the facts.

  Args:
    way: the cache, and the folders on the way to it, as far as they exist.
    path: the cache.
    given: the same with links in it.
  """
  statuses = {each: each.stat() for each in way}
  # Who owns a link can let it lead to another folder.
  links = {each: each.lstat() for each in (given, *given.parents) if each.is_symlink()}
  owners = {
    str(each): status.st_uid
    for each, status in (*statuses.items(), *links.items())
    if _is_foreign(status)
  }
  hidden = hidden_owner()
  return {
    "foreign": {each: owner for each, owner in owners.items() if owner != hidden},
    "hidden": tuple(each for each, owner in owners.items() if owner == hidden),
    # In a sticky folder above the cache, others cannot replace what is there; in the cache itself
    # they can put programs.
    "loose": tuple(
      str(each)
      for each, status in statuses.items()
      if _open_to_others(status) and not (each != path and status.st_mode & stat.S_ISVTX)
    ),
  }


def _is_foreign(status: os.stat_result) -> bool:
  """Whether a file belongs to another user than this process's and root."""
  return hasattr(os, "geteuid") and status.st_uid not in (0, os.geteuid())


def _open_to_others(status: os.stat_result) -> bool:
  """Whether a file's mode lets others than root and this user write to it."""
  if not hasattr(os, "geteuid"):  # Windows states no modes of others
    return False
  shared = bool(status.st_mode & stat.S_IWGRP) and not _is_private(status.st_gid, os.geteuid())
  return shared or bool(status.st_mode & stat.S_IWOTH)


@functools.cache
def _is_private(group: int, user: int) -> bool:
  """Whether a group is the user's own or root's: it has the name of one, and no other member.

  Many systems give each user such a group, and let files be written by it (umask 002).
  """
  import grp
  import pwd

  try:
    names = {pwd.getpwuid(each).pw_name for each in (0, user)}
    found = grp.getgrgid(group)
  except KeyError:
    return False
  return found.gr_name in names and names.issuperset(found.gr_mem)


def _count(path: pathlib.Path, seconds: float) -> Content:
  """Counts the files of a cache, with those of its folders, for a time."""
  content, folders = Content(), [str(path)]
  until = time.monotonic() + seconds
  while folders:
    with os.scandir(folders.pop()) as files:
      for file in files:
        if time.monotonic() > until:
          return dataclasses.replace(content, counted=False)
        try:
          status = file.stat(follow_symlinks=False)
          # A link's own mode says nothing.
          odd = _is_foreign(status) or _open_to_others(file.stat())
        except OSError:
          continue  # another process removed it
        is_folder = file.is_dir(follow_symlinks=False)
        if is_folder:
          folders.append(file.path)
        content = Content(
          entries=content.entries + file.name.endswith("-cache"),  # JAX's name of a program
          size=content.size + (0 if is_folder else status.st_size),
          odd=content.odd + odd,
          example=content.example or (file.path if odd else ""),
        )
  return content


def examine(facts: CacheFacts) -> Part:
  """Place, size and entries, whether the cache is trusted, and whether it is local."""
  lines, advice = [], []
  local = "" if not facts.kind else ", on another machine" if is_remote(facts.kind) else ", local"
  disk = f" ({facts.kind}{local})" if facts.kind else ""
  if facts.problem:
    lines.append(f"{facts.path}: {facts.problem}")
    advice.append(Advice(f"No program can be kept: {facts.path}: {facts.problem}.", _ELSEWHERE))
  elif not facts.exists:
    lines.append(f"{facts.path}{disk}: not there yet; the first run makes it")
  else:
    content = facts.content
    more = "" if content.counted else "more than "
    programs = f"{content.entries} program{'s' * (content.entries != 1)}"
    lines.append(f"{facts.path}{disk}: {more}{programs}, {more}{amount(content.size)}")
  if not facts.problem and not facts.writable:
    advice.append(Advice(f"{facts.path} cannot be written: each start compiles.", _ELSEWHERE))
  distrust = _distrust(facts)
  advice += distrust
  if facts.exists and not facts.problem and not distrust:
    lines.append(
      "trusted: it, its files and the folders on the way to it belong to this user or root, and "
      "nobody else can write to them"
    )
  if is_remote(facts.kind):
    advice.append(
      Advice(
        f"The cache is on {facts.kind}: each start reads its programs over the network.",
        'export JAXSPEED_COMPILE_CACHE="/tmp/$USER/jaxspeed-programs"',
        mend=False,
      )
    )
  known = dataclasses.asdict(facts) | {
    "hidden": list(facts.hidden),
    "loose": list(facts.loose),
    "trusted": facts.exists and not facts.problem and not distrust,
    "local": not is_remote(facts.kind) if facts.kind else None,
  }
  return Part("compile cache", lines, known, advice)


def _distrust(facts: CacheFacts) -> list[Advice]:
  """Why programs in the cache are not to be trusted: they are code."""
  found = []
  for path, owner in itertools.islice(facts.foreign.items(), _NAMED):
    what = f"{path} belongs to user {owner}, who can put programs into it that run as you"
    if path != facts.path:
      what = f"{path}, on the way to the cache, belongs to user {owner}, who can replace the cache"
    found.append(Advice(f"{what}: use another.", _ELSEWHERE))
  if facts.hidden:
    what = f"This container does not show who owns {_named(facts.hidden)}."
    found.append(
      Advice(f"{what} Others than root could replace the cache.", _ELSEWHERE, mend=False)
    )
  if facts.loose:
    found.append(
      Advice(
        f"Others can write to {_named(facts.loose)}, so what they put into the cache would run as "
        "you.",
        "chmod go-w " + shlex.join(facts.loose),
      )
    )
  if facts.content.odd:
    files, be = ("file", "is") if facts.content.odd == 1 else ("files", "are")
    found.append(
      Advice(
        f"{facts.content.odd} {files} of the cache {be} of other users, or can be changed by them, "
        f"as {facts.content.example}, and would run as you; the next run makes the cache anew.",
        f"rm -r {shlex.quote(facts.path)}",
      )
    )
  return found


def _named(paths: Sequence[str]) -> str:
  """The first of some paths, for a sentence."""
  more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
  return ", ".join(paths[:_NAMED]) + more
