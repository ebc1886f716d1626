"""The fields of images: the data set, its phases, pretrained weights, augmentation."""

from typing import Annotated, Literal

from pydantic import Field

from jaxspeed.config import kinds
from jaxspeed.config import schema as on
from jaxspeed.config.schema import COMMON, PLACE, PREDICT, SWITCH, Group

STREAM = on.only("data.feed", "stream")
_READ = on.unless("data.synthetic")
_NO_ARRAYS, NO_MODEL = on.not_given("data"), on.not_given("model")
_BY_PHASE = on.by_phase("data.image_size", "image_size")
_COUNTED = on.When(
  lambda c: c["data.synthetic"] or c["command"] != "train",
  "a run counts its images; only a plan and synthetic data take the number from the config",
)
_SPLIT = on.When(
  lambda c: c["data.path"] or c["given.data"] or c["tune_on"] == "validation",
  "this data set has evaluation images of its own; set --config.tune_on=validation too",
)


class Data(Group):
  """The data set."""

  feed: Annotated[kinds.Text, PREDICT] = "resident"
  """resident: the whole data set on every device; stream: images from disk (run.setup.FEEDS)"""
  name: Annotated[kinds.DataSetName, _READ, _NO_ARRAYS, PREDICT] = "cifar10"
  """the `dataset`: cifar10, cifar100, digits, of --import; without data.path. A stream: of TFDS"""
  path: Annotated[kinds.Text, _READ, _NO_ARRAYS, COMMON, PREDICT, PLACE] = ""
  """folder or archive (`data_dir`, `data_path`): TFDS, the official binary files, or images.npy and
  labels.npy; for a stream a folder: train/CLASS/*.jpg and val/CLASS/*.jpg, CLASS/*.jpg, or TFDS; or
  a .csv file with the columns file, label and perhaps split (docs/data.md)"""
  hold_out: Annotated[kinds.PositiveShare, _READ, _SPLIT] = 0.1
  """share of each class held out for evaluation where the data have no split of their own or
  tune_on=validation; chosen by file names or pixels, the same in every run; 1, for evaluate: all
  images are evaluated"""
  copies: Annotated[kinds.Text, _READ, on.only("phases.copies"), PLACE] = ""
  """folder of a stream's resized copies; '': data.path with -sz appended"""
  cache: Annotated[kinds.Text, _READ, _NO_ARRAYS, PLACE] = ""
  """folder of cached uint8 arrays and image sizes; '': ~/.cache/jaxspeed/data"""
  classes: Annotated[int, Field(ge=2, le=1_000_000), COMMON, PREDICT] = 10
  """number of classes; unless it is set, images on disk and your own arrays decide it"""
  image_size: Annotated[kinds.Side, COMMON, PREDICT, _BY_PHASE] = 32
  """side of a training image in pixels (`resolution`); unless set, your own arrays decide it"""
  train_images: Annotated[kinds.Count, _COUNTED] = 50_000
  """number of training images"""
  eval_images: Annotated[kinds.Count, _COUNTED] = 10_000
  """number of evaluation images"""
  mean: Annotated[kinds.Mean, PREDICT] = (125.31, 122.95, 113.87)
  """mean of each channel, 0 ... 255; (): computed from the training images"""
  std: Annotated[kinds.Std, PREDICT] = (62.99, 62.09, 66.70)
  """standard deviation of each channel; (): computed from the training images"""
  last_batch: Literal["drop", "keep", "carry_over"] = "drop"
  """images left after an epoch's last full batch; drop: they are left out; keep: they make a short
  batch (stream only); carry_over: they start the next epoch (resident only)"""
  balance: Annotated[Literal["none", "weights", "sampling"], _READ] = "none"
  """for classes of uneven sizes (`class_weights`); weights: a loss with scikit-learn's "balanced"
  weights, whose sum a batch's mean divides by, as in PyTorch; sampling: an epoch of the same length
  shows every class equally often, by repeating images of the small ones"""
  antialias: Annotated[bool, STREAM, PREDICT] = True
  """resize a stream's images with Pillow's bilinear filter, which widens as it shrinks an image;
  False: interpolate between the nearest pixels, TensorFlow's default"""
  max_broken: Annotated[kinds.Share, STREAM, _READ, PLACE] = 0.01
  """largest share of unreadable images in a split; above 0, one image is always allowed; 0: the
  first one ends the run"""
  read_threads: Annotated[int, Field(ge=1, le=1024), STREAM, _READ, PREDICT, PLACE] = 64
  """number of threads that read a stream's images; many hide a network disk's latency"""
  synthetic: Annotated[bool, STREAM] = False
  """noise in place of a stream's images, to measure the machine without its disk"""


