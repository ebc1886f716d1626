"""Mistakes in recipes, flags and stored configs: one sentence, exit code 2, nothing is left."""

import json
import pathlib

import pytest
from in_process import command, mistake
from toy import load_recipe

import jaxspeed.models.make  # noqa: F401  the families of models
from jaxspeed.config import stored

ROOT = pathlib.Path(__file__).parents[2]
QUICKSTART = f"--config={ROOT / 'configs' / 'quickstart.py'}"


def cases(table):
  """The lines of a table: what is tried, and words of its sentence."""
  return [tuple(line.split(" => ")) for line in table.strip().splitlines()]


def recipe_with(line):
  """The quickstart with a line before its last, `return config`."""
  text = (ROOT / "configs" / "quickstart.py").read_text()
  return text.replace("  return config", f"  {line}\n  return config")


# {n} is the number of the line.
LINES = r"""
config.optimizer.wheight_decay = 0.1 => {n}: the config has no field wheight_decay: did you mean optimizer.weight_decay?
config.data.update(clases=10) => {n}: the config has no field clases: did you mean data.classes?
config.optimiser.momentum = 0.9 => {n}: AttributeError: '\'optimiser\'\nDid you mean "optimizer" instead
raise ImportError('no mod') => {n}: ImportError: no mod.
1 / 0 => {n}: ZeroDivisionError: division by zero.
raise OSError('o') => {n}: OSError: o.
assert not config => {n}: AssertionError.
raise Exception('a\n\nline\x1b[2J') => {n}: Exception: a line
raise ValueError('x' * 10_000) => {n}: ValueError: xxx
foo => {n}: NameError: name 'foo' is not defined.
import not_there_module => {n}: ModuleNotFoundError: No module named 'not_there_module'.
import sys; sys.exit(0) => {n}: SystemExit: 0.
return get_config() => : RecursionError: maximum recursion depth
config.epochs = '3' => {n}: TypeError: Could not override field 'epochs'
config.epochs = True => {n}: TypeError: epochs = True: it must be a number.
config.schedule.peak = False => {n}: TypeError: peak = False: it must be a number.
config.data.path = lambda: 'x' => {n}: TypeError: Could not override field 'path'
del config.eval.batch_size => {n}: AttributeError: 'This ConfigDict is locked
config.model = dict(name='resnet9', widht=8) => c.py: the config has no field model.widht: did you mean model.width?
config.model.zebra = 3 => no field model.zebra; those of resnet9 are name, width,
config.model = dict(width=8) => config.model has no name: the recipe
config.model.name = 'vgg' => config.model.name='vgg': choose one of airb
config.model = dict(name='resnet9', width='8') => config.model.width='8': it must be a whole number from 1 to 1,024.
config.model.activation = 'gelu' => 'gelu': choose one of relu, celu.
config.model = dict(name='airbench', widths=(1, 2)) => it must be a tuple of 3, each a whole number from 1 to 4,096.
config.seed = None => config.seed=None: it must be a whole number from 0 to
config.data.mean = None => config.data.mean=None: it must be three numbers in
config.batch_size = True => config.batch_size=True: it must be a whole
import numpy; config.data.mean = tuple(numpy.arange(3)) => config.data.mean=(np.int64(0), np.int64(1), np.int64(2)): it must be
config.epochs = float('inf') => config.epochs=inf: it must be a number above 0 and up to 100,000.
config.seed = 10**5000 => config.seed=a int: it must be a whole number from 0 to
config.unlock(); config.optimizer.lr = 0.1 => c.py: the config has no field optimizer.lr: did you mean schedule.peak?
config.unlock(); del config.eval => c.py: there is no config.eval: a recipe starts from base()
config.data.path = 'a\0b' => config.data.path='a\x00b': it must be text of one line without control characters
return {} => c.py: get_config() returned dict: it must return
return => c.py: get_config() returned NoneType: it must return the config
from ml_collections import ConfigDict; return ConfigDict() => c.py: there is no config.name, config.seed, config.runs and
"""  # noqa: E501


