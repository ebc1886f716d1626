"""The recipe of `toy_images.toy_stream` for a command: --config=tests/toy_stream_config.py:FOLDER.

FOLDER holds `images`, as `write_folder` makes them, and takes what is cached.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from toy_images import toy_stream  # noqa: E402

TRAIN, HELD_OUT = 160, 24


def get_config(folder):
  config = toy_stream(pathlib.Path(folder) / "images", pathlib.Path(folder))
  config.epochs = 6.0
  config.phases.first_epoch = (0, 3)
  config.data.update(train_images=TRAIN, eval_images=HELD_OUT)
  return config
