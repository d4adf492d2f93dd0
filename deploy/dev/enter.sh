#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs as root in a fresh private mount namespace: lays the caller's folders over the Debian 13 root and becomes the
# command. Every step is an exec, so the command has the caller's process id, stdin, signals and exit code.
#
#   enter.sh ROOT USER CWD MOUNTS NAME=VALUE… -- COMMAND…
#
# USER is UID:GID:GROUP,GROUP… to come back to, or empty for root; MOUNTS is the text of an fstab.
set -euo pipefail
root=$1 user=$2 cwd=$3 mounts=$4
shift 4

# One mount process for all folders, reading a file (it refuses a pipe) in a /run that is private too: a process per
# folder would use up the 50 ms that `./dev exec` may add.
mount --bind "$root" "$root"
mount -t tmpfs -o mode=755 run "$root/run"
printf '%s' "$mounts" >"$root/run/fstab"
mount --all --fstab "$root/run/fstab"

# Not chroot: what runs inside (buildah, a browser's sandbox) may want namespaces of its own, which the kernel refuses
# below a chroot. The old root ends up on top of the new one and is let go.
cd "$root"
pivot_root . .
umount -l .

# env steps back to the caller's folder.
command=(env -C "$cwd")
while [ "$1" != -- ]; do
  command+=("$1")
  shift
done
shift
command+=("$@")
if [ -n "$user" ]; then
  IFS=: read -r uid gid groups <<<"$user"
  command=(chroot --userspec="$uid:$gid" --groups="$groups" / "${command[@]}")
fi
exec "${command[@]}"
