#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the build, compiles a project against the installed client, and runs the installed programs.
#   install_test.sh ROOT BUILD
set -euo pipefail
root=$1 build=$2
prefix=$(mktemp -d) server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$prefix"' EXIT
cmake --install "$build" --prefix "$prefix" >/dev/null

version=$(sed -n 's/^project(headwise VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
for program in headwise headwise-load headwise-server; do
  said=$("$prefix/bin/$program" --version)
  [ "$said" = "$program $version" ] || { echo "$program --version: said '$said'" && exit 1; }
done

# Completion, as a shell would ask for it.
complete() {
  bash -c 'source "$1"; COMP_WORDS=("${@:3}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "$2"; echo "${COMPREPLY[*]}"' \
    bash "$prefix/share/bash-completion/completions/$1" "$2" "${@:3}"
}
expect() { [ "$1" = "$2" ] || { echo "completion: expected '$1', was '$2'" && exit 1; }; }
expect "ablate" "$(complete headwise _headwise headwise abl)"
expect "--memory --memory-lengths --memory-lengths-from --memory-positions" "$(complete headwise _headwise headwise forward m0 --mem)"
expect "constant poisson" "$(complete headwise-load _headwise_load headwise-load m0 --arrivals '')"
expect "--find-rate" "$(complete headwise-load _headwise_load headwise-load m0 --find)"

cmake -S "$root/tests/install" -B "$prefix/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >"$prefix/log" 2>&1 &&
  cmake --build "$prefix/consumer" >>"$prefix/log" 2>&1 || { cat "$prefix/log" && exit 1; }
"$prefix/bin/headwise-server" --listen 127.0.0.1:0 --metrics '' --repository "$root/tests/data" --demo >"$prefix/out" 2>"$prefix/err" &
server=$!
for _ in $(seq 200); do
  read -r _ address _ <"$prefix/out" 2>/dev/null && [ -n "${address:-}" ] && "$prefix/bin/headwise" --server "$address" health >/dev/null 2>&1 && break
  sleep 0.05
done
said=$("$prefix/consumer/consumer" "$address")
[ "$said" = "$version minilm smollm2 two-head two-head-unequal" ] || { echo "consumer: said '$said'" && exit 1; }
echo "installed, found, compiled and run: $said"
