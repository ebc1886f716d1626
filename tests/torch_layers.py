"""Functions of images and parameters beside PyTorch's: their values and their gradients."""

import jax
import numpy as np
import pytest
from tolerances import assert_equal

torch = pytest.importorskip("torch")


def to_torch(x):
  """A leaf that takes a gradient; images are NCHW and kernels OIHW there, NHWC and OHWI here."""
  x = np.asarray(x)
  return torch.tensor((np.moveaxis(x, -1, 1) if x.ndim > 2 else x).copy(), requires_grad=True)


def to_numpy(x):
  x = x.detach().numpy()
  return np.moveaxis(x, 1, -1) if x.ndim > 2 else x


def assert_layer(ours, theirs, *inputs, same=assert_equal):
  """Two functions of arrays have the same values and gradients; `theirs` is called once."""
  their_inputs = [to_torch(x) for x in inputs]
  expected = theirs(*their_inputs)
  found, pull = jax.vjp(ours, *inputs)
  same(found, to_numpy(expected))
  same(ours(*inputs), found)  # where the gradient has code of its own
  grad = np.random.default_rng(1).standard_normal(found.shape)
  expected.backward(to_torch(grad).detach())
  for gradient, x in zip(jax.jit(pull)(grad), their_inputs, strict=True):
    same(gradient, to_numpy(x.grad))
