"""Mistakes: one sentence that names the field or the file, exit code 2, and nothing is left."""

import json
import pathlib

import pytest
from in_process import command, mistake
from recipes import get_config

import jaxspeed.models.make  # noqa: F401  the families of models
from jaxspeed.config import stored

ROOT = pathlib.Path(__file__).parents[2]
QUICKSTART = (ROOT / "configs" / "quickstart.py").read_text()

# What is typed or written => words of its sentence. The first word says what it is:
#   recipe    a line before the last one, `return config`, of a copy of the quickstart, c.py
#   file      the content of a recipe file c.py
#   import    the content of a module my_mod.py, or its name, for --import
#   stored    a field and its JSON in the config.json of a run; `...` takes the field out
#   written   the content of a config.json
#   others    a command; --config.FIELD belongs to `plan quickstart`
MISTAKES = r"""
recipe config.optimizer.wheight_decay = 0.1 => c.py: the config has no field optimizer.wheight_decay: did you mean optimizer.weight_decay?
recipe config.data.update(clases=10) => c.py: the config has no field data.clases: did you mean data.classes?
recipe config.optimiser.momentum = 0.9 => line 38: AttributeError: '\'optimiser\'\nDid you mean "optimizer" instead
recipe 1 / 0 => c.py, line 38: ZeroDivisionError: division by zero.
recipe raise Exception('a\n\nline\x1b[2J') => line 38: Exception: a line\x1b[2J.
recipe return get_config() => RecursionError: maximum recursion depth
recipe config.epochs = '3' => c.py: config.epochs='3': it must be a number above 0 and up to 100,000.
recipe config.model = dict(width=8) => c.py: there is no config.model.name: it has no default, so the recipe sets it.
recipe config.model = dict(name='resnet9', width='8') => config.model.width='8': it must be a whole number from 1 to 4,096.
recipe config.seed = 10**5000 => config.seed=a int: it must be a whole number from 0 to
recipe config.data.path = 'a\0b' => config.data.path='a\x00b': it must be text of one line without control characters
recipe return {} => c.py: get_config() returned dict: it must return
recipe from ml_collections import ConfigDict; return ConfigDict() => c.py: there is no config.model: it has no default
file # \xe9\ndef get_config():\n  return 1\n => c.py
file def get_config():\n  return (\n => c.py: SyntaxError: '(' was never closed (c.py, line 2).
file  => c.py: AttributeError: module 'recipe_c' has no attribute 'get_config'.
import => No module named 'my_none'
import 1 / 0 => my_mod.py, line 1: ZeroDivisionError: division by zero.
import from jaxspeed.config import registry; registry.model('x')(dict) => my_mod.py, line 1: a model must be a flax.linen.Module with `classes: int` and `dtype: Any`, which config.data.classes and config.precision set, and <class 'dict'> is none.
import from flax import linen as nn\nfrom jaxspeed.config import registry\n@registry.model('resnet')\nclass Mine(nn.Module):\n  classes: int\n  dtype: object => my_mod.py, line 3: the model 'resnet' is jaxspeed's own: choose another name.
import from jaxspeed.config import registry; registry.optimizer('sgd')(print) => my_mod.py, line 1: the optimizer 'sgd' is jaxspeed's own
--config.lr=0.1 => the config has no field lr: did you mean schedule.peak?
--config.epoch=3 => the config has no field epoch: did you mean epochs?
--config.zebra=3 => the config has no field zebra.
--config.learning-rate=3 => the config has no field learning-rate: did you mean schedule.peak?
--config.image_size=3 => did you mean data.image_size or phases.image_size or eval.image_size?
--config.data=3 => config.data is a group of fields: set config.data.FIELD.
--config.data.mean[0]=3 => the config has no field data.mean[0]: did you mean data.mean?
--config.phases.image_size=(96 => ('(96',): it must be a tuple, as (1, 2), each a whole number
--config.=3 => the config has no field
launch status run --config=x => flag --config=x: Overriding config is not allowed; see --help
--config.epochs=many => config.epochs='many': it must be a number above 0 and up to 100,000.
--config.stop_at_target=maybe => config.stop_at_target='maybe': it must be True or False.
--config.epochs => Missing value for flag --config.epochs; see --help for the flags.
--config.name=../x => config.name='../x': it must be a name for a folder, NAME or NAME/VARIANT
--config.data.image_size=1000000000000 => it must be a whole number from 1 to 8,192.
--config.data.train_images=1000000000 => 200,000,000 steps, but a plan has at most 10,000,000
--config.data.feed=strem => config.data.feed='strem': choose one of resident, stream.
--config.data.feed=stream => config.data.mean=() with config.data.feed='stream': it is not computed for a stream
--config.eval.mode=rect => config.eval.mode='rect' with config.data.feed='resident': choose one of center, flip, six, selective.
--config.schedule.peak=1e308 => config.schedule.peak=1e+308: it must be a number above 0
--config.schedule.segments=((0,10,1,1),) => do not scale with the run; set --config.schedule.segments
--config.schedule.segments=((0,10,1,1),(12,20,1,1)) => it must be segments of four numbers
--config.watchdog_seconds=-1 => =-1.0: it must be a number from 0 to 1,000,000,000.
--config.compiler_options=('x',) => each NAME=VALUE, an option of XLA
--config.data.path=/nowhere => config.data.path: /nowhere does not exist; it names a folder
--config.data.path=~nobody-here/x => config.data.path: ~nobody-here/x begins with a home
--config.runs=1000000000000 => it must be a whole number from 1 to 10,000.
plan cifar10 --config.data.path=s3://bucket/set => config.data.path: s3:/bucket/set does not exist; it names a folder or .tar.gz archive
prepare resize . s3://bucket/set --sizes=64 => s3://bucket/set is an address: resize takes folders; only shards uploads.
evaluate --config=quickstart --step=3 => --step=3 has no effect beside --config.
plan quickstart --csv --parameters => --parameters=True has no effect beside --csv.
plan quickstart --devices=3 => does not divide over 3 devices
plan quickstart --epochs=3 => --epochs is not a flag (did you mean --config.epochs?); see --help for the flags.
plan quickstart --confi=x => --confi is not a flag (did you mean --config?); see --help for the flags.
plan quickstart epochs=3 => 'epochs=3' is not a flag; see --help for the flags.
plan => name the recipe, as in: jaxspeed plan quickstart.
plan quikstart => quikstart: there is no such recipe or file: did you mean quickstart?
plan cifar10_resnet9:roof => there is no variant 'roof' of cifar10_resnet9: choose one of baseline,
predict run a.png --config.data.mean=() => --config.data.mean changes a recipe: name it with --config=NAME.
plan imagenet_lars:4096 --config.data.image_size=8192 => config.batch_size=4096 images of 8192 pixels a side take 825 GB per device
train quickstart --config.batch_size=5000 => config.batch_size=5000 is larger than the training set
train quickstart --workdir=run/config.json => run/config.json cannot be created
train quickstart --config.name= => --workdir=None: name a folder, or set --config.name for runs/NAME.
scaling imagenet_lars:4096 --devices=eight => --devices=eight: give numbers from 1 to 1,000,000
scaling --config=imagenet_lars:4096 --step-ms=inf => flag --step-ms=inf: inf is not a number in the range [0.001, 1000000000.0]
scaling --config=imagenet_lars:4096 --config.data.path=/x => reads no images, it uses config.data.train
evaluate => --workdir is missing: name the folder of a run
evaluate runs/none => runs/none/config.json is missing
evaluate --config=quickstart --config.eval.mode=center,flip => weights come from --config.pretrained
evaluate --config=imagenet_lars:4096 --config.pretrained.path=x.safetensors --config.model.name=resnet9 => only a ResNet or a ViT has weights to load
plan finetune --config.pretrained.path=hf://timm => config.pretrained.path=hf://timm: write hf://OWNER/NAME
plan quickstart --config.pretrained.path=x.safetensors => only a ResNet or a ViT has weights to load
evaluate run --config.model.width=32 => --config.model.width: the weights in run belong
evaluate run --config.schedule.peak=1 => config.schedule.peak has no effect: evaluate does not use it
evaluate --workdir=run --config=quickstart => --workdir=run has no effect beside --config.
evaluate run --step=abc => has no checkpoint of step abc; move
predict a.png => a.png is not a folder of a run: name the run first
predict --workdir=nowhere => name one or more image files
--config.cost_per_hour=nan => it must be a number from 0 to
--config.schedule.peak=0 => config.schedule.peak=0.0: it must be a number above 0
plan cifar10_airbench:94_muon --config.optimizer.muon_coefficients=(1,2) => must be a tuple of 3, each
--config.schedule.segments=((1,5,0.1,0.2),) => the first from epoch 0 on and each from
--config.schedule.segments=((0,5,0.1,nan),) => it must be segments of four
--config.schedule.segments=((0,5,1,2),(7,9,2,1),(5,7,2,1)) => it must be segments of four
--config.data.std=(1,) => config.data.std=(1,): it must be three numbers above 0 in units
--config.data.std=(1,0,1) => it must be three numbers above 0
--config.data.last_batch=keep => choose one of drop, carry_over.
--config.schedule.warmup=1 => schedule.warmup=1.0: it must be a number from 0 and below 1.
--config.augment.cutout=8 => cutout=8 with config.data.image_size=8: it must be less than
--config.augment.cutmix=8 => cutmix=8 with config.data.image_size=8: it must be less than
--config.augment.crop_padding=8 => config.data.image_size=8: it must be less than that.
plan quickstart --devices=8 --config.batch_size=24 --config.augment.cutmix=3 --config.augment.cutmix_epochs=1 => cutmix cannot pair: set --config.batch_size to a mul
plan quickstart --devices=8 --config.batch_size=24 --config.augment.mixup=0.2 => 3 images, which config.augment.mix
plan quickstart --devices=8 --config.batch_size=24 --config.augment.cutmix_alpha=0.2 => cutmix_alpha cannot pair
plan quickstart --config.augment.mixup=0.2 --config.augment.cutmix=3 --config.augment.cutmix_epochs=1 => mixup=0.2 with config.augment.cutmix=3: both mix an image with
plan quickstart --config.augment.cutmix_alpha=0.2 --config.augment.cutmix=3 --config.augment.cutmix_epochs=1 => cutmix_alpha=0.2 with config.augment.cutmix=3: both mix
plan quickstart --config.augment.mixup=0.2 --config.proxy.keep=8 => with config.proxy.keep=8: a proxy chooses imag
plan quickstart --config.augment.cutmix_alpha=0.2 --config.proxy.keep=8 => with config.proxy.keep=8: a proxy choose
plan imagenette --config.phases.image_size=(64,96,128) --config.phases.first_epoch=(0,0.5,1.0) => shares of the run, which are below 1
plan imagenette --config.phases.image_size=(64,96,128) --config.phases.first_epoch=(0.2,0.5,0.8) => shares of the run, which are below 1
plan imagenette --config.phases.image_size=(64,96,128) --config.phases.first_epoch=(0,0.8,0.5) => shares of the run, which are below 1
plan imagenette --config.phases.image_size=(64,96,128) --config.phases.first_epoch=(0,0.5,2) => shares of the run, which are below 1
plan imagenette --config.phases.image_size=(64,96,128) --config.phases.first_epoch=(0,1.5,3) => give whole epochs, or shares of the run below 1
plan quickstart --config.epochs=3 --config.schedule.segments=((0,2,0.1,0.5),(2,5,0.5,0.1)) => epochs=3.0 with config.schedule.segments=
plan quickstart --config.epochs=3 --config.optimizer.momentum_segments=((0,2,0.1,0.5),(2,5,0.5,0.1)) => 3.0 with config.optimizer.mom
--config.proxy.keep=101 => config.proxy.keep=101: it must be a multiple of
plan quickstart --devices=4 --config.proxy.keep=50 => config.proxy.keep=50: it must be a multiple of
report none --out=no/r.html => no/r.html cannot be written (No such file or directory)
report . --out= => --out is empty: name the file to write.
report --out=r.html => name the folder of a run
report none --out=r.html => is no folder
report . --watch=0.5 => range [1.0, 86400.0]
train quickstart --workdir=a --profile=9:3 => --profile=9:3: name the first
evaluate --config=imagenet_lars:4096 --config.pretrained.path=x.safetensors => x.safetensors does not exist
evaluate --config=imagenet_lars:4096 --config.pretrained.path=x.safetensors --config.pretrained.head=new => set --config.pretrained.head=keep
evaluate --config=quickstart --config.pretrained.path=x.safetensors => config.data.mean and config.data.std are empty
plan finetune --config.pretrained.path=hf://timm/small/pytorch_model.bin => write hf://OWNER/NAME, or hf://OWNER/NAME@REVISION/FILE with a FILE of .safetensors; pickles are not loaded
export run --out=net => --format is missing
export run --format=onnx => --out is missing
export run --format=pth --out=net => flag --format=pth: value should be one of <onnx|stablehlo|
export run --format=stablehlo --fold --out=net => --fold=True has no effect beside --format=sta
export run --format=stablehlo --out=net => holds no whole checkpoint
plan quickstart --config.data.name=cifar100 --config.data.image_size=8 => config.data.image_size=8, but cifar100 has 32: set --config.data.image_size=32, or the path of a data set of your own.
evaluate run --logits=a.npz --config.eval.mode=center,flip => is for one mode
evaluate run --logits=logits.txt => ends with .npz
evaluate run --logits=none/a.npz => none/a.npz cannot be written (No such
recipes imagenet18:4 => imagenet18:4: there is no such recipe or file: did you mean imagenet18?
stored model=... => there is no config.model
stored model={"name":[1]} => config.model.name=(1,): choose one of airbench
stored model={"name":"resnet9","foo":1} => the config has no field model.foo
stored epochs=NaN => cannot be used (it is no JSON: NaN is no number): restore
stored data=3 => config.data is a group of fields: set config.data.FIELD.
stored a\u001b[2J\n=1 => the config has no field a\x1b[2J\n.
stored name="\ud800" => config.
stored data={"name":"huggingface:cifar10"} => it must be a name NAME, NAME/CONFIG or NAME/CONFIG:V
written {} => config.json: there is no config.model
"""  # noqa: E501


