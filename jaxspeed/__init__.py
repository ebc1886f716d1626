"""jaxspeed: image classifiers to a target accuracy in the least time and money, in JAX."""

__version__ = "0.1.0"
