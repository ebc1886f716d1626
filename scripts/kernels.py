"""The kernels of a compiled program: what each reads and writes, and what it is for.

A program is XLA's optimised HLO for a GPU or a CPU, as text (`compiled.as_text()`). A kernel is an
operation that runs by itself, outside of fusions. Its class follows from the kind of operation and
from its place in the model, which JAX keeps as `op_name`: names of Flax modules and of
`jax.named_scope`, and transpose(jvp(...)) in the backward pass.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterable

FORWARD = "convolution forward"
DATA_GRADIENT = "convolution data gradient"
WEIGHT_GRADIENT = "convolution weight gradient"
CLASSES = (
  FORWARD,
  DATA_GRADIENT,
  WEIGHT_GRADIENT,
  "norm",
  "pool",
  "matrix product",
  "elementwise",
  "augmentation",
  "optimizer",
  "all-reduce",
  "copy",
)

# Parts of an op_name that tell what an operation is for.
_SCOPES = (
  (DATA_GRADIENT, re.compile(r"data_gradient")),
  (WEIGHT_GRADIENT, re.compile(r"weight_gradient")),
  ("optimizer", re.compile(r"optimizer")),
  ("augmentation", re.compile(r"augment")),
  ("all-reduce", re.compile(r"allreduce")),
  ("pool", re.compile(r"(\w+_)?pool")),
  ("norm", re.compile(r"(\w+_)?norm\d*")),
)

_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"}
# Operations that run others; those are listed by themselves.
_CONTROL = {"while", "conditional", "call"}
_COPIES = {"copy", "copy-start", "transpose", "wrapped_copy", "wrapped_transpose"}
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)")
_ARRAY = re.compile(r"\b(pred|bf16|[fsuc]\d+|f8\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(calls|to_apply|body|condition|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_LABELS = re.compile(r"dim_labels=([\w?]+)_([\w?]+)->([\w?]+)")
_WINDOW = re.compile(r"window=\{size=([\dx]+)")
_BACKWARD = re.compile(r"transpose\(")


@dataclasses.dataclass(frozen=True)
class Kernel:
  """An operation that runs by itself.

  Attributes:
    name: in the program and in a profile.
    kind: of the operation; for a custom call, its target.
    op_name: where it comes from; for a fusion, that of its last operation.
    moved: bytes of operands and results. A repeated operand counts once; of an operand that is only
      sliced or gathered from, only the part that is read counts.
    runs: number in one call of the program.
    shape: of the result, in HLO.
    purpose: one of `CLASSES`.
    operands: names of the operations that it reads.
  """

  name: str
  kind: str
  op_name: str
  moved: int
  runs: int
  shape: str
  purpose: str
  operands: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Op:
  name: str
  kind: str
  shape: str
  operands: tuple[str, ...]
  line: str

  @functools.cached_property
  def op_name(self) -> str:
    found = _OP_NAME.search(self.line)
    return found[1] if found else ""

  def called(self, *keys: str) -> list[str]:
    """Names of the computations that the operation calls under these keys."""
    return [
      name.strip().lstrip("%")
      for key, names in _CALLED.findall(self.line)
      if key in keys
      for name in names.strip("{}").split(",")
    ]


_Computation = dict[str, _Op]


def bytes_of(shape: str) -> int:
  """Bytes of an HLO shape; for a tuple, the sum."""
  total = 0
  for kind, sides in _ARRAY.findall(shape):
    bits = 8 if kind == "pred" or kind.startswith("f8") else int(re.sub(r"\D", "", kind))
    total += math.prod(int(side) for side in sides.split(",") if side) * bits // 8
  return total


def module_name(text: str) -> str:
  """The name of a program, as in a profile."""
  found = re.match(r"HloModule ([\w.\-]+)", text)
  return found[1] if found else ""


def read(text: str, *, trips: int = 1) -> list[Kernel]:
  """The kernels of a program, in the order of its text.

  Args:
    text: the optimised HLO.
    trips: the iterations of a loop whose number is not in the text.
  """
  computations, entry = _parse(text)
  return [
    _kernel(op, computations, name, number)
    for name, number in _runs(computations, entry, trips).items()
    for op in computations[name].values()
    if op.kind not in _FREE | _CONTROL and not op.kind.endswith("-done")
  ]


def schedule(text: str) -> list[Kernel]:
  """The kernels of a scheduled program outside of its loops, in the order in which they start.

  The end of a collective counts too: its kind ends in "-done", and its operand is the start.
  """
  computations, entry = _parse(text)
  ops = computations[entry].values()
  return [_kernel(op, computations, entry, 1) for op in ops if op.kind not in _FREE | _CONTROL]


def _kernel(op: _Op, computations: dict[str, _Computation], around: str, runs: int) -> Kernel:
  inside = [
    computations[called] for called in op.called("calls", "to_apply") if called in computations
  ]
  return Kernel(
    name=op.name,
    kind=_kind(op),
    op_name=op.op_name,
    moved=_moved(op, computations[around], inside),
    runs=runs,
    shape=op.shape,
    purpose=_purpose(op, [o for each in inside for o in each.values()]),
    operands=op.operands,
  )


def scatters(text: str) -> int:
  """Number of scatters, including those inside kernels: on a GPU each is a sum by atomics."""
  return len(re.findall(r" (?:select-and-)?scatter\(", text))


def _parse(text: str) -> tuple[dict[str, _Computation], str]:
  computations: dict[str, _Computation] = {}
  entry, current = "", None
  for line in text.splitlines():
    if head := _HEAD.match(line):
      current = computations.setdefault(head[2], {})
      entry = head[2] if head[1] else entry
    elif current is not None and (found := _LINE.match(line)):
      name, shape, kind, rest = found.groups()
      operands = tuple(re.findall(r"%([\w.\-]+)", _arguments(rest)))
      current[name] = _Op(name, kind, shape, operands, line)
  return computations, entry


def _arguments(rest: str) -> str:
  """The text up to the parenthesis that closes an operation's operands."""
  depth = 1
  for place, character in enumerate(rest):
    depth += (character == "(") - (character == ")")
    if not depth:
      return rest[:place]
  return rest