@pytest.mark.parametrize("line, words", cases(LINES))
def test_a_recipe_with_a_mistake_is_told_with_its_line(line, words, tmp_path, monkeypatch):
  text = recipe_with(line)
  (tmp_path / "c.py").write_text(text)
  monkeypatch.chdir(tmp_path)
  number = text.splitlines().index(f"  {line}") + 1
  *frame, sentence = command("train", "--config=c.py", "--workdir=w").stderr.splitlines()
  assert words.format(n=f"c.py, line {number}") in sentence, sentence
  assert sentence.startswith("jaxspeed: c.py") and len(sentence) < 600 and sentence.isprintable()
  assert all(line.isprintable() for line in frame)
  assert [path.name for path in tmp_path.iterdir()] == ["c.py"]


FILES = [
  (b"# \xe9\ndef get_config():\n  return 1\n", "c.py"),
  (b"def get_config():\n  return (\n", "c.py, line 2: SyntaxError: '(' was never closed."),
  (b"x = '\0'\n", "c.py"),
  (b"", "c.py defines no function get_config() that returns the config."),
  (b"get_config = 3\n", "c.py defines no function get_config()"),
  (b"raise ValueError('v')\n", "c.py, line 1: ValueError: v."),
  (b"import sys\nsys.exit(0)\n", "c.py, line 2: SystemExit: 0."),
  (b"def get_config(v):\n  pass\n", "c.py needs a variant: write c.py:VARIANT."),
]


@pytest.mark.parametrize("content, words", FILES)
def test_a_file_that_is_not_a_recipe(content, words, tmp_path, monkeypatch):
  (tmp_path / "c.py").write_bytes(content)
  monkeypatch.chdir(tmp_path)
  done = command("plan", "--config=c.py")
  assert done.returncode == 2 and words in done.stderr.splitlines()[-1]
  assert [path.name for path in tmp_path.iterdir()] == ["c.py"]


def test_a_bug_in_a_recipe_shows_its_last_frame(tmp_path, monkeypatch):
  (tmp_path / "c.py").write_text(recipe_with("config.epochs = 1 / 0"))
  monkeypatch.chdir(tmp_path)
  shown = command("plan", "--config=c.py").stderr
  assert "\n    config.epochs = 1 / 0\n" in shown and shown.startswith("Traceback (most recent")


def test_a_recipe_is_a_module_while_it_runs_and_read_anew_each_time(tmp_path):
  """A .pyc would be taken for one second after an edit that keeps the length."""
  file = tmp_path / "c.py"
  for epochs in (3, 4):
    own = f"import dataclasses\n@dataclasses.dataclass\nclass Own:\n  epochs: float = {epochs}.0\n"
    body = recipe_with("config.epochs = Own().epochs").partition('"""\n\n')[2]
    file.write_text(f"from __future__ import annotations\n{own}{body}")
    assert command("plan", f"--config={file}").stdout.startswith(f"quickstart: {15 * epochs} steps")


