#!/usr/bin/env bash
# Installs jaxspeed with its test tools into a virtual environment and runs every check.
#   bash scripts/test.sh                 # all but the campaign
#   bash scripts/test.sh --campaign      # an hour: processes, faults, large nets; Slurm, as root
#   bash scripts/test.sh --quick         # without the tests that take more than ten seconds each
#   PYTHON=python3.12 VENV=DIR EXTRAS=test,imagenet PACKAGES=torch bash scripts/test.sh
# EXTRAS and PACKAGES bring what some tests compare with; they skip what is not there. Tests compile
# without LLVM's optimisation (tests/conftest.py), with it where XLA_FLAGS is set.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv-test}
# By file: what the tests of a file share is made once. In the order of tests/conftest.py, or the
# files with the fewest tests, which take longest, would come last.
workers=(-n auto --dist loadfile --no-loadscope-reorder)
selection=("${workers[@]}" -m "not campaign")
[ "${1:-}" = "--quick" ] && selection=("${workers[@]}" -m "not slow and not campaign")
# One after the other: each of these tests has several processes of its own.
[ "${1:-}" = "--campaign" ] && selection=(-m campaign)

"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e ".[${EXTRAS:-test}]" ${PACKAGES:-}
"$venv/bin/ruff" format --check .
"$venv/bin/ruff" check .
"$venv/bin/mypy"
"$venv/bin/python" -m pytest "${selection[@]}"
