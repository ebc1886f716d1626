"""The seal of a run: proof that this user's own `submit` wrote its run.json.

A run's folder may come from a stranger, and its jobs name programs: the Python, lines of shell, the
recipe. Commands that act (`cancel`, `retry`, `resume`) take only runs with a seal, made with a key
that never leaves the user's home.
"""

import contextlib
import hashlib
import hmac
import os
import pathlib
import secrets
from typing import Any

from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, expanded, read_bytes

_BYTES = 32


def seal_of(content: Any) -> str:
  """The seal of what JSON can hold, as hexadecimal digits.

  Raises:
    UserError: the key cannot be read or created.
  """
  return hmac.new(_key(), dump_json(content, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
  """The user's key, created if it is missing."""
  base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
  path = pathlib.Path(os.path.abspath(expanded(base, "XDG_STATE_HOME"))) / "jaxspeed" / "launch.key"
  try:
    if not path.exists():
      path.parent.mkdir(parents=True, exist_ok=True)
      with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, secrets.token_bytes(_BYTES))
        os.close(descriptor)
    key = read_bytes(path)
  except (OSError, ValueError) as error:
    raise UserError(
      f"{path} cannot be used ({getattr(error, 'strerror', None) or error}): set XDG_STATE_HOME to "
      "a folder of your own."
    ) from None
  if len(key) != _BYTES:
    raise UserError(f"{path} is damaged: remove it, and submit your runs again.")
  return key
