"""Nonsense in recipes, flags and config.json: one sentence and exit code 2, and nothing is left."""

import json
import os
import pathlib
import warnings

import pytest
from in_process import command, mistake
from toy import load_recipe

import jaxspeed.models.make  # noqa: F401  the families of models
from jaxspeed.config import fields, stored

ROOT = pathlib.Path(__file__).parents[2]
QUICKSTART = f"--config={ROOT / 'configs' / 'quickstart.py'}"
LARS = f"--config={ROOT / 'configs' / 'imagenet_lars.py'}:4096"
# The fields and groups of an empty config but `given`, which no recipe sets, and the three named.
MISSING = len(fields.Config.model_fields) - 1 - 3


def recipe_with(line: str) -> str:
  """The quickstart with a line before its last, `return config`."""
  text = (ROOT / "configs" / "quickstart.py").read_text()
  return text.replace("  return config", f"  {line}\n  return config")


# Each with the place in the file and the words of its sentence; {n} is the number of the line.
LINES = {
  "typo": (
    "config.optimizer.wheight_decay = 0.1",
    "line {n}: the config has no field wheight_decay: did you mean optimizer.weight_decay?",
  ),
  "typo in update": (
    "config.data.update(clases=10)",
    "line {n}: the config has no field clases: did you mean data.classes?",
  ),
  "typo of a group": (
    "config.optimiser.momentum = 0.9",
    "line {n}: the config has no field optimiser: did you mean optimizer?",
  ),
  "raise ImportError": ("raise ImportError('no mod')", "line {n}: ImportError: no mod."),
  "raise ZeroDivisionError": ("1 / 0", "line {n}: ZeroDivisionError: division by zero."),
  "raise RuntimeError": ("raise RuntimeError('r')", "line {n}: RuntimeError: r."),
  "raise OSError": ("raise OSError('o')", "line {n}: OSError: o."),
  "raise NameError": ("raise NameError('n')", "line {n}: NameError: n."),
  "raise AssertionError": ("assert not config", "line {n}: AssertionError."),
  "raise of two lines": ("raise Exception('a\\n\\nline\\x1b[2J')", "line {n}: Exception: a line"),
  "raise of a long text": ("raise ValueError('x' * 10_000)", "line {n}: ValueError: xxx"),
  "undefined name": ("foo", "line {n}: NameError: name 'foo' is not defined."),
  "import missing": (
    "import not_there_module",
    "line {n}: ModuleNotFoundError: No module named 'not_there_module'.",
  ),
  "exit": ("raise SystemExit(0)", "line {n}: it ends the process with SystemExit(0)."),
  "exit by sys": ("import sys; sys.exit()", "line {n}: it ends the process with SystemExit(None)."),
  "recursion": ("return get_config()", ": RecursionError: maximum recursion depth"),
  "attribute of a value": (
    "config.epochs.x = 1",
    "line {n}: AttributeError: 'float' object has no attribute 'x'",
  ),
  "epochs as text": (
    "config.epochs = '3'",
    "line {n}: the field epochs holds values of type float, not str.",
  ),
  "a function": (
    "config.data.path = lambda: 'x'",
    "line {n}: the field path holds values of type str, not function.",
  ),
  "delete a group": ("del config.eval", "line {n}: a field of the config cannot be deleted."),
  "delete a field": ("del config.eval.batch_size", "line {n}: a field of the config cannot be"),
  "model with a typo": (
    "config.model = dict(name='resnet9', widht=8)",
    "c.py: the config has no field model.widht: did you mean model.width?",
  ),
  "model with a strange field": (
    "config.model.zebra = 3",
    "no field model.zebra; those of resnet9 are name, width,",
  ),
  "model without a name": ("config.model = dict(width=8)", "config.model has no name: the recipe"),
  "no model": ("config.model = {}", "config.model has no name: the recipe sets config.model ="),
  "model is unknown": ("config.model.name = 'vgg'", "config.model.name='vgg': choose one of airb"),
  "model width as text": (
    "config.model = dict(name='resnet9', width='8')",
    "config.model.width='8': it must be a whole number from 1 to 1,024.",
  ),
  "model width as float": (
    "config.model = dict(name='resnet9', width=8.0)",
    "config.model.width=8.0: it must be a whole number from 1 to 1,024.",
  ),
  "model width negative": ("config.model.width = -8", "config.model.width=-8: it must be at least"),
  "model activation": ("config.model.activation = 'gelu'", "'gelu': choose one of relu, celu."),
  "model widths": (
    "config.model = dict(name='airbench', widths=(1, 2))",
    "config.model.widths=(1, 2): it must be a tuple of 3, each a whole number from 1 to 4,096.",
  ),
  "seed is None": ("config.seed = None", "config.seed=None: it must be a whole number from 0 to"),
  "epochs is None": ("config.epochs = None", "config.epochs=None: it must be a number above 0 and"),
  "mean is None": ("config.data.mean = None", "config.data.mean=None: it must be three numbers in"),
  "bool for a number": ("config.batch_size = True", "config.batch_size=True: it must be a whole"),
  "NumPy's number": (
    "import numpy; config.data.mean = tuple(numpy.arange(3))",
    "int64(2)): it must be of Python's own types, not numpy.int64.",
  ),
  "an endless number": (
    "config.epochs = float('inf')",
    "config.epochs=inf: it must be a number above 0 and up to 100,000.",
  ),
  "a huge number": (
    "config.seed = 10**5000",
    "config.seed=a int: it must be at most 2,147,483,647",
  ),
  "a config in itself": ("config.model.name = config", "line {n}: the field name holds values of"),
  "nesting without an end": (
    "config.unlock(); config.data.x = config.data",
    "c.py: groups of fields nest without an end.",
  ),
  "unlocked": (
    "config.unlock(); config.optimizer.lr = 0.1",
    "c.py: the config has no field optimizer.lr: did you mean schedule.peak?",
  ),
  "unlocked and deleted": (
    "config.unlock(); del config.eval",
    "c.py: config.eval is missing: a recipe starts from base()",
  ),
  "a control character": (
    "config.data.path = 'a\\0b'",
    "config.data.path='a\\x00b': it must be text of one line without control characters.",
  ),
  "returns {}": ("return {}", "c.py: get_config() returned a value of type dict: it must return"),
  "returns []": ("return []", "c.py: get_config() returned a value of type list: it must return"),
  "returns 5": ("return 5", "c.py: get_config() returned a value of type int: it must return"),
  "returns text": ("return 'x'", "c.py: get_config() returned a value of type str: it must return"),
  "returns nothing": ("return", "c.py: get_config() returned nothing: it must return the config"),
  "returns ConfigDict()": (
    "from ml_collections import ConfigDict; return ConfigDict()",
    f"c.py: config.name, config.seed, config.runs and {MISSING} more are missing: a recipe",
  ),
  "returns a part": (
    "from ml_collections import ConfigDict; return ConfigDict({'epochs': 1.0})",
    f"c.py: config.name, config.seed, config.runs and {MISSING - 1} more are missing: a recipe",
  ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_recipe_with_a_mistake_is_told_with_its_line(name, tmp_path, monkeypatch):
  line, words = LINES[name]
  text = recipe_with(line)
  (tmp_path / "c.py").write_text(text)
  monkeypatch.chdir(tmp_path)
  sentence = mistake("train", "--config=c.py", "--workdir=w")
  number = text.splitlines().index(f"  {line}") + 1
  assert sentence.startswith("c.py"), sentence
  assert words.format(n=number) in sentence
  assert len(sentence) < 600 and sentence.isprintable()
  assert [path.name for path in tmp_path.iterdir()] == ["c.py"]


FILES = {
  "latin1": (b"# \xe9\ndef get_config():\n  return 1\n", "c.py"),
  "no Python": (b"def get_config():\n  return (\n", "c.py, line 2: '(' was never closed."),
  "null bytes": (b"x = '\0'\n", "c.py"),
  "empty": (b"", "c.py defines no function get_config() that returns the config."),
  "no function": (b"get_config = 3\n", "c.py defines no function get_config()"),
  "async": (b"async def get_config():\n  return 1\n", "c.py: get_config() is an async function:"),
  "raises at once": (b"raise ValueError('v')\n", "c.py, line 1: ValueError: v."),
  "exits at once": (b"import sys\nsys.exit(0)\n", "c.py, line 2: it ends the process with"),
  "an exception without text": (
    b"class E(Exception):\n  def __str__(self): raise ValueError\nraise E\n",
    "c.py, line 3: E.",
  ),
  "wants a variant": (
    b"def get_config(v):\n  pass\n",
    "c.py names no variant: write --config=c.py:",
  ),
  "wants two": (b"def get_config(v, w):\n  pass\n", "c.py names no variant: write --config=c.py:"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_recipe(name, tmp_path, monkeypatch):
  content, words = FILES[name]
  (tmp_path / "c.py").write_bytes(content)
  monkeypatch.chdir(tmp_path)
  with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    assert words in mistake("plan", "--config=c.py")
  assert not [each for each in warned if "never awaited" in str(each.message)]
  assert [path.name for path in tmp_path.iterdir()] == ["c.py"]


def test_a_recipe_is_read_anew_each_time(tmp_path):
  """A .pyc would be taken for one second after an edit that keeps the length."""
  file = tmp_path / "c.py"
  for epochs in (3, 4):
    file.write_text(recipe_with(f"config.epochs = {epochs}.0"))
    assert command("plan", f"--config={file}").stdout.startswith(f"quickstart: {15 * epochs} steps")


# Arguments of `plan` beside the quickstart, and words of the sentence.
FLAGS = {
  "--config.lr=0.1": "the config has no field lr: did you mean schedule.peak?",
  "--config.learning_rate=0.1": "no field learning_rate: did you mean schedule.peak?",
  "--config.wd=0.1": "no field wd: did you mean optimizer.weight_decay?",
  "--config.bs=32": "no field bs: did you mean batch_size?",
  "--config.weight_decay=0.1": "no field weight_decay: did you mean optimizer.weight_decay?",
  "--config.model.widht=8": "no field model.widht: did you mean model.width?",
  "--config.model.depth=8": "the config has no field model.depth",
  "--config.zebra=3": "the config has no field zebra.",
  "--config.=3": "the config has no field .",
  "--config.data=3": "--config.data is a group of fields: set --config.data.FIELD=VALUE.",
  "--config.epochs.x=3": "the config has no field epochs.x",
  "--config.data.mean[0]=3": "--config.data.mean[0]: set the whole tuple, as in",
  "--config.epochs=many": "config.epochs='many': it must be a number above 0 and up to 100,000.",
  "--config.epochs=nan": "config.epochs=nan: it must be a number above 0 and up to 100,000.",
  "--config.batch_size=1.5": "config.batch_size='1.5': it must be a whole number from 1 to",
  "--config.stop_at_target=maybe": "config.stop_at_target='maybe': it must be True or False.",
  "--config.epochs": "Missing value for flag --config.epochs; see --help for the flags.",
  "--config.name=..": "config.name='..': it must be a name for a folder, NAME or NAME/VARIANT",
  "--config.name=../x": "config.name='../x': it must be a name for a folder",
  "--config.name=/x": "config.name='/x': it must be a name for a folder",
  "--config.name=a//b": "config.name='a//b': it must be a name for a folder",
  "--config.name=a\nb": "config.name='a\\nb': it must be a name for a folder",
  "--config.name=a\x1b[2J": "config.name='a\\x1b[2J': it must be a name for a folder",
  "--config.data.image_size=1000000000000": "it must be at most 8,192.",
  "--config.data.train_images=1000000000000": "it must be at most 1,000,000,000.",
  "--config.data.train_images=1000000000": "200,000,000 steps, but a plan has at most 10,000,000",
  "--config.data.feed=strem": "config.data.feed='strem': choose one of resident, stream.",
  "--config.data.feed=stream": "config.data.mean=(): it is not computed for a stream",
  "--config.runs=1000000000000": "config.runs=1000000000000: it must be at most 10,000.",
  "--config.seed=2147483648": "config.seed=2147483648: it must be at most 2,147,483,647.",
  "--config.model.width=1000000000000": "config.model.width=1000000000000: it must be at most",
  "--config.model.width=-3": "config.model.width=-3: it must be at least 1.",
  "--config.model.ghost_splits=0": "config.model.ghost_splits=0: it must be at least 1.",
  "--config.schedule.peak=1e308": "config.schedule.peak=1e+308: it must be at most 1,000,000.",
  "--config.schedule.segments=((0,'x',1,1),)": "it must be segments of four numbers",
  "--config.schedule.segments=(0,1)": "segments=(0, 1): it must be segments of four",
  "--config.schedule.segments=((0,10,1,1),)": "schedule.segments end with epoch 10, they do not",
  "--config.schedule.segments=((0,10,1,1),(12,20,1,1))": "it must be segments of four numbers",
  "--config.schedule.segments=((0,12,1,1),(10,20,1,1))": "it must be segments of four numbers",
  "--config.schedule.segments=((0,20,1,-1),)": "it must be segments of four numbers of at least 0",
  "--config.optimizer.momentum_segments=((0,3,.9,.9),)": "segments end with epoch 3, they do",
  "--config.optimizer.lars_clip=((1,2),(3,))": "it must be the least and the most trust ratio",
  "--config.optimizer.muon_coefficients=('a','b','c')": "it must be three numbers.",
  "--config.average.every=9223372036854775808": "it must be at most 1,000,000.",
  "--config.proxy.widths=(-1,2,3)": "it must be a tuple of 3, each a whole number from 1 to 4,096.",
  "--config.eval.resize=1e30": "config.eval.resize=1e+30: it must be at most 10.",
  "--config.watchdog_seconds=0.001": "=0.001: it must be a number of seconds, 0 or at least 5.",
  "--config.records.loggers=wandb,trackio": (
    "it must be some of tensorboard, wandb, trackio, each at most once, "
    """as in '("tensorboard", "wandb")'."""
  ),
  "--config.phases.image_size=(1,b)": "from 1 to 8,192, as in '(1, 2)'.",
  "--config.data.mean=a": "training set's own, as in '(1, 2, 3)'.",
  "--config.schedule.segments=(0,": "the one before, as in '((1, 2, 3, 4), (1, 2, 3, 4))'.",
  "--config.compiler_options=('x',)": "it must be a tuple, each NAME=VALUE, an option of XLA.",
  "--config.data.path=/nowhere": "config.data.path: /nowhere does not exist; it names a folder",
  "--bandwidth=nan": "flag --bandwidth=nan: it must be a number from 0.001 to 1e+06; see --help",
  "--bandwidth=inf": "flag --bandwidth=inf: it must be a number from 0.001 to 1e+06; see --help",
  "--latency=nan": "flag --latency=nan: it must be a number from 0 to 1e+09",
  "--bandwidth=10": "--bandwidth needs --devices=N, 2 or more, and --step-ms=MILLISECONDS.",
  "--step-ms=10": "--step-ms=10.0 has no effect without --bandwidth.",
  "--latency=3": "--latency=3.0 has no effect without --bandwidth.",
  "--devices=0": "--devices",
  "--devices=3": "does not divide over 3 devices",
  "--config.data.path=~nobody-here/x": "config.data.path: ~nobody-here/x begins with a home",
  "--config.data.mean=" + 60_000 * "-" + "1": "--... is nested too deeply; see --help for the",
  "--config.seed=" + 6000 * "9": f"config.seed='{79 * '9'}...: it must be a whole number from 0 to",
  "--out=x.json": "Unknown command line flag 'out'",
  "epochs=3": "'epochs=3' is no flag; see --help for the flags.",
  "--flagfile=/nowhere": "/nowhere",
  QUICKSTART: "a recipe is given already",
}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.replace(str(ROOT), "")[:60])
def test_a_flag_with_a_mistake(flag):
  assert FLAGS[flag] in mistake("plan", QUICKSTART, flag)


MORE = [
  ("plan", ["--config=configs"], "--config=configs: there is no such file."),
  ("plan", ["--config="], "--config=: there is no such file."),
  ("plan", [f"{QUICKSTART}:"], "names no variant after the colon: leave the colon out."),
  ("plan", [f"{QUICKSTART}:x"], "has no variants: leave out the colon."),
  ("plan", [LARS.replace("4096", "")], "names no variant after the colon"),
  ("plan", ["--config.epochs=3"], "--config.epochs changes a recipe: name it with --config=FILE"),
  (
    "plan",
    [QUICKSTART, "--devices=2", "--bandwidth=inf", "--step-ms=inf"],
    "=inf: it must be a number from 0.001 to",
  ),
  ("plan", [QUICKSTART, "--csv", "--parameters"], "--parameters=True has no effect beside --csv."),
  (
    "plan",
    [LARS, "--config.data.path=/nowhere"],
    "/nowhere does not exist; it names a folder with",
  ),
  (
    "plan",
    [LARS, "--config.data.image_size=8192"],
    "config.batch_size=4096 images of 8192 pixels a side take 825 GB per device",
  ),
  (
    "plan",
    [LARS, "--config.data.synthetic=True", "--config.data.train_images=1000000000"],
    "with config.data.synthetic=True it must be at most 20,000,000.",
  ),
  ("scaling", [], "--config=FILE.py names the recipe, or --published"),
  ("scaling", [LARS, "--devices=eight"], "--devices=eight: give numbers from 1 to 1,000,000"),
  ("scaling", [LARS, "--devices=８"], "give numbers from 1 to 1,000,000"),
  ("scaling", [LARS, "--devices=1000000000000"], "give numbers from 1 to 1,000,000"),
  ("scaling", [LARS, "--devices=" + ",".join(["8"] * 101)], "give numbers from 1 to"),
  ("scaling", [LARS, "--devices=3"], "does not divide over 3 devices"),
  ("scaling", [LARS, "--network=nan"], "flag --network=nan: it must be a number from 0.001 to"),
  ("scaling", [LARS, "--step-ms=inf"], "flag --step-ms=inf: it must be a number"),
  ("scaling", [LARS, "--cores=nan"], "flag --cores=nan: it must be a number from 0.01"),
  ("scaling", [LARS, "--price=-1"], "flag --price=-1.0: it must be a number"),
  ("scaling", [LARS, "--latency=nan"], "flag --latency=nan"),
  (
    "scaling",
    [LARS, "--network=abc"],
    "flag --network=abc: it must be a number from 0.001 to 1e+07; see --help for the flags.",
  ),
  (
    "scaling",
    [LARS, "--per-host=abc"],
    "flag --per-host=abc: it must be a whole number; see --help for the flags.",
  ),
  (
    "report",
    ["runs/a", "--watch=abc"],
    "flag --watch=abc: it must be 0 or a number from 1 to 86400; see --help for the flags.",
  ),
  ("scaling", [LARS, "--out=x.json"], "--out=x.json has no effect without --published."),
  ("scaling", [LARS, "--epochs=1000"], "--epochs=1000: the run has"),
  ("scaling", [LARS, "--config.model.widht=1"], "did you mean model.width?"),
  ("scaling", [LARS, "--config.model.width=0"], "config.model.width=0: it must be at least 1."),
  ("scaling", [LARS, "--config.data.path=/x"], "reads no images, it uses config.data.train"),
  ("scaling", ["--published", LARS], "--config has no effect beside --published"),
  ("scaling", ["--published", "--epochs=3"], "--epochs=3 has no effect beside --published."),
  ("scaling", ["--published", "--devices=3"], "has no effect beside --published."),
  (
    "scaling",
    ["--published", "--out=/nope/x.json"],
    "--out=/nope/x.json: there is no folder /nope",
  ),
  ("scaling", ["--published", "--out=/"], "--out=/: it is a folder; name a file."),
  ("evaluate", [LARS, "--config.eval.mode=center,flip"], "weights come from --config.pretrained"),
  (
    "evaluate",
    [LARS, "--config.eval.mode=center,mirror"],
    "config.eval.mode='mirror': choose one of",
  ),
  (
    "evaluate",
    [LARS, "--config.pretrained.path=x.safetensors", "--config.model.name=resnet9"],
    "; those of resnet9 are name, width, pool_position",
  ),
]


def test_a_file_of_flags_that_cannot_be_read(tmp_path):
  (tmp_path / "latin1").write_bytes(b"--config=\xe9.py\n")
  os.mkfifo(tmp_path / "pipe")
  for name, reason in (
    ("latin1", "it is no text in UTF-8"),
    ("pipe", "it is no regular file"),
    ("gone", "No such file or directory"),
  ):
    sentence = mistake("plan", f"--flagfile={tmp_path / name}")
    assert sentence == (
      f"--flagfile={tmp_path / name} cannot be read ({reason}): name a file of flags, one a line."
    )


@pytest.mark.parametrize("module", ["evaluate", "predict"])
def test_a_workdir_with_a_name_that_is_too_long(module, tmp_path):
  folder = tmp_path / (300 * "a")
  sentence = mistake(module, f"--workdir={folder}", *(["a.png"] if module == "predict" else []))
  assert sentence == f"{folder}/config.json cannot be read as a config (File name too long)."


@pytest.mark.parametrize("size", ["-1", "8193", "1000000000"])
def test_an_index_of_a_huge_size_is_refused(size, tmp_path):
  sentence = mistake("prepare", "index", str(tmp_path), f"--size={size}")
  assert sentence == f"--size={size}: name a short side in pixels, 8,192 at most."


@pytest.mark.parametrize("module, arguments, words", MORE)
def test_a_command_line_with_a_mistake(module, arguments, words, monkeypatch):
  monkeypatch.chdir(ROOT)
  assert words in mistake(module, *arguments)


TRAIN = [
  ["--config.name=.."],
  ["--config.name="],
  ["--config.runs=1000000000000"],
  ["--config.watchdog_seconds=0.001"],
  ["--config.data.image_size=1000000"],
  ["--config.eval.resize=1e30"],
  ["--config.model.width=0"],
]


@pytest.mark.parametrize("arguments", TRAIN)
def test_a_refused_training_leaves_nothing_behind(arguments, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert "config." in mistake("train", QUICKSTART, *arguments)
  assert list(tmp_path.iterdir()) == []


def edited(**changes):
  """The stored quickstart with fields changed; a value of ... takes the field out."""
  config = json.loads(json.dumps(stored.to_dict(load_recipe("quickstart.py"))))
  for name, value in changes.items():
    group, key = config, name
    while "__" in key:
      first, _, key = key.partition("__")
      group = group[first]
    if value is ...:
      del group[key]
    else:
      group[key] = value
  return json.dumps(config)


CONFIGS = {
  "empty object": ("{}", f"config.name, config.seed, config.runs and {MISSING} more are missing"),
  "empty": ("", "cannot be read as a config (it is no JSON: Expecting value"),
  "list": ("[]", "holds no config: expected a JSON object."),
  "deep": ("[" * 100_000, "cannot be read as a config (it is nested too deeply)."),
  "deep object": ('{"a":' * 100_000, "cannot be read as a config (it is nested too deeply)."),
  "long": ('"' + "x" * 1_000_001, "cannot be read as a config (it is no JSON: Unterminated"),
  "huge number": ('{"epochs": ' + "9" * 5000 + "}", "99999 is too large a number)."),
  "no eval": (edited(eval=...), "config.eval is missing"),
  "no model": (edited(model=...), "config.model is missing"),
  "no phases": (edited(phases=...), "config.phases is missing"),
  "no leaf": (edited(eval__batch_size=...), "config.eval.batch_size is missing"),
  "epochs null": (edited(epochs=None), "config.epochs=None: it must be a number above 0"),
  "epochs text": (edited(epochs="3"), "config.epochs='3': it must be a number above 0"),
  "epochs NaN": (
    edited(epochs=float("nan")),
    "cannot be read as a config (NaN is no number of JSON).",
  ),
  "runs true": (edited(runs=True), "config.runs=True: it must be a whole number from 1 to"),
  "batch 100.0": (edited(batch_size=100.0), "config.batch_size=100.0: it must be a whole number"),
  "width text": (edited(model__width="16"), "config.model.width='16': it must be a whole number"),
  "model extra": (edited(model__foo=1), "the config has no field model.foo; those of resnet9 are"),
  "model list": (edited(model=[1]), "config.model=(1,): it must be a"),
  "model name list": (edited(model__name=[1]), "config.model.name=(1,): choose one of airbench"),
  "data int": (edited(data=3), "config.data=3: it must be a group of fields."),
  "dotted key": (edited(**{"a.b c": 1}), "the config has no field a.b c."),
  "escape in a key": (edited(**{"a\x1b[2J\n": 1}), "the config has no field a\\x1b[2J\\n."),
  "surrogate": ('{"name": "\\ud800"}', "config."),
  "text in a path": (
    edited(data__path="a\u2028b"),
    "config.data.path='a\\u2028b': it must be text",
  ),
  "data of a network": (
    edited(data__name="huggingface:cifar10"),
    "config.data.name='huggingface:cifar10': it must be a name NAME, NAME/CONFIG or NAME/CONFIG:V",
  ),
  "data by an absolute name": (edited(data__name="/etc/x"), "config.data.name='/etc/x': it must"),
  "data above": (edited(data__name="a/../../x"), "config.data.name='a/../../x': it must be a name"),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("module", ["evaluate", "predict"])
def test_a_stored_config_with_a_mistake(name, module, tmp_path):
  content, words = CONFIGS[name]
  (tmp_path / "config.json").write_text(content)
  sentence = mistake(module, f"--workdir={tmp_path}", *(["a.png"] if module == "predict" else []))
  assert sentence.startswith(f"{tmp_path / 'config.json'}")
  assert words in sentence and sentence.isprintable() and len(sentence) < 500
  assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_config_json_that_is_a_folder(tmp_path):
  (tmp_path / "config.json").mkdir()
  assert "config.json is no file" in mistake("evaluate", f"--workdir={tmp_path}")


@pytest.mark.parametrize(
  "arguments, words",
  [
    (["--config.model.width=32"], "--config.model.width: the weights in"),
    (["--config.eval.mode=center,mirror"], "config.eval.mode='mirror': choose one of center, flip"),
    (["--config.eval.batch_size=0"], "config.eval.batch_size=0: it must be at least 1."),
    (["--config.lr=0"], "the config has no field lr: did you mean schedule.peak?"),
    ([QUICKSTART], "names a recipe and --workdir="),
  ],
)
def test_an_evaluation_of_a_run_with_a_mistake(arguments, words, tmp_path):
  stored.save(load_recipe("quickstart.py"), tmp_path / "config.json")
  assert words in mistake("evaluate", f"--workdir={tmp_path}", *arguments)


def test_an_unrelated_run_is_told_by_its_first_differences_and_their_number(tmp_path):
  old, new = load_recipe("imagenet18.py", "8"), load_recipe("quickstart.py")
  rows = stored.differences(old, new)
  assert len(rows) > 20
  sentence = stored.listed(rows)
  assert sentence.endswith(f"; and {len(rows) - 5} more") and len(sentence) < 1000
  assert stored.listed(rows[:2]) == "; ".join(rows[:2])
