#!/usr/bin/env bash
# Everything that a GPU has to measure, most valuable first, within some minutes; the same
# command resumes. See gpu_day.py.
#   bash scripts/gpu_day.sh --minutes=16 --data=cifar-10-binary.tar.gz --peer=cifar10-airbench
#   bash scripts/gpu_day.sh --table      # the table of what there is
#   bash scripts/gpu_day.sh --dry_run    # without a GPU, at toy size
#   PYTHON=python3.12 bash scripts/gpu_day.sh
set -euo pipefail
python=${PYTHON:-python3}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
if ! said=$("$python" -c "import jaxspeed.library.fit" 2>&1); then
  echo "jaxspeed: ${said##*$'\n'}: run $python -m pip install -e '$root[cuda13]';" \
    "docs/benchmarks.md has the lines for a machine without a network" >&2
  exit 2
fi
exec "$python" "$root/scripts/gpu_day.py" "$@"
