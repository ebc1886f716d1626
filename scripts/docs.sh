#!/usr/bin/env bash
# Makes the site of docs/ in build/site; a page or a link that leads nowhere is an error.
#   bash scripts/docs.sh           # bash scripts/docs.sh serve: at http://127.0.0.1:8000 while you write
#   PYTHON=python3.12 VENV=DIR bash scripts/docs.sh --site-dir=DIR
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv-docs}
export NO_MKDOCS_2_WARNING=1  # of mkdocs-material, about another program
[ "${1:-}" = serve ] || set -- build --strict "$@"

"${PYTHON:-python3}" -m venv "$venv"
# The extra alone: the API is read from the sources, and JAX is not needed.
packages=$("$venv/bin/python" -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
# shellcheck disable=SC2086
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check $packages
"$venv/bin/mkdocs" "$@"
