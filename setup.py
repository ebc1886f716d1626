"""Puts the recipes and sweeps of configs/ into the wheel, as jaxspeed/configs/, and README."""

import pathlib
import re

from setuptools import setup
from setuptools.command.build_py import build_py

CONFIGS = pathlib.Path("configs")


class BuildWithRecipes(build_py):
  """Builds the package with its recipes; an editable install reads them from configs/."""

  def run(self):
    super().run()
    if not self.editable_mode:
      for file in sorted(CONFIGS.rglob("*.py")):
        target = pathlib.Path(self.build_lib) / "jaxspeed" / file
        self.mkpath(str(target.parent))
        self.copy_file(str(file), str(target))


# The page of a package is not beside docs/, where README's links lead: only their words are left.
# Once the sources have an address, put it before the links instead.
PAGE = re.sub(r"!?\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", pathlib.Path("README.md").read_text())

setup(
  cmdclass={"build_py": BuildWithRecipes},
  long_description=PAGE,
  long_description_content_type="text/markdown",
)
