#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dependency-list.sh LISTS PROGRAM…: what the programs are made of, as a table of packages with versions and licences.
# LISTS: files of package names, by commas, for what is compiled in (headers, static libraries) and isn't linked.
# Licences are the names that Debian's machine-readable copyright files give; the texts are in those files.
set -eu
lists=$1
shift

if ! command -v dpkg-query >/dev/null; then
  echo "no list: this system has no dpkg" >&2
  exit 1
fi

licences() {
  file=/usr/share/doc/$1/copyright
  [ -r "$file" ] || { echo "see the package" && return; }
  names=$(sed -n 's/^License: *//p' "$file" | sort -u | paste -sd ';' | sed 's/;/; /g')
  echo "${names:-see $file}"
}

row() { # how package
  printf '%s\t%s\t%s\t%s\n' "$2" "$(dpkg-query -W -f '${Version}' "$2")" "$1" "$(licences "$2")"
}

# The packages of the shared libraries that the programs load, whoever asks for them.
linked() {
  # A library may be known to dpkg by the name that it was found under, by its own, or below /usr.
  paths=$(ldd "$@" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u | while read -r library; do
    printf '%s\n%s\n/usr%s\n' "$library" "$(readlink -f "$library")" "$library"
  done | sort -u)
  # shellcheck disable=SC2086
  { dpkg-query -S $paths 2>/dev/null || true; } | sed 's/:.*//' | sort -u
}

printf 'package\tversion\thow\tlicences\n'
linked "$@" | while read -r package; do row linked "$package"; done
echo "$lists" | tr ',' '\n' | xargs sed 's/#.*//;/^ *$/d' | sort -u | while read -r package; do
  [ -z "$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null)" ] || row 'to build' "$package"
done
