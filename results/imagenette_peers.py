"""Trains the peers of configs/imagenette.py:5 for five epochs: imagenette_peers.json.

  python results/imagenette_peers.py torchvision IMAGENETTE
  python results/imagenette_peers.py fastai IMAGENETTE     # needs fastai 2.8

IMAGENETTE has train/CLASS/*.JPEG and val/CLASS/*.JPEG. Each epoch is written when it ends, so that
a run that is stopped keeps those that it had. --every=148 takes each 148th image, as a check.

Sources: radekosmulski/imagenette-LB-entry, "imagenette - 5 epochs.ipynb", the entry with 87.43 %;
and pytorch/vision, references/classification/train.py, with its defaults for ResNet-18.
"""

import argparse
import copy
import functools
import json
import os
import pathlib
import time

import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

EPOCHS, SIDE = 5, 128
SETTINGS = {
  "fastai": "xse_resnext50 (Mish, self-attention, MaxBlurPool) at 128 px, batches of 32, Resize "
  "and flips without a random crop, label smoothing 0.1, ranger (momentum 0.95, 0.99, eps 1e-6), "
  "decay 0.01, flat, then cosine from 8e-3, no normalisation: as in the notebook",
  "torchvision": "ResNet-18 at 128 px, batches of 32, random resized crops of at least 0.08 and "
  "flips, SGD 0.1 * 32 / 256, momentum 0.9, decay 1e-4, a tenth of the rate after each third of "
  "the run (30 of 90 epochs there), evaluation on the centre of 146 px",
}


class MaxBlurPool(nn.Module):
  """Maxima of 3x3 pixels, blurred by 5x5 and halved, as in kornia's MaxBlurPool2d(3) of 2020."""

  def __init__(self):
    super().__init__()
    row = torch.tensor([1.0, 4, 6, 4, 1]) / 16
    self.register_buffer("kernel", torch.outer(row, row)[None, None])

  def forward(self, x):
    channels = x.shape[1]
    x = F.pad(F.max_pool2d(x, 3, 1, 1), [2] * 4, mode="reflect")
    x = F.conv2d(x, self.kernel.expand(channels, 1, 5, 5), groups=channels)
    return F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=False)


def with_blur(module):
  """A module with MaxBlurPool in place of each MaxPool2d."""
  for name, child in module.named_children():
    blurred = MaxBlurPool() if isinstance(child, nn.MaxPool2d) else with_blur(child)
    setattr(module, name, blurred)
  return module


class Record:
  """The epochs of a peer in the JSON file."""

  def __init__(self, path, peer, model):
    self.path, self.peer = path, peer
    with FlopCounterMode(display=False) as counter:
      copy.deepcopy(model)(torch.zeros(2, 3, SIDE, SIDE)).sum().backward()
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    self.found = {
      "settings": SETTINGS[peer],
      "mflop_per_image_and_step": round(counter.get_total_flops() / 2e6),
      "versions": versions,
      "epochs": [],
    }

  def start(self):
    self.begun = time.perf_counter(), time.process_time()

  def trained(self):
    now = time.perf_counter(), time.process_time()
    self.seconds = [round(end - begin, 1) for end, begin in zip(now, self.begun, strict=True)]

  def add(self, train_loss, loss, top1, top5):
    row = {"epoch": len(self.found["epochs"]) + 1, "train_loss": train_loss, "eval_loss": loss}
    row |= {"top1": top1, "top5": top5}
    row |= {"train_seconds": self.seconds[0], "train_cpu_seconds": self.seconds[1]}
    self.found["epochs"].append(row)
    print(self.peer, row, flush=True)
    whole = json.loads(self.path.read_text()) if self.path.exists() else {}
    whole.setdefault("peers", {})[self.peer] = self.found
    new = self.path.with_suffix(".tmp")
    new.write_text(json.dumps(whole, indent=1) + "\n")
    os.replace(new, self.path)


