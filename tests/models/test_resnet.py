"""ResNets and their layers against PyTorch, in float64 where they are equal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_equal

from jaxspeed.models.layers.activations import add_relu, relu
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.models.layers.pool import blur_pool, max_pool_3x3
from jaxspeed.models.make import make_model
from jaxspeed.models.pretrained import load_resnet
from jaxspeed.models.resnet import ResNet

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
functional = torch.nn.functional

from torch_resnet import random_resnet  # noqa: E402 (it needs torch)
from toy import load_recipe  # noqa: E402

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

Net = functools.partial(ResNet, dtype=jnp.float64)


def random(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape)


def to_torch(x):
  """NHWC to a torch NCHW leaf that takes a gradient."""
  return torch.tensor(np.asarray(x).transpose(0, 3, 1, 2).copy()).requires_grad_()


def to_nhwc(x):
  return x.detach().numpy().transpose(0, 2, 3, 1)


def shapes_of(model, size=32):
  images = jax.ShapeDtypeStruct((2, size, size, 3), model.dtype)
  return jax.eval_shape(functools.partial(model.init, train=False), jax.random.key(0), images)


def random_variables(model):
  """Norms at their initial values and kernels of Kaiming's size: fast, where `init` compiles."""
  rng = np.random.default_rng(1)

  def draw(path, leaf):
    if path[-1].key == "kernel":
      fan_out = leaf.size / leaf.shape[-1]
      return (rng.standard_normal(leaf.shape) * np.sqrt(2 / fan_out)).astype(leaf.dtype)
    return np.full(leaf.shape, path[-1].key in ("scale", "var"), leaf.dtype)

  return jax.tree_util.tree_map_with_path(draw, shapes_of(model))


@functools.partial(jax.jit, static_argnums=0)
def logits(model, variables, images):
  return model.apply(variables, images, train=False)


@functools.partial(jax.jit, static_argnums=0)
def train_logits(model, variables, images):
  """Training logits and updated statistics."""
  y, updated = model.apply(variables, images, train=True, mutable=["batch_stats"])
  return y, updated["batch_stats"]


# Half of the seconds that the test takes would be the compiler's.
@functools.partial(
  jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0}
)
def loss_and_all(model, variables, images, labels):
  """Cross entropy and its gradient, training logits, updated statistics."""

  def loss(params):
    y, stats = train_logits(
      model, {"params": params, "batch_stats": variables["batch_stats"]}, images
    )
    rows = jnp.arange(len(labels))
    return -jax.nn.log_softmax(y)[rows, labels].mean(), (y, stats)

  return jax.value_and_grad(loss, has_aux=True)(variables["params"])


