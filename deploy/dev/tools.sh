# SPDX-License-Identifier: Apache-2.0
#
# Part of ./dev: builds the tools that strangers drive the server with, from their Go modules, into the cache. Needs go:
# the machine's own, or else Debian's golang-go, which is put where the toolchain is.
# shellcheck shell=bash disable=SC2154

tools=$cache/tools
# MODULE@VERSION. What is there already isn't built again.
tool_modules=(
  github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4
  github.com/grpc-ecosystem/grpc-health-probe@v0.4.63
  github.com/bojand/ghz/cmd/ghz@v0.93.0
)

# Static programs, so that they run inside and outside alike.
go_install='
export CGO_ENABLED=0 GOBIN=$1 GOPATH=$1/go GOCACHE=$1/go-build GOFLAGS="-modcacherw -trimpath" && shift
for module in "$@"; do go install "$module" || exit; done'

make_tools() {
  local module name missing=()
  mkdir -p "$tools/versions"
  for module in "${tool_modules[@]}"; do
    [ -e "$tools/versions/${module//\//_}" ] || missing+=("$module")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if command -v go >/dev/null; then
    bash -c "$go_install" go_install "$tools" "${missing[@]}"
  else
    set_up build "${build_lists[@]}"
    (become root sh -c 'command -v go >/dev/null || { apt-get update -q && apt-get install -q -y --no-install-recommends golang-go; }') >&2
    (become root bash -c "$go_install" go_install "$tools" "${missing[@]}")
  fi
  for module in "${missing[@]}"; do
    touch "$tools/versions/${module//\//_}"
    name=${module%@*} && say "made $tools/${name##*/}"
  done
}
