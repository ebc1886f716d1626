"""Vision transformers against a restatement in torch, in float64."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import ROOT
from exported import shapes_of
from tolerances import assert_equal

from jaxspeed.errors import UserError
from jaxspeed.models.exchange import load_weights, save_weights, sizes_in
from jaxspeed.models.vit import ViT
from jaxspeed.models.vit_weights import VIT

SMALL = dict(classes=5, patch_size=4, width=16, depth=2, heads=4, mlp=24)
TIMM = dict(pool="token", posemb="learned", gelu="erf")


def random_variables(model, seed=0):
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: 0.3 * rng.standard_normal(x.shape), shapes_of(model, 12, 20))


@pytest.mark.equivalence
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("fields", [{}, {"rep_size": 7}, TIMM], ids=["plain", "rep", "timm"])
def test_logits_and_files_are_those_of_torch(fields, tmp_path):
  torch = pytest.importorskip("torch")
  import safetensors.torch
  from torch_vit import logits_of

  model = ViT(**SMALL, **fields, dtype=jnp.float64)
  variables = random_variables(model)
  # Two pixels more than whole patches, which are left out.
  images = np.random.default_rng(1).standard_normal((3, 14, 21, 3))
  logits = jax.jit(functools.partial(model.apply, train=False))(variables, images)
  save_weights(tmp_path / "ours.safetensors", variables, VIT)
  state = safetensors.torch.load_file(tmp_path / "ours.safetensors")
  expected = logits_of(state, torch.tensor(images.transpose(0, 3, 1, 2).copy()), heads=4).numpy()
  assert np.abs(expected).max() > 0.1
  assert_equal(logits, expected)
  template = shapes_of(model, 12, 20, dtype=jnp.float64)
  jax.tree.map(
    np.testing.assert_array_equal,
    load_weights(tmp_path / "ours.safetensors", template, VIT),
    variables,
  )


def test_the_stored_comparison_with_timm_holds():
  stored = json.loads((ROOT / "results" / "vit_timm.json").read_text())
  parameters = sum(x.size for x in jax.tree.leaves(shapes_of(ViT(**TIMM), 224)))
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
    shapes_of(ViT(**SMALL | fields), 12, 20)


def test_learned_positions_are_for_one_size():
  model = ViT(**SMALL, posemb="learned")
  variables = random_variables(model)
  with pytest.raises(UserError, match="the positions are those of 15 tokens, and .* have 20"):
    jax.eval_shape(functools.partial(model.apply, train=False), variables, np.ones((1, 16, 20, 3)))


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