def _runs(computations: dict[str, _Computation], entry: str, unknown: int) -> dict[str, int]:
  """How often each computation outside of fusions runs; all branches of a condition count."""
  runs: dict[str, int] = collections.defaultdict(int)

  def walk(name: str, number: int) -> None:
    runs[name] += number
    for op in computations[name].values():
      if op.kind == "while":
        trips = _TRIPS.search(op.line)
        for called in op.called("body", "condition"):
          walk(called, number * (int(trips[1]) if trips else unknown))
      elif op.kind in ("conditional", "call") or op.kind.endswith("-start"):
        for called in op.called("branch_computations", "to_apply", "calls"):
          # The computation that a collective applies is its sum, not a kernel.
          if not op.kind.startswith(_COLLECTIVES):
            walk(called, number)

  walk(entry, 1)
  return runs


def _kind(op: _Op) -> str:
  if op.kind == "custom-call":
    found = _TARGET.search(op.line)
    return found[1] if found else op.kind
  if op.kind == "fusion":
    return re.sub(r"[.\d]+$", "", op.called("calls")[0]).removesuffix("_computation")
  return op.kind


def _moved(op: _Op, around: _Computation, inside: list[_Computation]) -> int:
  parameters = _parameters(inside[0]) if op.kind == "fusion" and inside else {}
  read: dict[str, int] = {}
  for place, operand in enumerate(op.operands):
    source = _source(operand, around)
    size = bytes_of(around[operand].shape) if operand in around else 0
    if place in parameters:
      size = min(size, _taken(parameters[place], inside[0], size))
    elif op.kind in ("gather", "dynamic-slice", "slice") and place == 0:
      size = min(size, bytes_of(op.shape))
    read[source] = max(read.get(source, 0), size)
  return bytes_of(op.shape) + sum(read.values())


def _source(name: str, around: _Computation) -> str:
  """The operation behind any chain of bitcasts."""
  while name in around and around[name].kind == "bitcast":
    name = around[name].operands[0]
  return name


def _parameters(computation: _Computation) -> dict[int, str]:
  """Names of a fusion's parameters, by number."""
  numbers = (
    (re.search(r"parameter\((\d+)\)", op.line), op.name)
    for op in computation.values()
    if op.kind == "parameter"
  )
  return {int(found[1]): name for found, name in numbers if found}


