"""The loggers that a config names."""

from collections.abc import Callable

from ml_collections import ConfigDict

from jaxspeed.records.loggers import Logger
from jaxspeed.records.tensorboard import TensorBoardLogger
from jaxspeed.records.tracking import TrackioLogger, WandbLogger

LOGGERS: dict[str, Callable[[], Logger]] = {
  "tensorboard": TensorBoardLogger,
  "wandb": WandbLogger,
  "trackio": TrackioLogger,
}


def make_loggers(config: ConfigDict) -> list[Logger]:
  """New loggers: TensorBoard's and those that `config.records.loggers` names; none if it is ().

  `ensure_installed` has found their packages.
  """
  names = config.records.loggers
  return [LOGGERS[name]() for name in dict.fromkeys(("tensorboard", *names))] if names else []
