"""Arrays that Python passes, in place of a data set that a config names."""

from jaxspeed.data.memory.arrays import Arrays, hold_out, with_classes


def take_arrays(arrays: Arrays, *, classes: int, follow: bool, tune: bool, share: float) -> Arrays:
  """Check arrays and name their classes; arguments as in `open_arrays`.

  Raises:
    UserError: labels do not count classes from 0, or there are more classes than in the config.
  """
  arrays = with_classes(arrays, classes, "data=", follow)
  return hold_out(arrays, share) if tune else arrays
