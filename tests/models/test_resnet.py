"""ResNets and their layers against PyTorch, in float64 where they are equal."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported import computed_by, shapes_of
from tolerances import assert_equal
from toy import drawn

from jaxspeed.models.exchange import load_weights, save_weights, sizes_in
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.models.resnet import STAGES, ResNet
from jaxspeed.models.resnet_weights import RESNET

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
functional = torch.nn.functional

from torch_nets import nchw  # noqa: E402 (it needs torch)
from torch_resnet import random_resnet  # noqa: E402

pytestmark = pytest.mark.equivalence

Net = functools.partial(ResNet, dtype=jnp.float64)


def random(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(
  "fields",
  [
    {"depth": 18, "width": 16},
    {"depth": 18, "width": 8, "whiten": True},
    {"depth": 50, "width": 8, "blurpool": True},
    pytest.param({"depth": 50, "width": 16, "layers": "plain"}, marks=pytest.mark.slow),
    pytest.param({"depth": 18, "width": 64}, marks=pytest.mark.campaign),
    pytest.param({"depth": 18, "width": 16, "blurpool": True}, marks=pytest.mark.campaign),
    pytest.param({"depth": 34, "width": 16}, marks=pytest.mark.campaign),
    pytest.param({"depth": 50, "width": 16}, marks=pytest.mark.slow),
    pytest.param({"depth": 50, "width": 64}, marks=pytest.mark.campaign),
    pytest.param({"depth": 101, "width": 16}, marks=pytest.mark.campaign),
  ],
  ids=lambda fields: "-".join(str(value) for value in fields.values()),
)
def test_logits_statistics_and_gradients_are_torchs(fields, tmp_path):
  model = Net(classes=10, **fields)
  fields = {name: value for name, value in fields.items() if name != "layers"}
  theirs = random_resnet(classes=10, **fields).double()
  images = random(8, *((32, 48) if fields["depth"] == 101 else (64, 80)), 3)
  labels = np.arange(8) % 10

  def as_ours(tensors):
    state = {**theirs.state_dict(), **tensors}
    safetensors_torch.save_file(state, tmp_path / "weights.safetensors")
    return load_weights(
      tmp_path / "weights.safetensors", shapes_of(model, 32, dtype=np.float64), RESNET
    )

  variables = as_ours({})
  save_weights(tmp_path / "ours.safetensors", variables, RESNET)
  decided = {name: getattr(model, name) for name in ("depth", "width", "whiten")}
  assert sizes_in(tmp_path / "ours.safetensors", RESNET, {"width": 0}) == decided
  back = safetensors_torch.load_file(tmp_path / "ours.safetensors")
  for name, value in theirs.state_dict().items():
    assert name.endswith("num_batches_tracked") or torch.equal(back.pop(name), value), name
  assert not back
  ours = computed_by(model, variables, images, labels)
  expected = theirs.eval()(nchw(images)).detach().numpy()
  assert 0.1 < np.abs(expected).max()
  assert_equal(ours["evaluated"], expected)

  logits = theirs.train()(nchw(images))
  loss = functional.cross_entropy(logits, torch.tensor(labels))
  loss.backward()
  assert_equal((ours["logits"], ours["loss"]), (logits.detach().numpy(), loss.detach().numpy()))
  assert_equal(ours["stats"], as_ours({})["batch_stats"])
  gradients = {
    name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in theirs.named_parameters()
  }
  assert_equal(ours["grads"], as_ours(gradients)["params"])


def test_parameters_are_as_many_as_torchvisions_and_have_their_kinds():
  # torchvision.models: weights of IMAGENET1K_V1.
  for depth, convolutions, parameters in (
    (18, 20, 11_689_512),
    (34, 36, 21_797_672),
    (50, 53, 25_557_032),
    (101, 104, 44_549_160),
  ):
    params = shapes_of(ResNet(depth), 32)["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters
    kinds = collections.Counter(jax.tree.leaves(groups_by_name(params)))
    assert kinds["kernel"] == kinds["scale"] == convolutions and kinds["head"] == 1


@pytest.mark.parametrize("head_init, largest", [("normal", np.inf), ("uniform", 512**-0.5)])
def test_initial_values(head_init, largest):
  model, uniform = ResNet(18, zero_init=True, head_init=head_init), 512**-0.5
  kept = ("stage4.block2.conv1.kernel", "stage2.block1.shortcut_conv.kernel", "head.kernel")

  @jax.jit
  def init(key):
    params = model.init(key, jnp.zeros((1, 32, 32, 3), jnp.float32), train=False)["params"]
    leaves = jax.tree_util.tree_leaves_with_path(params)
    named = {".".join(key.key for key in path): leaf for path, leaf in leaves}
    # The compiler drops what is not asked for.
    return {name: x for name, x in named.items() if not name.endswith("kernel") or name in kept}

  # Threefry's programs compile four times as long.
  params = init(jax.random.key(1, impl="rbg"))
  # Kaiming by fan-out, neither uniform nor truncated: variance 2 / (9 * 512).
  kernel, shortcut, head = (params.pop(name) for name in kept)
  np.testing.assert_allclose(np.std(kernel), np.sqrt(2 / (9 * 512)), rtol=0.01)
  assert np.abs(kernel).max() > 3.5 * np.std(kernel)
  np.testing.assert_allclose(np.std(shortcut), np.sqrt(2 / 128), rtol=0.03)
  # The head as Goyal's, or as torch.nn.Linear's: of 512,000 numbers.
  np.testing.assert_allclose(
    np.std(head), 0.01 if head_init == "normal" else uniform / 3**0.5, rtol=0.01
  )
  assert np.abs(head).max() <= largest
  assert 0.98 * uniform < np.abs(params.pop("head.bias")).max() <= uniform
  for name, leaf in params.items():
    np.testing.assert_array_equal(
      leaf, name.endswith("scale") and not name.endswith("norm2.scale"), err_msg=name
    )


def test_ghost_batches_and_momentum_reach_every_norm(monkeypatch):
  monkeypatch.setitem(STAGES, 18, (1, 1, 1, 1))
  fields = {"depth": 18, "classes": 3, "width": 4}
  images = random(8, 32, 32, 3)
  variables = drawn(shapes_of(Net(**fields), 32, dtype=np.float64), np.random.default_rng(1))
  model = Net(**fields, ghost_splits=2, norm_momentum=0.75)
  ours = computed_by(model, variables, images, np.zeros(8, int))
  parts = [
    computed_by(Net(**fields), variables, images[part::2], np.zeros(4, int)) for part in (0, 1)
  ]
  for part, theirs in enumerate(parts):
    assert_equal(ours["logits"][part::2], theirs["logits"])

  def check(stats, old, first, second):
    # The parts' statistics have moved by a tenth to what was measured, these by a quarter.
    assert_equal(stats, old + 0.25 / 0.1 * ((first + second) / 2 - old))

  first, second = (theirs["stats"] for theirs in parts)
  jax.tree.map(check, ours["stats"], variables["batch_stats"], first, second)
