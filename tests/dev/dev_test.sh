#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests of ./dev itself, in seconds on a machine that is set up. Not a ctest: ctest runs inside what is tested here.
# tests/dev/heal_test.sh does the slow part, set-ups that are killed.
set -uo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
dev=$tree/dev
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# expect WHAT WANTED GOT
expect() {
  if [ "$2" = "$3" ]; then
    echo "ok: $1"
  else
    echo "FAILED: $1: expected '$2', was '$3'"
    failures=$((failures + 1))
  fi
}

exec_passes_everything_through() {
  local status
  "$dev" exec true || { echo "FAILED: ./dev exec true" && exit 1; }
  "$dev" exec bash -c 'exit 7'
  expect "exit code" 7 $?
  expect "stdin" "hello" "$(echo hello | "$dev" exec cat)"
  expect "arguments" "a b|*|" "$("$dev" exec printf '%s|' 'a b' '*')"
  expect "toolchain" 14 "$("$dev" exec g++ -dumpversion)"

  "$dev" exec bash -c 'trap "exit 9" TERM; echo $$ >"$1"; while :; do sleep 0.05; done' sh "$scratch/pid" &
  while [ ! -s "$scratch/pid" ]; do sleep 0.05; done
  expect "same process" "$!" "$(cat "$scratch/pid")"
  kill -TERM $!
  wait $!
  expect "signal" 9 $?
}

exec_sees_the_same_files() {
  local folder
  for folder in "$scratch/with a space" /mnt "$HOME" "$tree"; do
    mkdir -p "$folder" && cd "$folder" || exit 1
    expect "folder $folder" "$(pwd -P)" "$("$dev" exec pwd)"
  done
  cd "$scratch" && "$dev" exec touch made-inside
  expect "a file made inside" yes "$([ -e "$scratch/made-inside" ] && echo yes)"
  expect "nothing stays mounted" 0 "$(grep -c "${HEADWISE_CACHE:-$HOME/.cache/headwise}" /proc/self/mounts)"
  cd "$tree" || exit 1
}

exec_is_quick() {
  local i began took best=999999
  for ((i = 0; i < 10; i++)); do
    began=${EPOCHREALTIME/[.,]/}
    "$dev" exec true
    took=$((${EPOCHREALTIME/[.,]/} - began))
    [ "$took" -ge "$best" ] || best=$took
  done
  expect "added start of $best us is at most 50 ms" yes "$([ "$best" -le 50000 ] && echo yes)"
}

# The mirror that ./dev finds in the apt sources given on stdin as FILE.
mirror_in() {
  local dir=$scratch/apt
  rm -rf "$dir" && mkdir -p "$dir/sources.list.d" && cat >"$dir/$1"
  # shellcheck disable=SC2034
  (cache=$scratch suite=trixie && . "$tree/deploy/dev/set-up.sh" && APT_SOURCES_DIR=$dir find_mirror)
}

mirror_is_found() {
  unset HEADWISE_MIRROR
  expect "one-line sources" http://mirror.test/debian "$(mirror_in sources.list <<'EOF'
# deb http://commented.test/debian bookworm main
deb [arch=amd64 signed-by=/etc/keys/other.gpg] https://other.test/repo bookworm main
deb-src http://source.test/debian bookworm main
deb cdrom:[Debian 12]/ bookworm main
deb http://mirror.test/debian/ bookworm main contrib
deb http://security.test/debian-security bookworm-security main
EOF
  )"
  expect "deb822 sources" http://mirror.test/pool "$(mirror_in sources.list.d/a.sources <<'EOF'
Types: deb
URIs: https://other.test/repo
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----

Enabled: no
Types: deb
URIs: http://disabled.test/debian
Suites: bookworm
Components: main

# the archive
Types: deb deb-src
URIs: http://mirror.test/pool/
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
  )"
  echo 'http://listed.test/debian priority:1' >"$scratch/list"
  expect "a list of mirrors" http://listed.test/debian "$(mirror_in sources.list.d/a.sources <<EOF
Types: deb
URIs: mirror+file://$scratch/list
Suites: trixie
Components: main
EOF
  )"
  expect "no Debian archive" "" "$(mirror_in sources.list <<<'deb http://ubuntu.test/ubuntu noble main')"
}

# refusal COMMAND…: exit code and number of lines on stderr, and the words that must be in it.
refusal() {
  local words=$1 status
  shift
  "$@" >"$scratch/out" 2>"$scratch/err" </dev/null
  status=$?
  expect "refusal: $words" "1 1 1" "$status $(wc -l <"$scratch/err") $(grep -c "$words" "$scratch/err")"
}

refusals_are_one_sentence() {
  # A fresh set-up of a copy that anybody may read; on Debian 13 what is installed needs neither root nor network.
  [ "$("$dev" exec printenv HEADWISE_INSIDE)" != debian ] && [ "$UID" = 0 ] || return 0
  mkdir -p "$scratch/copy/deploy" && cp -r "$tree/dev" "$scratch/copy" && cp -r "$tree"/deploy/{dev,packages-*} "$scratch/copy/deploy"
  mkdir -m 777 "$scratch/cache" && chmod -R a+rX "$scratch"
  export HEADWISE_CACHE=$scratch/cache
  refusal "run ./dev as root" setpriv --reuid 65534 --regid 65534 --clear-groups "$scratch/copy/dev" test
  refusal "connect this machine to the network" unshare --net "$scratch/copy/dev" build
  refusal "connect this machine to the network" env HEADWISE_MIRROR=http://127.0.0.1:9/debian "$scratch/copy/dev" exec true
}

exec_passes_everything_through
exec_sees_the_same_files
exec_is_quick
mirror_is_found
refusals_are_one_sentence
"$dev" nonsense 2>/dev/null
expect "unknown verb" 2 $?
[ "$failures" = 0 ] || { echo "$failures failed" && exit 1; }
echo "dev_test: all passed"
