#!/usr/bin/env bash
# A virtual environment, the package, a net trained on scikit-learn's digits, and its evaluation.
#   bash scripts/quickstart.sh
#   PYTHON=python3.12 VENV=DIR WORKDIR=runs/quickstart bash scripts/quickstart.sh
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
workdir=${WORKDIR:-runs/quickstart}

"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check .
"$venv/bin/python" -m jaxspeed.train --config=configs/quickstart.py --workdir="$workdir"
echo "Evaluated again from the checkpoint:"
"$venv/bin/python" -m jaxspeed.evaluate --json --workdir="$workdir"
