"""Vision transformers against NumPy and a restatement of timm's in torch, in float64."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import ROOT
from tolerances import assert_equal

from jaxspeed.errors import UserError
from jaxspeed.models.exchange import load_weights, save_weights, sizes_in
from jaxspeed.models.vit import ViT
from jaxspeed.models.vit_weights import VIT

SMALL = dict(classes=5, patch_size=4, width=16, depth=2, heads=4, mlp=24)
TIMM = dict(pool="token", posemb="learned", gelu="erf")


def shapes_of(model, shape=(1, 12, 20, 3), dtype=jnp.float32):
  images = jax.ShapeDtypeStruct(shape, dtype)
  return jax.eval_shape(functools.partial(model.init, train=False), jax.random.key(0), images)


def random_variables(model, seed=0, shape=(1, 12, 20, 3)):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: 0.3 * rng.standard_normal(x.shape), shapes_of(model, shape))


def numpy_logits(params, images, *, patch, heads, rep=False):
  """The plain baseline of Beyer et al. 2022, written out image by image."""

  def dense(x, p):
    return x @ p["kernel"] + p["bias"]

  def norm(x, p):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]

  def position(row, column, width):
    quarter = width // 4
    omega = [10_000.0 ** (-i / (quarter - 1)) for i in range(quarter)]
    parts = [f(place * w) for place in (column, row) for f in (np.sin, np.cos) for w in omega]
    return np.array(parts)

  def attend(x, p):
    q, k, v = np.split(dense(x, p["qkv"]), 3, axis=-1)
    size, out = x.shape[-1] // heads, []
    for head in range(heads):
      part = slice(head * size, (head + 1) * size)
      scores = np.exp(q[:, part] @ k[:, part].T / np.sqrt(size))
      out.append(scores / scores.sum(-1, keepdims=True) @ v[:, part])
    return dense(np.concatenate(out, -1), p["out"])

  def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

  rows = []
  for image in images:
    tokens = []
    for i in range(image.shape[0] // patch):
      for j in range(image.shape[1] // patch):
        square = image[i * patch : (i + 1) * patch, j * patch : (j + 1) * patch]
        token = dense(square.reshape(-1), params["patch"])
        tokens.append(token + position(i, j, len(token)))
    x = np.stack(tokens)
    for name in sorted(name for name in params if name.startswith("block")):
      p = params[name]
      x = x + attend(norm(x, p["norm1"]), p["attention"])
      x = x + dense(gelu(dense(norm(x, p["norm2"]), p["mlp1"])), p["mlp2"])
    x = norm(x, params["norm"]).mean(0)
    if rep:
      x = np.tanh(dense(x, params["pre_logits"]))
    rows.append(dense(x, params["head"]))
  return np.stack(rows)


@pytest.mark.equivalence
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("rep_size", [0, 7])
def test_the_plain_baseline_is_the_forward_pass_of_numpy(rep_size):
  model = ViT(**SMALL, rep_size=rep_size, dtype=jnp.float64)
  variables = random_variables(model)
  # Two pixels more than whole patches, which are left out.
  images = np.random.default_rng(1).standard_normal((3, 14, 21, 3))
  logits = jax.jit(functools.partial(model.apply, train=False))(variables, images)
  expected = numpy_logits(variables["params"], images, patch=4, heads=4, rep=rep_size > 0)
  assert logits.dtype == np.float64 and np.abs(expected).max() > 0.1
  assert_equal(logits, expected)


@pytest.mark.equivalence
@pytest.mark.usefixtures("float64")
def test_timms_weights_give_timms_logits_and_go_back(tmp_path):
  torch = pytest.importorskip("torch")
  import safetensors.torch
  from torch_vit import logits_of, random_state

  state = random_state(width=16, depth=2, mlp=24, patch=4, tokens=9, classes=5)
  safetensors.torch.save_file(state, tmp_path / "theirs.safetensors")
  model = ViT(**SMALL, **TIMM, dtype=jnp.float64)
  template = shapes_of(model, (1, 12, 12, 3), jnp.float64)
  variables = load_weights(tmp_path / "theirs.safetensors", template, VIT)
  images = np.random.default_rng(1).standard_normal((3, 12, 12, 3))
  logits = jax.jit(functools.partial(model.apply, train=False))(variables, images)
  expected = logits_of(state, torch.tensor(images.transpose(0, 3, 1, 2).copy()), heads=4)
  assert_equal(logits, expected.numpy())
  save_weights(tmp_path / "ours.safetensors", variables, VIT)
  back = safetensors.torch.load_file(tmp_path / "ours.safetensors")
  assert back.keys() == state.keys()
  assert all(torch.equal(back[name], state[name]) for name in state)


def test_the_stored_comparison_with_timm_holds():
  stored = json.loads((ROOT / "results" / "vit_timm.json").read_text())
  parameters = sum(x.size for x in jax.tree.leaves(shapes_of(ViT(**TIMM), (1, 224, 224, 3))))
  assert parameters == stored["parameters"]["timm"] == 22_050_664
  assert stored["largest_difference"] <= stored["most_allowed"] == 1e-4 < stored["largest_logit"]
  assert stored["fields"] == TIMM


def test_the_baseline_begins_with_equal_classes_and_has_no_statistics():
  model = ViT(**SMALL)
  images = np.random.default_rng(0).standard_normal((2, 12, 12, 3)).astype(np.float32)
  variables = jax.jit(functools.partial(model.init, train=False))(jax.random.key(0), images)
  assert set(variables) == {"params"}
  logits = jax.jit(functools.partial(model.apply, train=True))(variables, images)
  np.testing.assert_array_equal(logits, np.zeros((2, 5)))


def test_the_labels_are_by_kind():
  groups = ViT(**SMALL, **TIMM).param_groups(random_variables(ViT(**SMALL, **TIMM))["params"])
  assert groups["class_token"] == groups["positions"] == "embedding"
  assert groups["head"] == {"kernel": "head", "bias": "head_bias"}
  assert groups["block1"]["attention"]["qkv"] == {"kernel": "kernel", "bias": "bias"}
  assert groups["norm"] == {"scale": "scale", "bias": "bias"}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_keeps_masters_and_logits_in_float32(dtype):
  model = ViT(**SMALL, dropout=0.2, dtype=dtype)
  rngs = {"dropout": jax.random.key(1)}
  variables = jax.tree.map(jnp.float32, random_variables(model))
  logits = model.apply(variables, jnp.ones((2, 12, 20, 3), dtype), train=True, rngs=rngs)
  assert logits.dtype == np.float32 and np.isfinite(logits).all()


def test_dropout_is_for_training_only():
  model = ViT(**SMALL, dropout=0.5)
  variables, images = jax.tree.map(jnp.float32, random_variables(model)), jnp.ones((2, 12, 20, 3))
  apply = functools.partial(model.apply, variables, images)
  drawn = [apply(train=True, rngs={"dropout": jax.random.key(i)}) for i in (0, 0, 1)]
  np.testing.assert_array_equal(drawn[0], drawn[1])
  assert not np.allclose(drawn[0], drawn[2])
  np.testing.assert_array_equal(
    apply(train=False), ViT(**SMALL).apply(variables, images, train=True)
  )


@pytest.mark.parametrize(
  "fields, sentence",
  [
    (dict(width=18), "config.model.width=18: it must be a multiple of config.model.heads=4"),
    (dict(patch_size=16), "config.model.patch_size=16: images of 12 x 20 pixels have no whole"),
  ],
)
def test_fields_that_do_not_fit_are_one_sentence(fields, sentence):
  with pytest.raises(UserError, match=sentence):
    shapes_of(ViT(**SMALL | fields))


def test_learned_positions_are_for_one_size():
  model = ViT(**SMALL, posemb="learned")
  variables = random_variables(model)
  with pytest.raises(UserError, match="the positions are those of 15 tokens, and .* have 20"):
    jax.eval_shape(functools.partial(model.apply, train=False), variables, np.ones((1, 16, 20, 3)))


@pytest.mark.parametrize(
  "other, sentence",
  [
    (dict(depth=3), "depth 2, but the config's has depth 3: set config.model.depth=2"),
    (dict(classes=7), "has 5 classes, but the model has 7"),
    (
      dict(width=32),
      "width 16, but .* width 32: set config.model.width=16 or name",
    ),
    (
      dict(pool="token", posemb="learned"),
      "lacks cls_token, pos_embed; it must hold timm's vision",
    ),
  ],
)
def test_weights_of_another_model_are_refused(other, sentence, tmp_path):
  path = tmp_path / "net.safetensors"
  save_weights(path, random_variables(ViT(**SMALL)), VIT)
  with pytest.raises(UserError, match=sentence):
    load_weights(path, shapes_of(ViT(**SMALL | other)), VIT)


def test_a_file_decides_sizes_but_not_the_heads_of_a_model_of_its_width(tmp_path):
  path = tmp_path / "a.safetensors"
  save_weights(path, random_variables(ViT(**SMALL)), VIT)
  sizes = {name: SMALL[name] for name in ("depth", "width", "mlp", "patch_size", "heads")}
  assert sizes_in(path, VIT, sizes | {"depth": 9, "mlp": 9}) == sizes
  # Of another width they are timm's, one for each 64 channels, or what an export says.
  assert sizes_in(path, VIT, sizes | {"width": 192, "heads": 3}) == sizes | {"heads": 1}
  metadata = {"model": json.dumps(sizes | {"heads": 2})}
  save_weights(path, random_variables(ViT(**SMALL)), VIT, metadata=metadata)
  assert sizes_in(path, VIT, sizes)["heads"] == 2