@pytest.mark.parametrize(
  "fields",
  [
    {"depth": 18, "width": 16},
    {"depth": 50, "width": 8, "blurpool": True},
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
  model, theirs = Net(classes=10, **fields), random_resnet(classes=10, **fields).double()
  images, labels = (
    random(8, *((32, 48) if fields["depth"] == 101 else (64, 80)), 3),
    np.arange(8) % 10,
  )

  def as_ours(tensors):
    state = {**theirs.state_dict(), **tensors}
    safetensors_torch.save_file(state, tmp_path / "weights.safetensors")
    return load_resnet(tmp_path / "weights.safetensors", shapes_of(model))

  variables = as_ours({})
  ours = logits(model, variables, images)
  expected = theirs.eval()(to_torch(images)).detach().numpy()
  assert 0.1 < np.abs(expected).max()
  assert_equal(ours, expected)

  theirs.train()
  (loss, (y, stats)), grads = loss_and_all(model, variables, images, labels)
  their_y = theirs(to_torch(images))
  their_loss = functional.cross_entropy(their_y, torch.tensor(labels))
  their_loss.backward()
  assert_equal(y, their_y.detach().numpy())
  assert_equal(loss, their_loss.detach().numpy())
  assert_equal(stats, as_ours({})["batch_stats"])
  assert_equal(grads, as_ours({name: p.grad for name, p in theirs.named_parameters()})["params"])


# torchvision.models: weights of IMAGENET1K_V1.
@pytest.mark.parametrize(
  "depth, convolutions, parameters",
  [(18, 20, 11_689_512), (34, 36, 21_797_672), (50, 53, 25_557_032), (101, 104, 44_549_160)],
)
def test_parameters_are_as_many_as_torchvisions_and_have_their_kinds(
  depth, convolutions, parameters
):
  params = shapes_of(ResNet(depth))["params"]
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == parameters
  kinds = jax.tree.leaves(groups_by_name(params))
  assert kinds.count("kernel") == kinds.count("scale") == convolutions
  assert kinds.count("head") == 1
  assert len(kinds) == 3 * convolutions + 2  # a bias with each scale and with the head
  names = {"/".join(k.key for k in p) for p, _ in jax.tree_util.tree_leaves_with_path(params)}
  assert {"stem/conv/kernel", "stage1/block1/conv1/kernel", "stage4/block2/norm2/scale"} <= names


def test_initial_values():
  model = ResNet(18, zero_init=True)
  # Threefry's programs compile four times as long.
  key, images = jax.random.key(1, impl="rbg"), random(1, 32, 32, 3).astype(np.float32)
  params = jax.jit(functools.partial(model.init, train=False))(key, images)["params"]
  # Kaiming by fan-out: variance 2 / (9 * 512).
  kernel = params["stage4"]["block2"]["conv1"]["kernel"]
  np.testing.assert_allclose(np.std(kernel), np.sqrt(2 / (9 * 512)), rtol=0.01)
  assert np.abs(kernel).max() > 3.5 * np.std(kernel)  # neither uniform nor truncated
  kernel = params["stage2"]["block1"]["shortcut_conv"]["kernel"]
  np.testing.assert_allclose(np.std(kernel), np.sqrt(2 / 128), rtol=0.03)
  np.testing.assert_allclose(np.std(params["head"]["kernel"]), 0.01, rtol=0.01)
  assert 0.98 * 512**-0.5 < np.abs(params["head"]["bias"]).max() <= 512**-0.5
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    names = [key.key for key in path]
    if names[-1] == "scale":
      np.testing.assert_array_equal(leaf, 0 if names[-2] == "norm2" else 1)
    if names[-1] == "bias" and names[0] != "head":
      np.testing.assert_array_equal(leaf, 0)


def test_the_head_of_ffcv_begins_as_torchs_linear_layer():
  config = load_recipe("imagenet_ffcv.py", "16")
  config.precision = "float32"
  model = make_model(config).clone(depth=18, classes=1000)
  key, images = jax.random.key(1, impl="rbg"), random(1, 32, 32, 3)
  head = jax.jit(functools.partial(model.init, train=False))(key, images)["params"]["head"]
  theirs = torch.nn.Linear(512, 1000).weight.detach().numpy()
  bound = 512**-0.5
  for kernel in (head["kernel"], theirs):
    assert 0.999 * bound < np.abs(kernel).max() <= bound
    # Of 512,000 uniform numbers; the error of a spread is then below 0.1 %.
    np.testing.assert_allclose(np.std(kernel), bound / 3**0.5, rtol=0.01)
    np.testing.assert_allclose(np.mean(np.abs(kernel)), bound / 2, rtol=0.01)
  assert 0.98 * bound < np.abs(head["bias"]).max() <= bound


def test_ghost_batches_and_momentum_reach_every_norm():
  fields = {"depth": 18, "classes": 3, "width": 4}
  images = random(8, 32, 32, 3)
  variables = random_variables(Net(**fields))
  model = Net(**fields, ghost_splits=2, norm_momentum=0.75)
  y, stats = train_logits(model, variables, images)
  parts = [train_logits(Net(**fields), variables, images[part::2]) for part in (0, 1)]
  for part, (their_y, _) in enumerate(parts):
    assert_equal(y[part::2], their_y)

  def check(stats, old, first, second):
    # The parts' statistics have moved by a tenth to what was measured, these by a quarter.
    assert_equal(stats, old + 0.25 / 0.1 * ((first + second) / 2 - old))

  jax.tree.map(check, stats, variables["batch_stats"], parts[0][1], parts[1][1])


def test_bfloat16_keeps_parameters_statistics_and_logits_in_float32():
  images = random(8, 64, 64, 3).astype(np.float32)
  variables = random_variables(ResNet(18, classes=10, width=16))
  model = ResNet(18, classes=10, width=16, dtype=jnp.bfloat16)
  half = logits(model, variables, images)
  assert half.dtype == jnp.float32
  exact = logits(ResNet(18, classes=10, width=16), variables, images)
  difference = np.abs(half - exact).max() / np.abs(exact).max()
  assert 1e-5 < difference < 0.05  # 8 bits of mantissa
  assert {leaf.dtype for leaf in jax.tree.leaves(shapes_of(model))} == {np.dtype(np.float32)}


SIZES = [(8, 8), (9, 7), (7, 10), (1, 1), (1, 6), (2, 3)]


@pytest.mark.parametrize("size", SIZES)
def test_max_pool_3x3_is_torchs_with_ties_and_odd_sizes(size):
  # Small whole numbers, none above 0 here and there: most windows hold a tie, at borders too.
  x = np.random.default_rng(0).integers(-2, 2, (2, *size, 5)).astype(np.float64)
  y, pull = jax.vjp(max_pool_3x3, x)
  their_x = to_torch(x)
  their_y = functional.max_pool2d(their_x, 3, 2, 1)
  np.testing.assert_array_equal(y, to_nhwc(their_y))
  np.testing.assert_array_equal(max_pool_3x3(x), y)  # which is not the same code
  grad = random(*y.shape)
  their_y.backward(torch.tensor(grad.transpose(0, 3, 1, 2)))
  np.testing.assert_array_equal(jax.jit(pull)(grad)[0], to_nhwc(their_x.grad))


def test_max_pool_3x3_keeps_its_dtype_and_sums_in_float32():
  # All of four windows choose the pixel (1, 1); one by one in bfloat16 256 + 1 is 256.
  x = jnp.zeros((1, 4, 4, 1), jnp.bfloat16).at[0, 1, 1, 0].set(1)
  y, pull = jax.vjp(max_pool_3x3, x)
  (grad,) = pull(jnp.array([256, 1, 1, 1], jnp.bfloat16).reshape(1, 2, 2, 1))
  assert y.dtype == grad.dtype == jnp.bfloat16
  assert float(grad[0, 1, 1, 0]) == float(jnp.bfloat16(259))
  assert jnp.count_nonzero(grad) == 1


def test_max_pool_3x3_passes_nans_on():
  for k in range(9):
    x = random(1, 3, 3, 1).reshape(-1)
    x[k] = np.nan
    x = x.reshape(1, 3, 3, 1)
    assert np.isnan(max_pool_3x3(x)).any()
    assert np.isnan(jax.vjp(max_pool_3x3, x)[0]).any()


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_blur_pool_and_its_gradient_are_torchs(size, strides):
  x = random(2, *size, 3)
  y, pull = jax.vjp(lambda x: blur_pool(x, strides), x)
  line = torch.tensor([1.0, 2.0, 1.0]).double() / 4
  their_x = to_torch(x)
  blur = torch.outer(line, line).expand(3, 1, 3, 3)
  their_y = functional.conv2d(their_x, blur, padding=1, stride=strides, groups=3)
  assert_equal(y, to_nhwc(their_y))
  grad = random(*y.shape, seed=1)
  their_y.backward(torch.tensor(grad.transpose(0, 3, 1, 2)))
  assert_equal(jax.jit(pull)(grad)[0], to_nhwc(their_x.grad))


def test_relu_and_add_relu_have_torchs_gradients():
  x, shortcut, grad = (random(2, 3, 3, 4, seed=seed) for seed in range(3))
  x[0], shortcut[0, 1:] = 0, 0  # sums of 0 among them
  (their_x, their_shortcut) = (torch.tensor(a).requires_grad_() for a in (x, shortcut))
  theirs = torch.relu(their_x + their_shortcut)
  theirs.backward(torch.tensor(grad))
  ours, pull = jax.vjp(add_relu, x, shortcut)
  np.testing.assert_array_equal(ours, theirs.detach())
  for a, b in zip(pull(grad), (their_x.grad, their_shortcut.grad), strict=True):
    np.testing.assert_array_equal(a, b)
  ours, pull = jax.vjp(lambda a: relu(a + shortcut), x)
  np.testing.assert_array_equal(ours, theirs.detach())
  np.testing.assert_array_equal(pull(grad)[0], their_x.grad)