def _taken(name: str, computation: _Computation, size: int) -> int:
  """Bytes read of a parameter: `size`, unless every operation that reads it takes only a part."""
  total = 0
  for op in computation.values():
    if name not in op.operands:
      continue
    if op.kind == "bitcast":
      total += _taken(op.name, computation, size)
    elif op.kind in ("slice", "dynamic-slice", "gather") and op.operands[0] == name:
      total += bytes_of(op.shape)
    else:
      return size
  return total


def _purpose(op: _Op, inside: list[_Op]) -> str:
  if op.kind.startswith(_COLLECTIVES):
    return "all-reduce"
  if _is_copy(op, inside):
    return "copy"
  convolution = next((o for o in (op, *inside) if _is_convolution(o)), None)
  if convolution is not None:
    return _direction(convolution)
  votes = collections.Counter(filter(None, (_scope(o.op_name) for o in inside)))
  scope = _scope(op.op_name) or (votes.most_common(1)[0][0] if votes else "")
  product = any(_is_product(o) for o in (op, *inside))
  return scope or ("matrix product" if product else "elementwise")


def _scope(op_name: str) -> str:
  """The purpose by the innermost part of a name that tells one; '' if none does."""
  for part in reversed(re.split(r"[/()]", op_name)):
    for purpose, pattern in _SCOPES:
      if pattern.fullmatch(part):
        return purpose
  return ""


def _is_copy(op: _Op, inside: list[_Op]) -> bool:
  kinds = {o.kind for o in inside} - _FREE - {"reshape"}
  return op.kind in _COPIES or (op.kind == "fusion" and bool(kinds) and kinds <= _COPIES)


def _is_convolution(op: _Op) -> bool:
  return op.kind == "convolution" or (op.kind == "custom-call" and "conv" in _kind(op).lower())


def _is_product(op: _Op) -> bool:
  target = _kind(op) if op.kind == "custom-call" else ""
  return op.kind == "dot" or "cublas" in target or "gemm" in target.lower()


def _direction(op: _Op) -> str:
  scope, target = _scope(op.op_name), _kind(op)
  if scope in (DATA_GRADIENT, WEIGHT_GRADIENT):
    return scope
  if "BackwardFilter" in target:
    return WEIGHT_GRADIENT
  if "BackwardInput" in target:
    return DATA_GRADIENT
  # XLA:CPU creates some weight gradients without a name.
  if op.op_name and not _BACKWARD.search(op.op_name):
    return FORWARD
  return WEIGHT_GRADIENT if _sums_over_images(op) else DATA_GRADIENT


def _sums_over_images(op: _Op) -> bool:
  """Whether a convolution of a backward pass is a weight gradient.

  For a weight gradient, JAX puts the images on the channel axis. XLA:CPU renames the axes, but the
  window is still the map and the result the kernel, and maps are usually larger than kernels.
  """
  labels, window = _LABELS.search(op.line), _WINDOW.search(op.line)
  if not labels or not window:
    return False
  sides = zip(_sides(op.shape), labels[3], strict=True)
  result = math.prod(side for side, label in sides if label.isdigit())
  size = math.prod(int(side) for side in window[1].split("x"))
  return labels[1].startswith("f") or size > result


def _sides(shape: str) -> list[int]:
  """The sides of an HLO array, or of the first one of a tuple."""
  return [int(side) for side in _ARRAY.findall(shape)[0][1].split(",")]


def by_class(kernels: Iterable[Kernel]) -> dict[str, list[Kernel]]:
  """Kernels by class, in the order of `CLASSES`; classes without kernels are left out."""
  groups: dict[str, list[Kernel]] = {name: [] for name in CLASSES}
  for kernel in kernels:
    groups[kernel.purpose].append(kernel)
  return {name: group for name, group in groups.items() if group}


def place_of(kernel: Kernel) -> str:
  """The part of the model that a kernel comes from; outside the model, the operation."""
  found = re.search(r"(transpose\()?jvp\(.*", kernel.op_name)
  return found[0] if found else kernel.op_name.rpartition("/")[2]


def describe_shape(shape: str) -> str:
  """A shape without its layout."""
  return re.sub(r"\{[^}]*\}|/\*.*?\*/", "", shape)
