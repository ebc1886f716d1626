"""Versions of the packages, and whether they are those that jaxspeed asks for."""

import importlib.metadata
import platform
from collections.abc import Iterator

from packaging.requirements import Requirement

from jaxspeed.doctor.findings import Finding, mend
from jaxspeed.records.provenance import versions


def version_of(name: str) -> str:
  """The version of an installed package; "" if it is not installed."""
  try:
    return importlib.metadata.version(name) or ""  # a damaged installation has None
  except importlib.metadata.PackageNotFoundError:
    return ""


def unmet(package: str, extra: str = "") -> Iterator[tuple[Requirement, str]]:
  """What a package requires and is not there, with the version that is; "" if there is none.

  Args:
    package: an installed package; of others nothing is known.
    extra: one of its extras, whose requirements count too.
  """
  try:
    lines = importlib.metadata.requires(package) or []
  except importlib.metadata.PackageNotFoundError:
    return
  for required in map(Requirement, lines):
    there = version_of(required.name)
    wanted = required.marker is None or required.marker.evaluate({"extra": extra})
    if wanted and not (there and required.specifier.contains(there, prereleases=True)):
      yield required, there


def check() -> Iterator[Finding]:
  """Versions, and requirements that are not met."""
  found = versions()
  named = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
  yield Finding(named, facts={"versions": found, "system": platform.platform()})
  for required, there in unmet("jaxspeed"):
    have, asked = there or "missing", f"{required.name}{required.specifier}"
    yield mend(f"{required.name} is {have}; jaxspeed asks for {asked}.", f"pip install '{asked}'")
