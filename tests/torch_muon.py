"""Muon in PyTorch, from KellerJordan/cifar10-airbench and hiverge/cifar10-speedrun."""

import pytest

torch = pytest.importorskip("torch")


def orthogonal(u, coefficients, epsilon=1e-7):
  """The published iteration on one matrix, without stack and padding."""
  a, b, c = coefficients
  x = u / (torch.linalg.norm(u) + epsilon)
  x = x.T if u.shape[0] > u.shape[1] else x
  for _ in range(3):
    gram = x @ x.T
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x.T if u.shape[0] > u.shape[1] else x


class Muon:
  """Muon on filters OHWI, whose matrices have rows of i, h and w, and on kernels [i, o]."""

  def __init__(self, filters, *, momentum, coefficients, epsilon, decay=0.0, nesterov=True):
    self.filters, self.momentum, self.decay = filters, momentum, decay
    self.iteration, self.nesterov = (coefficients, epsilon), nesterov
    self.buffers = [torch.zeros_like(w) for w in filters]

  def step(self, rate, *, renormalize=True):
    with torch.no_grad():
      for w, buffer in zip(self.filters, self.buffers, strict=True):
        buffer.mul_(self.momentum).add_(w.grad)
        update = w.grad + self.momentum * buffer if self.nesterov else buffer
        order = (1, 0) if w.ndim == 2 else (0, 3, 1, 2)
        rows = update.permute(order)
        if renormalize:
          w.mul_(len(rows) ** 0.5 / torch.linalg.norm(w))
        u = orthogonal(rows.reshape(len(rows), -1), *self.iteration).reshape(rows.shape)
        back = (1, 0) if w.ndim == 2 else (0, 2, 3, 1)
        w.sub_(rate * u.permute(back)).mul_(1 - rate * self.decay)
        w.grad = None