def arguments_of(words, folder):
  """Writes the files of a case, and returns the words of its command."""
  kind, _, rest = words.partition(" ")
  text = rest.encode().decode("unicode_escape")
  if kind == "recipe":
    (folder / "c.py").write_text(
      QUICKSTART.replace("  return config", f"  {rest}\n  return config")
    )
  elif kind == "file":
    (folder / "c.py").write_bytes(text.encode("latin-1"))
  elif kind == "import":
    (folder / "my_mod.py").write_text(text)
    return ["plan", "--config=x.py", f"--import={'my_mod' if text else 'my_none'}"]
  elif kind == "stored":
    field, _, value = text.partition("=")
    config = stored.to_dict(get_config("quickstart"))
    if value == "...":
      del config[field]
    else:
      config[field] = json.loads(rest.partition("=")[2])
      if field == "data" and isinstance(config["data"], dict):
        config["data"] = stored.to_dict(get_config("quickstart"))["data"] | config["data"]
    (folder / "config.json").write_text(json.dumps(config))
  elif kind == "written":
    (folder / "config.json").write_text(rest)
  elif kind.startswith("--"):
    return ["plan", "quickstart", words.encode().decode("unicode_escape")]
  else:
    (folder / "run").mkdir()
    stored.save(get_config("quickstart"), folder / "run" / "config.json")
    return words.split()
  return ["plan", "c.py"] if kind in ("recipe", "file") else ["evaluate", "."]


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines(), ids=lambda line: line[:60])
def test_a_mistake_is_one_sentence(line, module_folder):
  words, _, expected = line.partition(" => ")
  arguments = arguments_of(words, module_folder)
  before = sorted(module_folder.rglob("*"))
  sentence = mistake(*arguments)
  assert expected.format(folder=module_folder) in sentence, sentence
  assert sentence.isprintable() and len(sentence) < 1000
  assert sorted(p for p in module_folder.rglob("*") if "__pycache__" not in str(p)) == before


