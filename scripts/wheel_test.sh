#!/usr/bin/env bash
# Builds the wheel, installs it into a clean environment, and runs the named scenario from another folder.
set -euo pipefail
checkout=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python -m build --wheel --outdir "$folder/dist" "$checkout" >"$folder/build.log" 2>&1 || { cat "$folder/build.log"; exit 1; }
python - "$folder"/dist/*.whl <<'PY'
import sys, zipfile
tops = {name.split("/")[0] for name in zipfile.ZipFile(sys.argv[1]).namelist()}
extra = {top for top in tops if top != "fedDP" and not top.endswith(".dist-info")}
assert not extra, f"the wheel holds more than fedDP: {sorted(extra)}"
PY
python -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ${TORCH:-torch==2.13.0}
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$folder"/dist/*.whl
mkdir "$folder/elsewhere"
cd "$folder/elsewhere"
unset PYTHONPATH
"$folder/venv/bin/feddp" run hospital --set server.rounds=4 --set resources.nodes=2 --out out
"$folder/venv/bin/feddp" budget show out
"$folder/venv/bin/feddp" budget verify out
test -s out/summary.json
"$folder/venv/bin/python" - <<'PY'
import pathlib, fedDP
assert "site-packages" in str(pathlib.Path(fedDP.__file__)), fedDP.__file__
PY
echo "wheel test passed"