# Arguments of `plan quickstart`.
FLAGS = r"""
--config.lr=0.1 => the config has no field lr: did you mean schedule.peak?
--config.wd=0.1 => no field wd: did you mean optimizer.weight_decay?
--config.weight_decay=0.1 => no field weight_decay: did you mean optimizer.weight_decay?
--config.epoch=3 => the config has no field epoch: did you mean epochs?
--config.schedule.peek=3 => the config has no field schedule.peek: did you mean schedule.peak?
--config.model.widht=8 => no field model.widht: did you mean model.width?
--config.zebra=3 => the config has no field zebra.
--config.=3 => the config has no field .
--config.data=3 => config.data is a group of fields: set config.data.FIELD.
--config.epochs.x=3 => the config has no field epochs.x
--config.data.mean[0]=3 => --config.data.mean[0]: set the whole tuple, as in
--config.epochs=many => config.epochs='many': it must be a number above 0 and up to 100,000.
--config.epochs=nan => config.epochs=nan: it must be a number above 0 and up to 100,000.
--config.epochs=-1 => config.epochs=-1.0: it must be a number above 0 and up to 100,000.
--config.epochs=__import__('os').getpid() => config.epochs="__import__('os').getpid()": it must be a number
--config.batch_size=1.5 => config.batch_size='1.5': it must be a whole number from 1 to
--config.stop_at_target=maybe => config.stop_at_target='maybe': it must be True or False.
--config.optimizer.b2=x => config.optimizer.b2='x': it must be a number from 0 and below 1.
--config.epochs => Missing value for flag --config.epochs; see --help for the flags.
--config.name=../x => config.name='../x': it must be a name for a folder, NAME or NAME/VARIANT
--config.name=a//b => config.name='a//b': it must be a name for a folder
--config.name=a\x1b[2J => config.name='a\x1b[2J': it must be a name for a folder
--config.data.image_size=1000000000000 => it must be a whole number from 1 to 8,192.
--config.data.train_images=1000000000000 => it must be a whole number from 1 to 1,000,000,000.
--config.data.train_images=1000000000 => 200,000,000 steps, but a plan has at most 10,000,000
--config.data.feed=strem => config.data.feed='strem': choose one of resident, stream.
--config.data.feed=stream => config.data.mean=(): it is not computed for a stream
--config.eval.mode=rect => config.eval.mode='rect': choose one of center, flip, six, selective.
--config.seed=2147483648 => config.seed=2147483648: it must be a whole number from 0 to 2,147,483,647.
--config.model.ghost_splits=0 => config.model.ghost_splits=0: it must be a whole number from 1
--config.schedule.peak=1e308 => config.schedule.peak=1e+308: it must be a number above 0
--config.schedule.segments=((0,'x',1,1),) => it must be segments of four numbers
--config.schedule.segments=((0,10,1,1),) => do not scale with the run; set --config.schedule.segments
--config.schedule.segments=((0,10,1,1),(12,20,1,1)) => it must be segments of four numbers
--config.schedule.segments=(0, => the one before, as in '(1, 2)'.
--config.optimizer.momentum_segments=((0,3,.9,.9),) => do not scale with the run
--config.optimizer.lars_clip=((1,2),(3,)) => it must be the least and the most trust ratio
--config.optimizer.muon_coefficients=('a','b','c') => it must be three numbers.
--config.average.every=9223372036854775808 => it must be a whole number from 1 to 1,000,000.
--config.proxy.widths=(-1,2,3) => it must be a tuple of 3, each a whole number from 1 to 4,096.
--config.eval.resize=1e30 => config.eval.resize=1e+30: it must be a number from 1 to 10.
--config.watchdog_seconds=0.001 => =0.001: it must be a number of seconds, 0 or at least 5.
--config.records.loggers=wandb,trackio => each at most once, as in '("a", "b")'.
--config.phases.image_size=(1,b) => from 1 to 8,192, as in '(1, 2)'.
--config.compiler_options=('x',) => it must be a tuple, each NAME=VALUE, an option of XLA
--config.data.path=/nowhere => config.data.path: /nowhere does not exist; it names a folder
--config.data.path=~nobody-here/x => config.data.path: ~nobody-here/x begins with a home
--bandwidth=nan => flag --bandwidth=nan: it must be a number from 0.001 to 1e+06; see --help
--bandwidth=abc => flag --bandwidth=abc: could not convert string to float
--bandwidth=10 => --bandwidth needs --devices=N, 2 or more, and --step-ms=MILLISECONDS.
--latency=3 => --latency=3.0 has no effect without --bandwidth.
--devices=0 => --devices
--devices=3 => does not divide over 3 devices
--csv=maybe => flag --csv=maybe
--out=x.json => --out is not a flag; see --help for the flags.
--epochs=3 => --epochs is not a flag (did you mean --config.epochs?); see --help for the flags.
--confi=x => --confi is not a flag (did you mean --config?); see --help for the flags.
epochs=3 => 'epochs=3' is not a flag; see --help for the flags.
cifar10 => quickstart.py and cifar10 are two recipes: name one of them.
--flagfile=/nowhere => /nowhere
"""  # noqa: E501
LONG = {
  f"--config.data.mean={60_000 * '-'}1": "is nested too deeply",
  f"--config.seed={6000 * '9'}": f"config.seed='{79 * '9'}...: it must be a whole number from 0",
  f"--config.data.path={5000 * 'a'}": "without control characters, at most 4,096 long",
}


@pytest.mark.parametrize("flag, words", [*cases(FLAGS), *LONG.items()], ids=lambda text: text[:60])
def test_a_flag_with_a_mistake(flag, words):
  flag = flag.replace(r"\x1b", "\x1b") if "=" in flag else flag
  assert words in mistake("plan", QUICKSTART, flag)


