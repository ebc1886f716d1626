"""Weights on the Hugging Face hub, named `hf://OWNER/NAME`, `hf://OWNER/NAME@REVISION/FILE`.

huggingface_hub downloads them once, into its own cache, and finds them there without a network.
"""

import functools
import pathlib
import re

from jaxspeed.errors import UserError

PREFIX = "hf://"
_FILE = "model.safetensors"
_NAME = re.compile(r"hf://([\w.-]+/[\w.-]+?)(?:@([\w.-]+))?(?:/([\w./-]+\.safetensors))?")


def is_cached(path: str) -> bool:
  """Whether `fetch` needs no download.

  Raises:
    UserError: the name is malformed.
  """
  _parts(path)
  try:
    return bool(fetch(path, download=False))
  except UserError:
    return False


def without_revision(path: str) -> str:
  """The path without its branch, tag or commit; a file's own path stays as it is."""
  found = _NAME.fullmatch(path)
  return f"{PREFIX}{found[1]}/{found[3] or _FILE}" if found else path


def pinned(path: str) -> str:
  """The path with the commit that `fetch` takes now.

  Raises:
    UserError: as `fetch`.
  """
  found, (name, _, file) = fetch(path), _parts(path)
  commit = found.parents[(file or _FILE).count("/")].name  # the cache's snapshots/COMMIT/FILE
  return f"{PREFIX}{name}@{commit}" + (f"/{file}" if file else "")


def _parts(path: str) -> tuple[str, str | None, str | None]:
  if (found := _NAME.fullmatch(path)) is None:
    raise UserError(
      f"config.pretrained.path={path}: write hf://OWNER/NAME, or hf://OWNER/NAME@REVISION/FILE "
      "with a FILE of .safetensors; pickles are not loaded."
    )
  name, revision, file = found.groups()
  return name, revision, file


@functools.cache
def fetch(path: str, *, download: bool = True) -> pathlib.Path:
  """The local file of weights on the hub.

  Args:
    path: `hf://OWNER/NAME`; `@REVISION` behind it names a branch, tag or commit, `/FILE` another
      file than model.safetensors.
    download: whether to download it if the cache lacks it, and to ask for a newer version.

  Raises:
    UserError: the name is malformed, huggingface_hub is missing, or the file cannot be had.
  """
  name, revision, file = _parts(path)
  try:
    import huggingface_hub as hub
    from huggingface_hub import errors
  except ImportError as error:
    raise UserError(
      f"config.pretrained.path={path} needs huggingface_hub: pip install 'jaxspeed[hub]'."
    ) from error
  try:
    return pathlib.Path(
      hub.hf_hub_download(name, file or _FILE, revision=revision, local_files_only=not download)
    )
  except errors.LocalEntryNotFoundError as error:
    why = "the hub cannot be reached, and the cache has no copy: try again with a network"
    raise UserError(f"{path}: {why}.") from error
  except errors.EntryNotFoundError as error:
    why = f"it holds no {file or _FILE}: name its file of weights with /FILE.safetensors behind it"
    raise UserError(f"{path}: {why}; pickles (.bin, .pth) are not loaded.") from error
  except errors.RevisionNotFoundError as error:
    raise UserError(f"{path}: it has no revision {revision}: leave @{revision} out.") from error
  except errors.GatedRepoError as error:
    raise UserError(
      f"{path}: its owner must admit you: ask there, then `hf auth login`."
    ) from error
  except errors.RepositoryNotFoundError as error:
    why = "the hub has no such name, or it is private: check it, or `hf auth login`"
    raise UserError(f"{path}: {why}.") from error
  except Exception as error:  # the library's many ways to lose a connection, and a full disk
    raise UserError(
      f"{path} cannot be downloaded ({error}): run the same command again."
    ) from error
