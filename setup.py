"""Puts the recipes of configs/ into the wheel, as jaxspeed/configs/."""

import pathlib

from setuptools import setup
from setuptools.command.build_py import build_py

CONFIGS = pathlib.Path("configs")


class BuildWithRecipes(build_py):
  """Builds the package with its recipes; an editable install reads them from configs/."""

  def run(self):
    super().run()
    if not self.editable_mode:
      target = pathlib.Path(self.build_lib) / "jaxspeed" / "configs"
      self.mkpath(str(target))
      for file in sorted(CONFIGS.glob("*.py")):
        self.copy_file(str(file), str(target / file.name))


setup(cmdclass={"build_py": BuildWithRecipes})
