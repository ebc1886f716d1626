"""A made-up row of an epoch, and a made-up result of a run."""

CONFIG = {"seed": 1, "runs": 1, "target": 0.93, "target_metric": "top1", "phases": [{"rate": 0.5}]}
SECONDS = {
  "train": 2.0,
  "dawn": 1.5,
  "compile": {"cold": 30.0, "cached": None},
  "process": 40.0,
  "to_target": None,
}


def epoch_row(epoch, **fields):
  return {
    "epoch": epoch,
    "step": 10 * epoch,
    "examples": 1000 * epoch,
    "learning_rate": 0.5,
    "image_size": 32,
    "batch_size": 100,
    "world": 4,
    "momentum": 0.875,
    "train_loss": 2.0 / epoch,
    "train_top1": min(0.25 * epoch, 1.0),
    "train_top5": min(0.375 * epoch, 1.0),
    "images_per_second": 5000.0,
    "images_per_second_per_device": 1250.0,
    "step_seconds": 0.25,
    "data_wait": 0.125 * epoch,
    "train_seconds": 0.5 * epoch,
    "dawn_seconds": 0.25 * epoch,
  } | fields


def one_result(top1, **fields):
  return {
    "config": CONFIG,
    "evaluated_on": "test",
    "evaluated_weights": "average",
    "top1": top1,
    "top5": 0.75,
    "seconds": SECONDS,
    "device": "1 x NVIDIA H100 80GB HBM3",
    "versions": {"python": "3.11.2", "jax": "0.10.2"},
    "seed": 1,
    "commit": "0" * 40,
    "command": "python -m jaxspeed.train",
  } | fields
