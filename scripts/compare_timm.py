"""Compare the logits of timm's vit_small_patch16_224 with ours, from one file of weights.

Needs timm and a torchvision that fits its torch, which jaxspeed does not install. In an environment
with timm, write random weights, images and timm's logits; then, in one with jaxspeed, compare:

    python scripts/compare_timm.py write FOLDER
    python scripts/compare_timm.py compare FOLDER --out=results/vit_timm.json
"""

import argparse
import functools
import importlib
import json
import pathlib

import numpy as np

NAME = "vit_small_patch16_224"
FORM = {"pool": "token", "posemb": "learned", "gelu": "erf"}
# The largest difference of two logits in float32.
MOST = 1e-4


def write(folder: pathlib.Path) -> None:
  """Write weights.safetensors, theirs.npz and about.json; weights are as large as trained ones."""
  timm, torch = (importlib.import_module(name) for name in ("timm", "torch"))
  saving = importlib.import_module("safetensors.torch")
  torch.manual_seed(0)
  model = timm.create_model(NAME, pretrained=False).eval()
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      # timm starts biases and the class token near 0, which would hide a mistake in them.
      spread = 0.05 if parameter.ndim > 1 else 0.2
      middle = 1.0 if "norm" in name and name.endswith("weight") else 0.0
      parameter.copy_(middle + spread * torch.randn(parameter.shape))
    images = torch.randn(4, 3, 224, 224)
    logits = model(images).numpy()
  folder.mkdir(parents=True, exist_ok=True)
  saving.save_file(model.state_dict(), folder / "weights.safetensors")
  np.savez(folder / "theirs.npz", images=images.numpy(), logits=logits)
  torchvision = importlib.import_module("torchvision")
  about = {
    "parameters": sum(p.numel() for p in model.parameters()),
    "versions": {m.__name__: m.__version__ for m in (timm, torch, torchvision)},
  }
  (folder / "about.json").write_text(json.dumps(about))


def compare(folder: pathlib.Path) -> dict:
  """Return what `write` wrote beside the logits of our model with the same weights."""
  import flax
  import jax
  from flax import traverse_util

  from jaxspeed.models.exchange import load_weights
  from jaxspeed.models.vit import ViT
  from jaxspeed.models.vit_weights import VIT
  from jaxspeed.records import provenance

  model = ViT(**FORM)
  theirs, about = np.load(folder / "theirs.npz"), json.loads((folder / "about.json").read_text())
  images = theirs["images"].transpose(0, 2, 3, 1)
  init = functools.partial(model.init, train=False)
  variables = load_weights(
    folder / "weights.safetensors", jax.eval_shape(init, jax.random.key(0), images), VIT
  )
  logits = np.asarray(jax.jit(functools.partial(model.apply, train=False))(variables, images))
  flat = traverse_util.flatten_dict(variables)
  return {
    "model": NAME,
    "fields": FORM,
    "images": len(images),
    "device": provenance.describe_device(),
    "versions": about["versions"] | {m.__name__: m.__version__ for m in (jax, flax, np)},
    "parameters": {"timm": about["parameters"], "jaxspeed": sum(x.size for x in flat.values())},
    "largest_logit": float(np.abs(theirs["logits"]).max()),
    "largest_difference": float(np.abs(logits - theirs["logits"]).max()),
    "most_allowed": MOST,
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument("action", choices=["write", "compare"])
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--out", type=pathlib.Path, help="a JSON file for the comparison")
  flags = parser.parse_args()
  if flags.action == "write":
    write(flags.folder)
    return
  report = compare(flags.folder)
  text = json.dumps(report, indent=2)
  print(text)
  if flags.out:
    flags.out.write_text(text + "\n")
  same = report["parameters"]["timm"] == report["parameters"]["jaxspeed"]
  if not same or report["largest_difference"] > MOST:
    raise SystemExit("the two models differ")


if __name__ == "__main__":
  main()
