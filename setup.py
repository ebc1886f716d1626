"""Puts the recipes and sweeps of configs/ into the wheel, as jaxspeed/configs/."""

import pathlib

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


setup(cmdclass={"build_py": BuildWithRecipes})
