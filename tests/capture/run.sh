#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh TREE BIN: makes an environment with Debian's torch and transformers from PyPI, once, and tests capture.py in it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
python3 -c 'import torch' 2>/dev/null || {
  echo "no torch here: run ./dev test --label capture" >&2
  exit 1
}
key=$( (python3 --version && cat "$here/requirements.txt") | sha256sum)
environment=${HEADWISE_CACHE:-$HOME/.cache/headwise}/capture-${key:0:16}
if [ ! -e "$environment/.complete" ]; then
  rm -rf "$environment"
  python3 -m venv --system-site-packages "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
  touch "$environment/.complete"
fi
exec "$environment/bin/python" "$here/capture_test.py" "$@"
