# SPDX-License-Identifier: Apache-2.0
#
# Sourced by ./dev: builds the image with Docker or, where no engine answers, with buildah; starts it as a cluster
# would (read-only, not root, no capabilities), uses it, stops it, and checks what it weighs.
# shellcheck shell=bash

image=headwise:local
base_image=debian:trixie-slim
size_limit=$((120 * 1000 * 1000)) # bytes of the whole image, compressed as registries keep it
ready_limit_ms=1000               # from start to SERVING, without layers

make_image() {
  if has_engine; then
    engine=docker
  else
    # Building needs root, and buildah is in Debian 13.
    [ "$UID" = 0 ] || require_root "build an image without a Docker engine"
    if [ -z "${HEADWISE_IMAGE:-}" ]; then
      set_up image "${image_lists[@]}"
      export HEADWISE_IMAGE=entered
      become root "$tree/dev" image "$@"
    fi
    [ "$HEADWISE_IMAGE" = sealed ] || seal
    command -v buildah >/dev/null || die "no buildah in here: run ./dev image outside of ./dev shell and ./dev exec"
    engine=buildah
  fi
  mkdir -p "$cache/image"
  exec 9>"$cache/image/lock"
  flock -n 9 || { say "waiting for another ./dev image" && flock 9; }
  work=$(mktemp -d)
  trap clean_up EXIT
  "${engine}_build"
  check_size
  smoke_test
  say "the image is $image ($engine)"
}

# Runs this verb in a process namespace of its own: buildah leaves the commands of a killed build running.
seal() {
  local sealed status=0
  HEADWISE_IMAGE=sealed setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount-proc "$tree/dev" image &
  sealed=$!
  trap 'kill -KILL "$sealed"' HUP INT TERM
  wait "$sealed" || status=$?
  exit "$status"
}