def fastai(data, every, path):
  from fastai import __version__
  from fastai.vision import all as vision
  from fastai.vision.models.xresnet import xse_resnext50

  vision.set_seed(0)
  block = vision.DataBlock(
    blocks=(vision.ImageBlock, vision.CategoryBlock),
    splitter=vision.GrandparentSplitter(valid_name="val"),
    get_items=lambda folder: sorted(vision.get_image_files(folder))[::every],
    get_y=vision.parent_label,
    item_tfms=[vision.Resize(SIDE), vision.FlipItem(0.5)],
  )
  loaders = block.dataloaders(data, path=data, bs=32, num_workers=2)
  model = xse_resnext50(n_out=10, act_cls=vision.Mish, sa=1, sym=0, pool=vision.MaxPool)
  model = with_blur(model)
  record = Record(path, "fastai", model)
  record.found["versions"]["fastai"] = __version__

  class Keep(vision.Callback):
    order = 90  # after the recorder

    def before_train(self):
      record.start()

    def after_train(self):
      record.trained()

    def after_epoch(self):
      record.add(*map(float, self.recorder.values[-1]))

  learner = vision.Learner(
    loaders,
    model,
    opt_func=functools.partial(vision.ranger, mom=0.95, sqr_mom=0.99, eps=1e-6, beta=0),
    metrics=[vision.accuracy, vision.top_k_accuracy],
    loss_func=vision.LabelSmoothingCrossEntropy(),
  )
  with learner.no_bar(), learner.no_logging():
    learner.fit_flat_cos(EPOCHS, 8e-3, wd=1e-2, cbs=[Keep()])


def torchvision_resnet18(data, every, path):
  from torchvision import transforms as t

  torch.manual_seed(0)
  last = [t.ToTensor(), t.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
  crops = t.Compose([t.RandomResizedCrop(SIDE), t.RandomHorizontalFlip(), *last])
  centre = t.Compose([t.Resize(256 * SIDE // 224), t.CenterCrop(SIDE), *last])
  train, evaluation = (
    torch.utils.data.Subset(folder, range(0, len(folder), every))
    for folder in (
      torchvision.datasets.ImageFolder(data / "train", crops),
      torchvision.datasets.ImageFolder(data / "val", centre),
    )
  )
  load = functools.partial(torch.utils.data.DataLoader, batch_size=32, num_workers=2)
  batches = load(train, shuffle=True)
  model = torchvision.models.resnet18(num_classes=10)
  record = Record(path, "torchvision", model)
  optimizer = torch.optim.SGD(model.parameters(), 0.1 * 32 / 256, 0.9, weight_decay=1e-4)
  steps = -(-EPOCHS * len(batches) // 3)
  schedule = torch.optim.lr_scheduler.StepLR(optimizer, steps)
  for _ in range(EPOCHS):
    model.train()
    record.start()
    total = 0.0
    for images, labels in batches:
      loss = F.cross_entropy(model(images), labels)
      optimizer.zero_grad()
      loss.backward()
      optimizer.step()
      schedule.step()
      total += loss.item() * len(labels)
    record.trained()
    model.eval()
    sums = torch.zeros(3)
    with torch.inference_mode():
      for images, labels in load(evaluation):
        logits = model(images)
        hits = logits.topk(5).indices == labels[:, None]
        loss = F.cross_entropy(logits, labels, reduction="sum")
        sums += torch.stack([loss, hits[:, 0].sum(), hits.sum()])
    record.add(total / len(train), *(sums / len(evaluation)).tolist())


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("peer", choices=[*SETTINGS])
  parser.add_argument("data", type=pathlib.Path)
  parser.add_argument("--every", type=int, default=1)
  parser.add_argument("--out", type=pathlib.Path, default="results/imagenette_peers.json")
  given = parser.parse_args()
  torch.set_num_threads(2)
  run = fastai if given.peer == "fastai" else torchvision_resnet18
  run(given.data, given.every, given.out)
