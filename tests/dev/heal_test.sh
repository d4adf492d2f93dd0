#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Kills a set-up (SIGKILL, ./dev alone and with all its children) while it makes the root, installs the packages and
# builds; the next run must finish the job. From empty caches in a folder of its own: four to eight minutes and 2 GB.
set -uo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
scratch=$(mktemp -d)
export HEADWISE_CACHE=$scratch/cache CCACHE_DISABLE=1
trap 'rm -rf --one-file-system "$scratch"' EXIT

# A copy with one small program in place of the product.
make_copy() {
  mkdir -p "$scratch/copy/core" && cd "$scratch/copy" || exit 1
  cp -r "$tree"/{dev,CMakeLists.txt,CMakePresets.json,cmake} .
  mkdir deploy && cp -r "$tree"/deploy/{dev,packages-*} deploy
  cat >core/CMakeLists.txt <<'EOF'
add_executable(probe probe.cc)
target_link_libraries(probe PRIVATE headwise_flags headwise_malloc gRPC::grpc++ DNNL::dnnl)
EOF
  cat >core/probe.cc <<'EOF'
#include <grpcpp/grpcpp.h>
#include <dnnl.hpp>
#include <iostream>
int main() { std::cout << grpc::Version() << " " << dnnl_version()->major << "\n"; }
EOF
}

# kill_when GLOB SECONDS TARGET: starts a build, waits until GLOB exists and SECONDS more, kills TARGET (alone, group).
kill_when() {
  local glob=$1 seconds=$2 target=$3 pid
  setsid ./dev build >"$scratch/log" 2>&1 &
  pid=$!
  until compgen -G "$glob" >/dev/null; do
    kill -0 "$pid" || { echo "FAILED: ended before $glob was there (on Debian 13 no root is made)" && exit 1; }
    sleep 0.1
  done
  sleep "$seconds"
  if [ "$target" = group ]; then kill -KILL -- "-$pid"; else kill -KILL "$pid"; fi
  wait "$pid" 2>/dev/null
  echo "killed ($target) at: $(basename "$glob"): $(tail -n 1 "$scratch/log")"
}

make_copy
for target in alone group; do
  rm -rf --one-file-system "$HEADWISE_CACHE" build
  kill_when "$HEADWISE_CACHE/base-*.partial.*" 3 "$target"
  kill_when "$HEADWISE_CACHE/root-*.partial.*" 6 "$target"
  kill_when "$PWD/build/release/build.ninja" 1 "$target"
  ./dev build >"$scratch/log" 2>&1 || { cat "$scratch/log" && exit 1; }
  [ "$(./dev exec probe)" = "1.51.1 3" ] || { echo "FAILED: what was built doesn't run" && exit 1; }
  compgen -G "$HEADWISE_CACHE/*.partial.*" && echo "FAILED: leftovers" && exit 1
done
echo "heal_test: all passed"