COMMANDS = r"""
plan => name the recipe to plan, as in: jaxspeed plan quickstart.
train => name the recipe to train, as in: jaxspeed train quickstart.
plan configs => configs: there is no such recipe or file: choose one of cifar10,
plan quikstart => quikstart: there is no such recipe or file: did you mean quickstart?
plan --config configs/absent.py:x => configs/absent.py: there is no such recipe or file.
plan quickstart:x => quickstart has no variants: leave out the colon.
plan cifar10_resnet9:roof => cifar10_resnet9.py has no variant 'roof': write --config=cifar10_resnet9.py:NAME with NAME one of baseline,
plan imagenet_lars: => imagenet_lars.py has no variant '': write
plan --config.epochs=3 => --config.epochs changes a recipe: name it with --config=NAME.
plan quickstart --devices=2 --bandwidth=inf --step-ms=inf => =inf: it must be a number from 0.001 to
plan quickstart --csv --parameters => --parameters=True has no effect beside --csv.
plan imagenet_lars:4096 --config.data.path=/nowhere => /nowhere does not exist; it names a folder with
plan imagenet_lars:4096 --config.data.image_size=8192 => config.batch_size=4096 images of 8192 pixels a side take 825 GB per device
plan imagenet_lars:4096 --config.data.synthetic=True --config.data.train_images=1000000000 => config.data.synthetic=True it must be at most 20,000,000.
train quickstart --config.name= --config.runs=1000000000000 => it must be a whole number from 1 to 10,000.
train quickstart --config.name=.. => it must be a name for a folder
train quickstart --config.model.width=0 => config.model.width=0: it must be a whole number from 1
scaling --config.epochs=3 => changes a recipe
scaling --config=imagenet_lars:4096 --devices=eight => --devices=eight: give numbers from 1 to 1,000,000
scaling --config=imagenet_lars:4096 --devices=3 => does not divide over 3 devices
scaling --config=imagenet_lars:4096 --network=nan => flag --network=nan: it must be a number from 0.001 to
scaling --config=imagenet_lars:4096 --price=-1 => flag --price=-1.0: it must be a number
scaling --config=imagenet_lars:4096 --per-host=abc => flag --per-host=abc: invalid literal
scaling --config=imagenet_lars:4096 --epochs=1000 => --epochs=1000: the run has
scaling --config=imagenet_lars:4096 --config.model.widht=1 => did you mean model.width?
scaling --config=imagenet_lars:4096 --config.data.path=/x => reads no images, it uses config.data.train
evaluate => --workdir is missing: name the folder of a run
evaluate runs/none => runs/none/config.json is missing
evaluate --config=quickstart runs/none => names a recipe and runs/none a run
evaluate --config=imagenet_lars:4096 --config.eval.mode=center,flip => weights come from --config.pretrained
evaluate --config=imagenet_lars:4096 --config.eval.mode=center,mirror => config.eval.mode='mirror': choose one of
evaluate --config=imagenet_lars:4096 --config.pretrained.path=x.safetensors --config.model.name=resnet9 => only a ResNet or a ViT has weights to load
predict a.png => a.png is not a folder of a run: name the run first
predict --workdir=nowhere => name one or more image files
prepare index . --size=8193 => --size=8193: name a short side in pixels, 8,192 at most.
export --format=onnx --out=a.onnx => name the folder of a run
export --workdir=none --format=onnx --out=a.onnx => none/config.json is missing
recipes --config=imagenet18 => --config is not a flag
recipes imagenet18:4 => imagenet18:4 names a variant: write imagenet18
recipes imagenet1 => imagenet1: there is no such recipe or file: did you mean imagenet18?
recipes cifar10 cifar100 => 'cifar100' is one recipe too many
"""  # noqa: E501


