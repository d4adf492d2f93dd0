#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes an environment with tritonclient from PyPI beside the other caches, once, and runs the test in it.
#   run.sh ROOT BIN
set -euo pipefail
root=$1 binaries=$2
environment=${HEADWISE_CACHE:-$HOME/.cache/headwise}/oip-$(sha256sum "$root/tests/oip/requirements.txt" | cut -c1-16)
if [ ! -e "$environment/.complete" ]; then
  python3 -m venv --clear "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check -r "$root/tests/oip/requirements.txt"
  # Wheels of it exist for few systems.
  "$environment/bin/pip" install --quiet --disable-pip-version-check perf-analyzer || true
  touch "$environment/.complete"
fi
exec "$environment/bin/python" "$root/tests/oip/tritonclient_test.py" "$root" "$binaries"