def test_a_stored_config_that_no_run_wrote(tmp_path):
  (tmp_path / "config.json").write_text("[" * 100_000)
  deep = "cannot be used (it is no JSON: maximum recursion depth"
  assert deep in mistake("evaluate", str(tmp_path))
  (tmp_path / "config.json").unlink()
  (tmp_path / "config.json").mkdir()
  for folder, why in ((tmp_path, "it is no regular file"), (tmp_path / (300 * "a"), "too long")):
    sentence = mistake("predict", f"--workdir={folder}", "a.png")
    assert f"{folder}/config.json cannot be used (" in sentence and why in sentence


def test_fields_in_a_file_of_flags_count(tmp_path):
  (tmp_path / "flags").write_text("--config.epochs=7\n")
  assert "epochs 1-7:" in command("plan", "cifar10", f"--flagfile={tmp_path}/flags").stdout
  (tmp_path / "flags").write_text("--config=cifar10\n--config.eval.mode=none\n")
  assert "config.eval.mode='none': choose" in mistake("evaluate", f"--flagfile={tmp_path}/flags")


def test_a_bug_in_a_recipe_shows_pythons_last_frame(tmp_path, monkeypatch):
  wrong = QUICKSTART.replace("  return", "  config.epochs = 1 / 0\n  return")
  (tmp_path / "c.py").write_text(wrong)
  monkeypatch.chdir(tmp_path)
  shown = command("plan", "c.py").stderr
  assert shown.startswith("Traceback (most recent") and "\n    config.epochs = 1 / 0\n" in shown
