"""Listings of class folders."""

import collections

import pytest

from jaxspeed.data.formats.folders import list_classes, list_folders
from jaxspeed.errors import UserError


def test_classes_that_only_unicode_tells_apart_are_refused(tmp_path):
  composed, decomposed = "caf\u00e9", "cafe\u0301"
  for name in (composed, decomposed):
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.jpg").touch()
  if len(list(tmp_path.iterdir())) == 1:
    pytest.skip("this file system takes both names for one")
  with pytest.raises(UserError, match=r"look alike, 0: 'cafe.u0301' and 1: 'caf.xe9'"):
    list_classes(tmp_path, collections.Counter())
  for split, name in (("train", composed), ("val", decomposed)):
    (tmp_path / split / name).mkdir(parents=True)
    (tmp_path / split / name / "a.jpg").touch()
  with pytest.raises(UserError, match="two classes that look alike"):
    list_folders(tmp_path)
