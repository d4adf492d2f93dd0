# SPDX-License-Identifier: Apache-2.0
#
# Sourced by ./dev when something is missing: installs packages on Debian 13, or makes a Debian 13 root.
#
# What a killed set-up leaves behind can't be taken for a finished one. A root is built under a name of its own
# (….partial.PID) and renamed when all of it is there; the next set-up removes such leftovers, under a lock. The
# bare system is kept apart from the packages, and downloads are kept, so that healing fetches nothing twice.
# shellcheck shell=bash

update_flags=(-q -o Acquire::Retries=3 -o APT::Update::Error-Mode=any)
apt_flags=(-q -y --no-install-recommends
  -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -o APT::Keep-Downloaded-Packages=true)

base=$cache/base-$suite log=$cache/set-up.log

# Names of the packages in list files.
packages() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$@" | sort -u; }

# make_ready NAME LIST…: on return the packages are there; sets `root` (empty: this system) and writes the stamp.
make_ready() {
  local name=$1
  shift
  mkdir -p "$cache" || die "cannot write to $cache: set HEADWISE_CACHE to a folder of yours"
  exec 9>"$cache/lock"
  flock -n 9 || { say "waiting for another ./dev to finish setting up" && flock 9; }
  if is_debian13; then
    install_here "$@"
    printf '%s' "$wanted" >"$cache/$name.stamp"
  else
    make_root "$@"
    printf '%s\n%s' "$root" "$wanted" >"$cache/$name.stamp.new"
    mv "$cache/$name.stamp.new" "$cache/$name.stamp"
  fi
  exec 9>&-
}

# --- Debian 13 itself ------------------------------------------------------------------------------------------------

install_here() {
  local missing
  missing=$(packages "$@" | missing_packages)
  [ -n "$missing" ] || return 0
  require_root "install the packages that Headwise is built with"
  { as_root dpkg --configure -a && as_root apt-get update "${update_flags[@]}"; } >"$log" 2>&1 </dev/null ||
    failed "install packages"
  say "installing $(wc -w <<<"$missing") packages, once"
  # shellcheck disable=SC2086
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install "${apt_flags[@]}" $missing >>"$log" 2>&1 </dev/null || failed "install packages"
}

