"""Reading a checkpoint without the optimizer that trained it."""

from typing import Any

import jax


def with_optimizers(stored: Any, wanted: Any) -> Any:
  """Sets each opt_state of `wanted` that is None to what is stored, and returns `stored`.

  Args:
    stored: the names, shapes and dtypes in a checkpoint, as nested dicts.
    wanted: the arrays to read, in the same form; changed in place.
  """
  if isinstance(wanted, dict) and isinstance(stored, dict):
    if "opt_state" in wanted and wanted["opt_state"] is None:
      sharding = jax.tree.leaves(wanted)[0].sharding
      wanted["opt_state"] = jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding),
        stored.get("opt_state"),
      )
    for name in wanted.keys() & {"state", "proxy"}:
      with_optimizers(stored.get(name), wanted[name])
  return stored