has_engine() { command -v docker >/dev/null && timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# --- Docker ----------------------------------------------------------------------------------------------------------

docker_build() { DOCKER_BUILDKIT=1 docker build -t "$image" "$tree" >&2; }

docker_tar() { docker save "$image"; }

docker_user() { docker image inspect -f '{{.Config.User}}' "$image"; }

docker_start() {
  container=$(docker run -d --read-only --cap-drop ALL --security-opt no-new-privileges --network host --tmpfs /tmp \
    -v "$tree/tests/data:/models:ro" "$image" "$@")
  docker logs -f "$container" >"$work/out" 2>"$work/err" &
}

docker_client() { docker exec "$container" "$@"; }

docker_stop() {
  docker stop -t 60 "$container" >/dev/null
  return "$(docker wait "$container")"
}

docker_clean_up() { [ -z "${container:-}" ] || docker rm -f "$container" >/dev/null; }

# --- buildah ---------------------------------------------------------------------------------------------------------

store() { buildah --storage-driver vfs --root "$cache/image/storage" --runroot "$cache/image/run" "$@"; }

buildah_build() {
  # Where build caches live: buildah takes this folder for its temporary files.
  export TMPDIR=$cache/image/tmp
  mkdir -p "$TMPDIR"
  store rm --all >/dev/null # what a killed run left
  [ -n "$(store images -q "$base_image" 2>/dev/null)" ] || get_base_image
  # The compiler cache of ./dev is shared, but root must not write into that of a user who came through sudo.
  local -a share=()
  [ -n "${SUDO_UID:-}" ] || { mkdir -p "$CCACHE_DIR" && share=(-v "$CCACHE_DIR:/shared-ccache" --build-arg CCACHE_DIR=/shared-ccache); }
  # No layer cache: with vfs every layer is a full copy. The package and compiler caches make the next build fast.
  store build --isolation chroot --network host --format docker --pull=never "${share[@]}" \
    --ulimit "nofile=$(ulimit -Hn):$(ulimit -Hn)" --ulimit "nproc=$(ulimit -Hu):$(ulimit -Hu)" -t "$image" "$tree" >&2
  store rmi --prune >/dev/null
  mounted=$(store from --pull=never "$image") && image_root=$(store mount "$mounted")
}

# Pulls the base, or makes one of the same content from debootstrap's folder.
get_base_image() {
  # shellcheck disable=SC2310
  (export -f store && export cache && timeout 60 bash -c 'store pull "$1"' sh "$base_image") >"$work/pull" 2>&1 && return
  say "$base_image can't be pulled: making it with debootstrap"
  . "$tree/deploy/dev/set-up.sh"
  [ -e "$base/.complete" ] || { mirror=$(find_mirror) && make_base; }
  local container folder
  container=$(store from scratch)
  folder=$(store mount "$container")
  cp -a "$base/." "$folder"
  rm -rf "$folder/.complete" "$folder"/var/cache/apt/*.bin "$folder"/var/cache/apt/archives/*.deb \
    "$folder"/var/lib/apt/lists/* "$folder"/usr/share/{doc,man,info,locale}/*
  store config --cmd bash "$container"
  store commit --quiet "$container" "$base_image" >&2
  store rm "$container" >/dev/null
}

buildah_tar() { tar -C "$image_root" -c .; }

buildah_user() { store inspect --format '{{.OCIv1.Config.User}}' "$image"; }

# Runs a command in the image as a container engine would, in namespaces of its own: read-only, process 1, not root,
# no capabilities. The network is the caller's.
contained='
root=$1 models=$2 && shift 2
mount --bind "$root" "$root" && mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount -t tmpfs tmpfs "$root/tmp"
mount --bind "$models" "$root/models" && mount -o remount,bind,ro "$root/models"
exec chroot "$root" setpriv --reuid 65532 --regid 65532 --clear-groups --inh-caps=-all --bounding-set=-all \
  --no-new-privs env -i PATH=/usr/local/bin:/usr/bin:/bin "$@"'

contain() {
  exec unshare --mount --propagation private --pid --fork --kill-child \
    bash -euc "$contained" contained "$image_root" "$tree/tests/data" "$@"
}

buildah_start() {
  local -a entry
  mapfile -t entry < <(store inspect --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}' "$image" | sed '/^$/d')
  (contain "${entry[@]}" "$@") >"$work/out" 2>"$work/err" &
  container=$!
}

buildah_client() { (contain "$@"); }

# The server is process 1 of its namespace: the only child of unshare.
buildah_stop() {
  kill -TERM "$(cat "/proc/$container/task/$container/children")"
  wait "$container"
}

buildah_clean_up() {
  [ -z "${container:-}" ] || kill -KILL "$container" 2>/dev/null || true
  store rm --all >/dev/null 2>&1 || true
}

# --- what is checked -------------------------------------------------------------------------------------------------

clean_up() {
  "${engine}_clean_up"
  rm -rf "$work"
}

check_size() {
  local size
  size=$("${engine}_tar" | gzip | wc -c)
  printf 'image: %d.%d MB compressed, %s included (limit %d MB)\n' $((size / 1000000)) $((size / 100000 % 10)) \
    "$base_image" $((size_limit / 1000000))
  [ "$size" -le "$size_limit" ] || die "the image is too large"
}

# Starts the server in the image with these arguments and waits until it is healthy: sets `address`, and `ready_ms`
# from the start to its first healthy answer.
start_server() {
  local line i began=${EPOCHREALTIME/./}
  : >"$work/out" # not there yet when it is first read, otherwise
  "${engine}_start" --listen 127.0.0.1:0 --metrics 127.0.0.1:0 "$@"
  for ((i = 0; i < 1000; i++)); do
    line=$(head -n 1 "$work/out")
    [ -z "$line" ] || break
    sleep 0.02
  done
  [[ $line =~ ^listening\ ([0-9.:]+)\ metrics\ ([0-9.:]+)$ ]] || broken "no listening line"
  address=${BASH_REMATCH[1]}
  for ((i = 0; i < 500; i++)); do
    "${engine}_client" headwise --server "$address" health >"$work/health" 2>&1 && break
    sleep 0.02
  done
  [ "$i" -lt 500 ] || broken "health"
  ready_ms=$(((${EPOCHREALTIME/./} - began) / 1000))
}

stop_server() {
  "${engine}_stop" || broken "SIGTERM: exit code $?"
  container=
}

smoke_test() {
  local address ready_ms inputs=/models/minilm/inputs.safetensors
  case $("${engine}_user") in
    '' | root* | 0*) die "the image runs as root" ;;
  esac
  start_server
  stop_server
  echo "image: ready $ready_ms ms after its start, without layers (limit $ready_limit_ms ms)"
  [ "$ready_ms" -le "$ready_limit_ms" ] || die "the image starts too slowly"
  start_server --demo
  cat "$work/health"
  "${engine}_client" headwise --server "$address" load m0 --checkpoint minilm --layer 0 || broken "load"
  "${engine}_client" sh -c 'headwise --server "$1" forward m0 --input "$2:layer0.x" --lengths-from "$2:lengths" \
    --output /tmp/y.safetensors && test -s /tmp/y.safetensors' sh "$address" "$inputs" || broken "forward"
  stop_server
  echo "image: health, load, forward and SIGTERM work"
}

broken() {
  sed 's/^/server: /' "$work/err" >&2
  die "the image doesn't work: $1"
}
