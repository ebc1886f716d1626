#!/usr/bin/env bash
# Everything that a GPU has to measure, most valuable first, within some minutes; the same
# command resumes. See gpu_day.py.
#   bash scripts/gpu_day.sh --minutes=16 --data=cifar-10-binary.tar.gz --peer=cifar10-airbench
#   bash scripts/gpu_day.sh --table      # the table of what there is
#   bash scripts/gpu_day.sh --dry_run    # without a GPU, at toy size
#   PYTHON=python3.12 bash scripts/gpu_day.sh
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python3}" "$scripts/gpu_day.py" "$@"