class Phases(Group):
  """The phases of a streamed run, one value per phase; (): all phases use the field in []."""

  first_epoch: Annotated[tuple[kinds.Epochs, ...], PREDICT, SWITCH] = ()
  """first epoch of each phase, from 0; values below 1 are shares of the run; (): one phase"""
  image_size: Annotated[tuple[kinds.Side, ...], PREDICT] = ()
  """[data.image_size]"""
  batch_size: tuple[kinds.Count, ...] = ()
  """[batch_size]"""
  min_scale: tuple[kinds.PositiveShare, ...] = ()
  """[augment.min_scale]"""
  copies: Annotated[tuple[kinds.Pixels, ...], _READ] = ()
  """short side in pixels of the resized copies to read; 0: the original images [0]"""
  eval_mode: Annotated[tuple[kinds.EvalMode, ...], PREDICT] = ()
  """[eval.mode]"""


class Pretrained(Group):
  """Pretrained initial weights, for ResNets and ViTs."""

  path: Annotated[kinds.Text, PREDICT, NO_MODEL, on.unless("continue_from"), SWITCH] = ""
  """the `weights`: a .safetensors file with torchvision's or timm's parameter names,
  hf://OWNER/NAME[@REVISION] for one on the Hugging Face hub, or the folder of a run"""
  head: Annotated[Literal["keep", "new"], PREDICT] = "keep"
  """keep: use the file's last layer; new: initialise it at random, for other classes"""
  freeze: kinds.Text = ""
  """parts that never change (`freeze_layers`): backbone (all but the last layer), or all up to the
  named one, as stem or stage2 of a ResNet, patch or block6 of a ViT; their batch norms use and keep
  their running statistics, as with timm's freeze; '': none"""


class Augment(Group):
  """Augmentation of the training images."""

  crop_padding: kinds.Pixels = 0
  """pixels of reflection padding on each side, before a random `crop`"""
  min_scale: Annotated[
    kinds.PositiveShare, STREAM, on.by_phase("augment.min_scale", "min_scale")
  ] = 0.08
  """smallest share of an image's area in its random crop, for a stream"""
  flip: Literal["none", "random", "alternating"] = "none"
  """random: flip with probability 1/2; alternating: flip every other epoch"""
  cutout: kinds.Pixels = 0
  """side in pixels of the square that is set to the mean; 0: no cutout"""
  brightness: kinds.NotNegative = 0.0
  """largest number added to or subtracted from a normalised image, at random, as in hiverge's
  CIFAR-10 recipe; torchvision's brightness is the first number of color_jitter"""
  contrast: kinds.NotNegative = 0.0
  """largest difference from 1 of the random factor on a normalised image, as in hiverge's recipe;
  torchvision's contrast is the second number of color_jitter"""
  randaugment_layers: Annotated[int, Field(ge=0, le=16)] = 0
  """RandAugment: number of random operations on each image, N in the paper, often 2; 0: off"""
  randaugment_magnitude: Annotated[
    float, Field(ge=0, le=30), on.only("augment.randaugment_layers")
  ] = 10.0
  """strength of RandAugment's operations, M in the paper, as in EfficientNet and big_vision"""
  color_jitter: kinds.ColorRanges = ()
  """ranges of brightness, contrast, saturation and hue, changed in this order before an image is
  normalised, as torchvision.transforms.ColorJitter, e.g. (0.4, 0.4, 0.4, 0.1); (): off"""
  erasing: kinds.Share = 0.0
  """probability of random erasing (`reprob`): a rectangle of 2 to 33 % of the area is set to the
  mean"""
  mixup: kinds.NotNegative = 0.0
  """add a share of another image and its label, of Beta(mixup, mixup) (`mixup_alpha`); 0: do not"""
  cutmix_alpha: kinds.NotNegative = 0.0
  """CutMix with boxes of a random share of the area, of Beta(cutmix_alpha, cutmix_alpha), in all
  steps, 0: off; beside mixup, a batch takes either with probability 1/2"""
  cutmix: Annotated[kinds.Pixels, on.only("augment.cutmix_epochs")] = 0
  """side in pixels of the square pasted from another image of the batch, as in hlb-CIFAR10; 0: no
  such square; for CutMix as in timm and torchvision see cutmix_alpha"""
  cutmix_epochs: Annotated[kinds.Epochs, on.only("augment.cutmix")] = 0.0
  """number of epochs with cutmix squares, at the end of the run"""
  own: kinds.AugmentationName = ""
  """an augmentation that --import registers; it comes after those above, before images are mixed"""
