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
recipe raise ValueError('x' * 10_000) => line 38: ValueError: xxx
recipe import not_there_module => line 38: ModuleNotFoundError: No module named 'not_there_module'.
recipe import sys; sys.exit(0) => line 38: SystemExit: 0.
recipe return get_config() => RecursionError: maximum recursion depth
recipe config.epochs = '3' => c.py: config.epochs='3': it must be a number above 0 and up to 100,000.
recipe config.model = dict(name='resnet9', widht=8) => c.py: the config has no field model.widht: did you mean model.width?
recipe config.model = dict(width=8) => c.py: there is no config.model.name: it has no default, so the recipe sets it.
recipe config.model.name = 'vgg' => config.model.name='vgg': choose one of
recipe config.model = dict(name='resnet9', width='8') => config.model.width='8': it must be a whole number from 1 to 1,024.
recipe config.model.activation = 'gelu' => 'gelu': choose one of relu, celu.
recipe config.model = dict(name='airbench', widths=(1, 2)) => it must be a tuple of 3, each a whole number from 1 to 4,096.
recipe config.seed = None => config.seed=None: it must be a whole number from 0 to
recipe config.batch_size = True => config.batch_size=True: it must be a whole
recipe config.epochs = float('inf') => config.epochs=inf: it must be a number above 0 and up to 100,000.
recipe config.seed = 10**5000 => config.seed=a int: it must be a whole number from 0 to
recipe config.optimizer.lr = 0.1 => c.py: the config has no field optimizer.lr: did you mean schedule.peak?
recipe config.data.path = 'a\0b' => config.data.path='a\x00b': it must be text of one line without control characters
recipe return {} => c.py: get_config() returned dict: it must return
recipe from ml_collections import ConfigDict; return ConfigDict() => c.py: there is no config.model: it has no default
file # \xe9\ndef get_config():\n  return 1\n => c.py
file def get_config():\n  return (\n => c.py, line 2: SyntaxError: '(' was never closed.
file  => c.py: AttributeError: module 'recipe_c' has no attribute 'get_config'.
import => No module named 'my_none'
import 1 / 0 => --import=my_mod: ZeroDivisionError: division by zero.
import from jaxspeed.config import registry; registry.model('x')(dict) => --import=my_mod: the model 'x' must be a flax.linen.Module with `classes: int` and `dtype: Any`
import from flax import linen as nn\nfrom jaxspeed.config import registry\n@registry.model('x')\nclass Mine(nn.Module):\n  classes: int => --import=my_mod: the model 'x' must be a flax.linen.Module with `classes: int` and `dtype: Any`, which config.data.classes and config.precision set, and <class 'my_mod.Mine'> is none.
import from flax import linen as nn\nfrom jaxspeed.config import registry\n@registry.model('resnet')\nclass Mine(nn.Module):\n  classes: int\n  dtype: object => --import=my_mod: the name 'resnet' is that of another model already
import from jaxspeed.config import registry; registry.optimizer('sgd')(print) => --import=my_mod: the name 'sgd' is that of another optimizer already
--config.lr=0.1 => the config has no field lr: did you mean schedule.peak?
--config.weight_decay=0.1 => no field weight_decay: did you mean optimizer.weight_decay?
--config.epoch=3 => the config has no field epoch: did you mean epochs?
--config.model.widht=8 => no field model.widht: did you mean model.width?
--config.zebra=3 => the config has no field zebra.
--config.learning-rate=3 => the config has no field learning-rate: did you mean schedule.peak?
--config.image_size=3 => did you mean data.image_size or phases.image_size or eval.image_size?
--config.data=3 => config.data is a group of fields: set config.data.FIELD.
--config.data.mean[0]=3 => the config has no field data.mean[0]: did you mean data.mean?
--config.epochs=many => config.epochs='many': it must be a number above 0 and up to 100,000.
--config.epochs=-1 => config.epochs=-1: it must be a number above 0 and up to 100,000.
--config.epochs=__import__('os').getpid() => config.epochs="__import__('os').getpid()": it must be a number
--config.batch_size=1.5 => config.batch_size=1.5: it must be a whole number from 1 to
--config.stop_at_target=maybe => config.stop_at_target='maybe': it must be True or False.
--config.optimizer.b2=x => config.optimizer.b2='x': it must be a number from 0 and below 1.
--config.epochs => Missing value for flag --config.epochs; see --help for the flags.
--config.name=../x => config.name='../x': it must be a name for a folder, NAME or NAME/VARIANT
--config.name=a\x1b[2J => config.name='a\x1b[2J': it must be a name for a folder
--config.data.image_size=1000000000000 => it must be a whole number from 1 to 8,192.
--config.data.train_images=1000000000000 => it must be a whole number from 1 to 1,000,000,000.
--config.data.train_images=1000000000 => 200,000,000 steps, but a plan has at most 10,000,000
--config.data.feed=strem => config.data.feed='strem': choose one of resident, stream.
--config.data.feed=stream => config.data.mean=() with config.data.feed='stream': it is not computed for a stream
--config.eval.mode=rect => config.eval.mode='rect' with config.data.feed='resident': choose one of center, flip, six, selective.
--config.schedule.peak=1e308 => config.schedule.peak=1e+308: it must be a number above 0
--config.schedule.segments=((0,'x',1,1),) => it must be segments of four numbers
--config.schedule.segments=((0,10,1,1),) => do not scale with the run; set --config.schedule.segments
--config.schedule.segments=((0,10,1,1),(12,20,1,1)) => it must be segments of four numbers
--config.schedule.segments=(0, => config.schedule.segments='(0,': it must be segments of four numbers
--config.optimizer.lars_clip=((1,2),(3,)) => it must be the least and the most trust ratio
--config.average.every=9223372036854775808 => it must be a whole number from 1 to 1,000,000.
--config.eval.resize=1e30 => config.eval.resize=1e+30: it must be a number from 1 to 10.
--config.watchdog_seconds=-1 => =-1: it must be a number from 0 to 1,000,000.
--config.records.loggers=wandb,trackio => it must be a tuple, as (1, 2), each one of tensorboard, wandb, trackio.
--config.phases.image_size=(1,b) => it must be a tuple, as (1, 2), each a whole number from 1 to 8,192.
--config.compiler_options=('x',) => each NAME=VALUE, an option of XLA
--config.data.path=/nowhere => config.data.path: /nowhere does not exist; it names a folder
--config.data.path=~nobody-here/x => config.data.path: ~nobody-here/x begins with a home
--config.runs=1000000000000 => it must be a whole number from 1 to 10,000.
plan cifar10 --config.data.path=s3://bucket/set => config.data.path: s3://bucket/set is an address, and this recipe trains from memory;
prepare resize . s3://bucket/set --sizes=64 => s3://bucket/set is an address: resize takes folders; only shards uploads.
evaluate --config=quickstart --step=3 => --step=3 has no effect beside --config.
predict --config=quickstart --step=3 => --step=3 has no effect beside --config.
plan quickstart --csv --parameters => --parameters=True has no effect beside --csv.
plan quickstart --devices=3 => does not divide over 3 devices
plan quickstart --epochs=3 => --epochs is not a flag (did you mean --config.epochs?); see --help for the flags.
plan quickstart --confi=x => --confi is not a flag (did you mean --config?); see --help for the flags.
plan quickstart epochs=3 => 'epochs=3' is not a flag; see --help for the flags.
plan --config=quickstart cifar10 => 'cifar10' is not a flag
plan => name the recipe to plan, as in: jaxspeed plan quickstart.
plan configs => configs: there is no such recipe or file: choose one of cifar10,
plan quikstart => quikstart: there is no such recipe or file: did you mean quickstart?
plan quickstart: => there is no variant '' of quickstart: leave out the colon.
plan quickstart:x => there is no variant 'x' of quickstart: leave out the colon.
plan cifar10_resnet9:roof => there is no variant 'roof' of cifar10_resnet9: choose one of baseline,
predict run a.png --config.data.mean=() => --config.data.mean changes a recipe: name it with --config=NAME.
plan imagenet_lars:4096 --config.data.path=/nowhere => /nowhere does not exist; it names a folder with
plan imagenet_lars:4096 --config.data.image_size=8192 => config.batch_size=4096 images of 8192 pixels a side take 825 GB per device
plan imagenet18:4 --config.epochs=29 => these do not scale with the run; set --config.schedule.segments
plan imagenette --config.data.image_size=64 => has no effect: each phase has its own: set --config.phases.image_size, or
train => name the recipe to train, as in: jaxspeed train quickstart.
train quickstart --config.batch_size=5000 => config.batch_size=5000 is larger than the training set
train quickstart --workdir=run/config.json => run/config.json cannot be created
train quickstart --config.name= => --workdir=None: name a folder, or set --config.name for runs/NAME.
scaling imagenet18 => 'imagenet18' is not a flag
scaling --config=imagenet_lars:4096 --devices=eight => --devices=eight: give numbers from 1 to 1,000,000
scaling --config=imagenet_lars:4096 --step-ms=inf => flag --step-ms=inf: inf is not a number in the range [0.001, 1000000000.0]
scaling --config=imagenet_lars:4096 --config.data.path=/x => reads no images, it uses config.data.train
evaluate => --workdir is missing: name the folder of a run
evaluate runs/none => runs/none/config.json is missing
evaluate --config=quickstart --config.eval.mode=center,flip => weights come from --config.pretrained
evaluate --config=imagenet_lars:4096 --config.eval.mode=center,mirror => config.eval.mode='mirror': choose one of
evaluate --config=imagenet_lars:4096 --config.pretrained.path=x.safetensors --config.model.name=resnet9 => only a ResNet or a ViT has weights to load
plan finetune --config.pretrained.path=hf://timm => config.pretrained.path=hf://timm: write hf://OWNER/NAME
plan quickstart --config.pretrained.path=x.safetensors => only a ResNet or a ViT has weights to load
evaluate run --config.model.width=32 => --config.model.width: the weights in run belong
evaluate run --config.eval.mode=center,mirror => config.eval.mode='mirror': choose one of center, flip
evaluate run --config.eval.batch_size=0 => config.eval.batch_size=0: it must be a whole number from 1
evaluate run --config.schedule.peak=1 => config.schedule.peak has no effect: evaluate does not use it
evaluate run --config=quickstart => 'run' is not a flag; see --help for the flags.
evaluate --workdir=run --config=quickstart => --workdir=run has no effect beside --config.
predict --workdir=run --config=quickstart a.png => --workdir=run has no effect beside --config.
evaluate run --step=abc => flag --step=abc: it must be the number of a step, from 1, or best; see --help
train quickstart --workdir= => --workdir='': name a folder, or set --config.name
predict a.png => a.png is not a folder of a run: name the run first
predict --workdir=nowhere => name one or more image files
export --format=onnx --out=a.onnx => --workdir is missing: name the folder of a run
recipes --config=imagenet18 => --config is not a flag
recipes imagenet18:4 => imagenet18:4: there is no such recipe or file: did you mean imagenet18?
stored format=1 => is of format 1, and this version of jaxspeed reads 2
stored format=true => is of format True
stored model=... => there is no config.model
stored model=[1] => config.model is a group of fields
stored model={"name":[1]} => config.model.name=(1,): choose one of airbench
stored model={"name":"resnet9","foo":1} => the config has no field model.foo
stored epochs=null => config.epochs=None: it must be a number above 0
stored epochs=NaN => cannot be used (it is no JSON: NaN is no number): restore
stored runs=true => config.runs=True: it must be a whole number from 1 to
stored batch_size=100.0 => config.batch_size=100.0: it must be a whole number
stored data=3 => config.data is a group of fields: set config.data.FIELD.
stored a.b c=1 => the config has no field a.b c.
stored a\u001b[2J\n=1 => the config has no field a\x1b[2J\n.
stored name="\ud800" => config.
stored data={"name":"huggingface:cifar10"} => it must be a name NAME, NAME/CONFIG or NAME/CONFIG:V
stored data={"name":"a/../../x"} => config.data.name='a/../../x': it must be a name
stored data={"image_size":8192} => these are too many pixels to whiten
stored data={"path":"a\u2028b"} => config.data.path='a\u2028b': it must be text
written {} => is of format None, and this version of jaxspeed reads 2
written  => cannot be used (it is no JSON: Expecting value
written [] => cannot be used
stored epochs=99999999999999999999999 => it must be a number above 0 and up to
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
    config = {"format": stored.FORMAT} | stored.to_dict(get_config("quickstart"))
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


def test_a_stored_config_that_is_nested_too_deeply(tmp_path):
  (tmp_path / "config.json").write_text("[" * 100_000)
  for words in (["evaluate", str(tmp_path)], ["predict", f"--workdir={tmp_path}", "a.png"]):
    assert "cannot be used (it is no JSON: maximum recursion depth" in mistake(*words)


def test_fields_in_a_file_of_flags_count(tmp_path):
  (tmp_path / "flags").write_text("--config.epochs=7\n")
  assert "epochs 1-7:" in command("plan", "cifar10", f"--flagfile={tmp_path}/flags").stdout
  (tmp_path / "flags").write_text("--config=cifar10\n--config.eval.mode=none\n")
  assert "config.eval.mode='none': choose" in mistake("evaluate", f"--flagfile={tmp_path}/flags")


def test_a_folder_in_the_place_of_a_config_and_a_name_that_is_too_long(tmp_path):
  (tmp_path / "config.json").mkdir()
  for folder, why in ((tmp_path, "it is no regular file"), (tmp_path / (300 * "a"), "too long")):
    sentence = mistake("predict", f"--workdir={folder}", "a.png")
    assert f"{folder}/config.json cannot be used (" in sentence and why in sentence


def test_a_bug_in_a_recipe_shows_pythons_last_frame(tmp_path, monkeypatch):
  (tmp_path / "c.py").write_text(
    QUICKSTART.replace("  return", "  config.epochs = 1 / 0\n  return")
  )
  monkeypatch.chdir(tmp_path)
  shown = command("plan", "c.py").stderr
  assert shown.startswith("Traceback (most recent") and "\n    config.epochs = 1 / 0\n" in shown