missing_packages() {
  local package
  while read -r package; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

# --- a Debian 13 root ------------------------------------------------------------------------------------------------

make_root() {
  local key mirror lists=("$@")
  key=$( (echo "$suite" && packages "${lists[@]}") | sha256sum)
  root=$cache/root-${key:0:16}
  [ ! -e "$root/.complete" ] || return 0
  require_root "make a Debian 13 root in $cache"
  mirror=$(find_mirror) ||
    die "none of this machine's apt sources is a Debian archive: set HEADWISE_MIRROR to the address of one"
  reach "$mirror"
  as_root rm -rf --one-file-system "$cache"/*.partial.*
  mkdir -p "$cache/archives"
  [ -e "$base/.complete" ] || make_base

  say "installing the packages into it, once"
  local partial=$root.partial.$$
  # shellcheck disable=SC2046
  { as_root cp -a --reflink=auto "$base" "$partial" &&
    as_root rm "$partial/.complete" &&
    sealed "$in_root" "$partial" "$cache/archives" sh -c \
      'apt-get update $1 && flags=$2 && shift 2 && apt-get install $flags "$@"' sh "${update_flags[*]}" \
      "${apt_flags[*]} -o Dpkg::Options::=--force-unsafe-io" $(packages "${lists[@]}"); } >>"$log" 2>&1 </dev/null ||
    failed "install packages into the Debian 13 root"
  finish "$partial" "$root"
  # Roots of earlier package lists; one that is still wanted somewhere is made again.
  as_root find "$cache" -maxdepth 1 -name 'root-*' -mtime +60 -exec rm -rf --one-file-system {} +
}

# The bare system: debootstrap's minbase. The base of the image is made from it too, where it can't be pulled.
make_base() {
  local script=$suite partial=$base.partial.$$ keyring=/usr/share/keyrings/debian-archive-keyring.gpg include=
  get_debootstrap
  mkdir -p "$cache/debs"
  [[ $mirror != https:* ]] || include=--include=ca-certificates
  # Older debootstraps don't know the name yet; every suite since 2005 is made the same way.
  [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=sid
  say "making a Debian 13 root in $cache, once"
  sealed 'exec "$@"' debootstrap --variant=minbase --keyring="$keyring" --cache-dir="$cache/debs" $include \
    "$suite" "$partial" "$mirror" "/usr/share/debootstrap/scripts/$script" >"$log" 2>&1 </dev/null ||
    failed "make a Debian 13 root"
  # Nothing reads the manuals (licences are read), no service may start, and leaving out the fsyncs saves half a minute.
  as_root sh -c 'touch "$1/etc/hosts" "$1/etc/resolv.conf" # mount points
    printf "path-exclude=/usr/share/%s/*\n" doc man info locale >"$1/etc/dpkg/dpkg.cfg.d/headwise"
    printf "path-include=/usr/share/doc/*/copyright\n" >>"$1/etc/dpkg/dpkg.cfg.d/headwise" # for the dependency list
    printf "#!/bin/sh\nexit 101\n" >"$1/usr/sbin/policy-rc.d" && chmod +x "$1/usr/sbin/policy-rc.d"' sh "$partial"
  finish "$partial" "$base"
}

finish() {
  as_root touch "$1/.complete"
  as_root rm -rf --one-file-system "$2"
  as_root mv -T "$1" "$2"
}

# Runs a bash snippet with arguments as root, in mount and process namespaces of its own: what it mounts is gone with
# it, and if this ./dev is killed, so is everything that it started.
sealed() {
  as_root setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child \
    bash -euc "$1" sealed "${@:2}"
}

# The snippet that runs a command inside a root with a cache of package files.
in_root='
root=$1 archives=$2 && shift 2
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --bind "$archives" "$root/var/cache/apt/archives"
cat /etc/resolv.conf >"$root/etc/resolv.conf" || true
exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
  http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" no_proxy="${no_proxy:-}" "$@"'

get_debootstrap() {
  local missing
  missing=$(printf '%s\n' debootstrap debian-archive-keyring | missing_packages) || true
  [ -n "$missing" ] || return 0
  command -v apt-get >/dev/null ||
    die "this system has no apt: use a Debian machine or container, or install debootstrap and debian-archive-keyring"
  say "installing debootstrap"
  # shellcheck disable=SC2086
  { as_root apt-get update "${update_flags[@]}" &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install "${apt_flags[@]}" $missing; } \
    >"$log" 2>&1 </dev/null || failed "install debootstrap"
}

# --- where packages come from ----------------------------------------------------------------------------------------

# Prints this machine's Debian mirror. Many third parties use Debian's suite names, so an archive that is signed with
# Debian's key or whose path is "debian" comes before the others.
find_mirror() {
  [ -z "${HEADWISE_MIRROR:-}" ] || { echo "${HEADWISE_MIRROR%/}" && return; }
  local uri
  uri=$(apt_sources | awk -F '\t' '
    $1 ~ /^(https?|mirror\+file):/ && $2 ~ /^(buster|bullseye|bookworm|trixie|forky|duke|sid|stable|oldstable|testing|unstable)$/ && $3 ~ /(^| )main( |$)/ {
      score = ($1 ~ /\/debian\/?$/) * 2 + ($4 ~ /debian-archive/)
      if (score > best || !found) { best = score; found = $1 }
    }
    END { if (!found) exit 1; print found }') || return 1
  # Cloud images keep the address in a file of its own.
  [[ $uri != mirror+file:* ]] || uri=$(grep -m 1 -o '^[a-z]*:[^[:space:]]*' "${uri#mirror+file:}")
  echo "${uri%/}"
}

# Prints URI<tab>SUITE<tab>COMPONENTS<tab>KEY for every binary source of apt, both notations.
apt_sources() {
  local dir=${APT_SOURCES_DIR:-/etc/apt}
  # shellcheck disable=SC2046
  sed -n -e 's/#.*//' -e 's/^[[:space:]]*deb[[:space:]]*//p' $(ls "$dir"/sources.list "$dir"/sources.list.d/*.list 2>/dev/null) /dev/null |
    awk '{ key = ""
      if ($0 ~ /^\[/) { key = $0; sub(/\].*/, "", key); sub(/^\[[^]]*\][ \t]*/, "") }
      suite = $2; uri = $1; $1 = $2 = ""; print uri "\t" suite "\t" $0 "\t" key }'
  local file
  for file in "$dir"/sources.list.d/*.sources; do
    [ -r "$file" ] || continue
    awk -v RS= '
      { delete field; key = ""; n = split($0, lines, "\n")
        for (i = 1; i <= n; i++) {
          if (lines[i] ~ /^#/) continue
          if (lines[i] ~ /^[ \t]/) { field[key] = field[key] " " lines[i]; continue }
          colon = index(lines[i], ":"); key = tolower(substr(lines[i], 1, colon - 1))
          field[key] = substr(lines[i], colon + 1)
        }
        if (tolower(field["enabled"]) ~ /no/ || " " field["types"] " " !~ /[ \t]deb[ \t]/) next
        u = split(field["uris"], uris); s = split(field["suites"], suites)
        for (i = 1; i <= u; i++) for (j = 1; j <= s; j++)
          print uris[i] "\t" suites[j] "\t" field["components"] "\t" field["signed-by"]
      }' "$file"
  done
}

# Ends with a sentence unless the mirror answers. apt's own helper knows this machine's proxies.
reach() {
  local proxy
  proxy=$(apt-config shell proxy Acquire::http::Proxy 2>/dev/null) && eval "$proxy"
  [ -z "${proxy:-}" ] || export http_proxy=${http_proxy:-$proxy}
  local probe
  probe=$(mktemp -d)
  /usr/lib/apt/apt-helper -o Acquire::Retries=1 -o Acquire::http::Timeout=15 download-file "$1/dists/$suite/Release" "$probe/Release" >"$log" 2>&1 </dev/null ||
    { rm -rf "$probe" && die "the package mirror $1 doesn't answer: connect this machine to the network (HEADWISE_MIRROR names another mirror) and run ./dev again"; }
  rm -rf "$probe"
}

# Ends with one sentence; the details are in the log.
failed() {
  if grep -qiE "could not resolve|temporary failure|couldn't download|failed to fetch|unable to connect|network is unreachable" "$log"; then
    die "cannot $1, the package mirror doesn't answer: connect this machine to the network and run ./dev again (log: $log)"
  fi
  die "cannot $1: read $log, then run ./dev again"
}
