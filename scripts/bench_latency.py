"""What a slow disk costs: images per second of `TrainStream` with and without a delay per open.

    python scripts/bench_latency.py --data=imagenette --data=sets/imagenette/1.0.0 --delay_ms=20

A preloaded library, compiled here by cc, makes each open of a JPEG or a TFRecord wait, as a network
disk does. Every round times each data set without and with the delay, one after the other, each in
its own process. The ratio of the two is taken within the round, because other work on the machine
changes the rates but not their ratio. `--beside=CHECKOUT` times another version in the same rounds.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

_LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static void wait_for_disk(const char *path) {
  const char *ms = getenv("OPEN_DELAY_MS"), *end = strrchr(path, '.');
  int is_jpeg = end && (!strcasecmp(end, ".jpg") || !strcasecmp(end, ".jpeg"));
  if (ms && (is_jpeg || strstr(path, "tfrecord"))) {
    struct timespec delay = {atol(ms) / 1000, atol(ms) % 1000 * 1000000};
    nanosleep(&delay, 0);
  }
}

#define DELAYED(name)                                                     \\
  int name(const char *path, int flags, ...) {                            \\
    va_list rest;                                                         \\
    va_start(rest, flags);                                                \\
    mode_t mode = va_arg(rest, mode_t);                                   \\
    va_end(rest);                                                         \\
    int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);        \\
    wait_for_disk(path);                                                  \\
    return next(path, flags, mode);                                       \\
  }
DELAYED(open)
DELAYED(open64)
"""


def compile_library(folder: pathlib.Path) -> pathlib.Path:
  """Compiles the library that makes opens wait OPEN_DELAY_MS milliseconds; needs a C compiler."""
  source, library = folder / "open_delay.c", folder / "open_delay.so"
  source.write_text(_LIBRARY)
  subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
  return library


def measure(flags: argparse.Namespace) -> dict[str, float]:
  """Images per second of one data set, by wall time and by CPU time, in this process."""
  from jaxspeed.data.disk.imageset import open_images
  from jaxspeed.data.disk.streams import TrainStream

  images = open_images(name="bench", path=flags.data[0], cache=flags.cache)
  # Opens wait from here on; reading the headers is not delayed.
  os.environ["OPEN_DELAY_MS"] = str(flags.delay_ms)
  batches = math.ceil(flags.images / flags.batch)
  an_epoch = math.ceil(len(images.train) / flags.batch)
  stream = TrainStream(
    images.train,
    seed=0,
    image_size=flags.image_size,
    batch_size=flags.batch,
    min_scale=0.08,
    flip="random",
    # More steps than are timed, because batches are made ahead at the end too.
    steps=[divmod(step, an_epoch) for step in range(flags.warm_batches + batches + 16)],
  )
  for _ in range(flags.warm_batches):
    next(stream)
  wall, cpu = time.perf_counter(), time.process_time()
  for _ in range(batches):
    next(stream)
  wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
  stream.close()
  return {"wall": batches * flags.batch / wall, "cpu": batches * flags.batch / cpu}


def measure_apart(flags: argparse.Namespace, data: str, delay_ms: int, checkout: str) -> dict:
  """Runs `measure` in its own process, with the package in `checkout`."""
  command = [sys.executable, __file__, "--measure", f"--data={data}", f"--delay_ms={delay_ms}"]
  for name in ("images", "batch", "image_size", "warm_batches", "cache"):
    command.append(f"--{name}={getattr(flags, name)}")
  done = subprocess.run(
    command,
    env=os.environ | {"LD_PRELOAD": flags.library, "PYTHONPATH": checkout},
    capture_output=True,
    text=True,
  )
  if done.returncode:
    sys.exit(done.stderr.strip() or f"{data} could not be measured")
  return json.loads(done.stdout.splitlines()[-1])


def mean_and_sd(values: list[float]) -> dict[str, float]:
  return {
    "mean": statistics.mean(values),
    "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
    "n": len(values),
  }


def run(flags: argparse.Namespace) -> list[dict]:
  """A row for each data set: rates, and their ratios within a round."""
  own = str(pathlib.Path(__file__).resolve().parents[1])
  versions = {"here": own} | ({"beside": flags.beside} if flags.beside else {})
  cases = list(itertools.product(versions, (0, flags.delay_ms)))
  rows = []
  for data in flags.data:
    rates: dict[tuple[str, int], list[dict]] = {case: [] for case in cases}
    for number in range(flags.rounds):
      for case in cases if number % 2 == 0 else reversed(cases):
        rates[case].append(measure_apart(flags, data, case[1], versions[case[0]]))
    row: dict = {"data": data}
    for version in versions:
      local, slow = rates[version, 0], rates[version, flags.delay_ms]
      row[version] = {
        "images_per_s": mean_and_sd([each["wall"] for each in local]),
        "images_per_s_delayed": mean_and_sd([each["wall"] for each in slow]),
        "delayed_to_local": mean_and_sd(
          [a["wall"] / b["wall"] for a, b in zip(slow, local, strict=True)]
        ),
      }
    if flags.beside:
      for kind in ("wall", "cpu"):
        pairs = zip(rates["here", 0], rates["beside", 0], strict=True)
        row[f"local_{kind}_rate_to_beside"] = mean_and_sd([a[kind] / b[kind] for a, b in pairs])
    rows.append(row)
    print(json.dumps(row, indent=2))
  return rows


def parse_flags() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument("--data", action="append", required=True, help="may be given several times")
  parser.add_argument("--delay_ms", type=int, default=20, help="of each open")
  parser.add_argument("--beside", default="", help="a checkout of another version")
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--images", type=int, default=1920, help="timed in a round")
  parser.add_argument("--batch", type=int, default=64)
  parser.add_argument("--warm_batches", type=int, default=6, help="before the clock starts")
  parser.add_argument("--image_size", type=int, default=128)
  parser.add_argument("--cache", default="", help="folder of the index")
  parser.add_argument("--out", type=pathlib.Path, help="a JSON file for the figures")
  parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
  return parser.parse_args()


def main() -> None:
  flags = parse_flags()
  if flags.measure:
    print(json.dumps(measure(flags)))
    return
  from jaxspeed.records import provenance

  with tempfile.TemporaryDirectory() as scratch:
    flags.library = str(compile_library(pathlib.Path(scratch)))
    flags.cache = flags.cache or scratch
    rows = run(flags)
  if flags.out:
    names = ("delay_ms", "rounds", "images", "batch", "image_size", "warm_batches")
    report = {
      "device": provenance.describe_device(),
      "cores": len(os.sched_getaffinity(0)),
      "commit": provenance.commit(),
      "versions": provenance.versions(),
      **{name: getattr(flags, name) for name in names},
      "rows": rows,
    }
    flags.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
  main()