@pytest.mark.parametrize("words, sentence", cases(COMMANDS))
def test_a_command_line_with_a_mistake(words, sentence, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  module, *arguments = words.split()
  done = command(module, *arguments)
  assert (done.returncode, done.stdout) == (2, "") and sentence in done.stderr.splitlines()[-1]
  assert done.stderr.splitlines()[-1].startswith("jaxspeed: ") and list(tmp_path.iterdir()) == []


def edited(**changes):
  """The stored quickstart with fields changed; a value of ... takes the field out."""
  config = {"format": stored.FORMAT} | stored.to_dict(load_recipe("quickstart.py"))
  for name, value in changes.items():
    *groups, key = name.split("__")
    group = config
    for each in groups:
      group = group[each]
    group[key] = value
    if value is ...:
      del group[key]
  return json.dumps(config)


CONFIGS = [
  ("{}", "is of format None, and this version of jaxspeed reads 2"),
  (edited(format=1, new=1), "is of format 1, and this version of jaxspeed reads 2"),
  (edited(format=True), "is of format True"),
  ("", "cannot be read as a config (it is no JSON: Expecting value"),
  ("[]", "holds no config: expected a JSON object."),
  ("[" * 100_000, "cannot be read as a config (it is nested too deeply)."),
  ('"' + "x" * 1_000_001, "cannot be read as a config (it is no JSON: Unterminated"),
  ('{"epochs": ' + "9" * 5000 + "}", "99999 is too large a number)."),
  (edited(model=...), "config.model has no name"),
  (edited(epochs=None), "config.epochs=None: it must be a number above 0"),
  (edited(epochs=float("nan")), "cannot be read as a config (NaN is no number of JSON)."),
  (edited(runs=True), "config.runs=True: it must be a whole number from 1 to"),
  (edited(batch_size=100.0), "config.batch_size=100.0: it must be a whole number"),
  (edited(model__width="16"), "config.model.width='16': it must be a whole number"),
  (edited(model__foo=1), "the config has no field model.foo; those of resnet9 are"),
  (edited(model=[1]), "config.model=(1,): it must be a"),
  (edited(model__name=[1]), "config.model.name=(1,): choose one of airbench"),
  (edited(data=3), "config.data=3: it must be a group of fields."),
  (edited(**{"a.b c": 1}), "the config has no field a.b c."),
  (edited(**{"a\x1b[2J\n": 1}), "the config has no field a\\x1b[2J\\n."),
  ('{"name": "\\ud800"}', "config."),
  (
    edited(data__name="huggingface:cifar10"),
    "it must be a name NAME, NAME/CONFIG or NAME/CONFIG:V",
  ),
  (edited(data__name="/etc/x"), "config.data.name='/etc/x': it must be a name"),
  (edited(data__name="a/../../x"), "config.data.name='a/../../x': it must be a name"),
  (edited(data__image_size=8192), "of this size have too many pixels to whiten"),
  (edited(data__path="a\u2028b"), "config.data.path='a\\u2028b': it must be text"),
]


@pytest.mark.parametrize("place", range(len(CONFIGS)))
@pytest.mark.parametrize("module", ["evaluate", "predict"])
def test_a_stored_config_with_a_mistake(place, module, tmp_path):
  content, words = CONFIGS[place]
  (tmp_path / "config.json").write_text(content)
  sentence = mistake(module, f"--workdir={tmp_path}", *(["a.png"] if module == "predict" else []))
  assert words in sentence and sentence.isprintable() and len(sentence) < 500
  assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_in_the_place_of_a_config_and_a_name_that_is_too_long(tmp_path):
  (tmp_path / "config.json").mkdir()
  assert "config.json is not a file" in mistake("evaluate", f"--workdir={tmp_path}")
  folder = tmp_path / (300 * "a")
  sentence = mistake("predict", f"--workdir={folder}", "a.png")
  assert sentence == f"{folder}/config.json cannot be read as a config (File name too long)."


@pytest.mark.parametrize(
  "arguments, words",
  [
    (["--config.model.width=32"], "--config.model.width: the weights in"),
    (["--config.eval.mode=center,mirror"], "config.eval.mode='mirror': choose one of center, flip"),
    (["--config.eval.batch_size=0"], "config.eval.batch_size=0: it must be a whole number from 1"),
    (["--config.lr=0"], "the config has no field lr: did you mean schedule.peak?"),
    (["--config.schedule.peak=1"], "config.schedule.peak has no effect: evaluate does not use it"),
    ([QUICKSTART], "names a recipe and --workdir="),
  ],
)
def test_an_evaluation_of_a_run_with_a_mistake(arguments, words, tmp_path):
  stored.save(load_recipe("quickstart.py"), tmp_path / "config.json")
  assert words in mistake("evaluate", f"--workdir={tmp_path}", *arguments)


def test_values_that_contradict_each_other_are_told_with_their_origin():
  found = mistake("plan", "--config=imagenet18:4", "--config.phases.first_epoch=(0,)")
  assert found.endswith(
    "(config.phases.first_epoch: from the command line, config.phases.batch_size: the recipe's)."
  )
