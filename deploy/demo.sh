#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The README's commands on real trained layers, with their output. Started by ./dev demo [--layer I].
set -euo pipefail
cd "$(dirname "$0")/.."

layer=0
while [ $# -gt 0 ]; do
  case "$1" in
    --layer) layer="${2:?demo: --layer takes a number from 0 to 5}"; shift 2 ;;
    --layer=*) layer="${1#*=}"; shift ;;
    *) echo "demo: --layer I is the only argument; was $1" >&2; exit 2 ;;
  esac
done
case "$layer" in
  [0-5]) ;;
  *) echo "demo: layer must be 0 to 5 (MiniLM has six); was $layer" >&2; exit 2 ;;
esac

work="$(mktemp -d)"
server=""
finish() {
  if [ -n "$server" ]; then
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

headwise-server --listen 127.0.0.1:0 --metrics 127.0.0.1:0 --repository tests/data \
  --demo --demo-layer "$layer" >"$work/server.out" 2>"$work/server.log" &
server=$!
address=""
for _ in $(seq 300); do
  read -r _ address _ <"$work/server.out" 2>/dev/null || true
  [ -n "$address" ] && break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
if [ -z "$address" ]; then
  echo "demo: the server did not start:" >&2
  cat "$work/server.log" >&2
  exit 1
fi
for _ in $(seq 300); do
  headwise --server "$address" health >/dev/null 2>&1 && break
  sleep 0.1
done

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
# Shows a command as the README has it and runs it against the demo's server.
run() {
  local program="$1"
  shift
  printf '$ %s %s\n' "$program" "$*"
  "$program" --server "$address" "$@"
}

minilm=tests/data/minilm/inputs.safetensors
smollm2=tests/data/smollm2/inputs.safetensors

say "The layers that the server holds (a chapter's two-head layer, and layers of two trained models)"
run headwise list

say "Forward: 24 English sentences through layer $layer of all-MiniLM-L6-v2, 538 tokens packed, nothing padded"
run headwise forward minilm --input "$minilm:layer$layer.x" --lengths-from "$minilm:lengths" --output "$work/y.safetensors"

say "Ablation: what each of its 12 heads contributes to the layer's output, from one forward"
run headwise ablate minilm --sweep leave-one-out --input "$minilm:layer$layer.x" --lengths-from "$minilm:lengths"

say "The same for the 3 key/value groups of a decoder: SmolLM2-135M, layer 0, causal, grouped heads, RoPE"
run headwise ablate smollm2 --sweep leave-one-out --target groups --input "$smollm2:layer0.x" --lengths-from "$smollm2:lengths"

say "Counting: parameters and work of a width of 512 in 8 heads, 2 sequences of 10 tokens"
run headwise count --width 512 --heads 8 --batch 2 --queries 10

say "The chapter's two heads worked in full: three tokens, every number, from a layer typed as JSON"
run headwise trace --layer-json tests/data/two_head/layer.json

say "An exercise on that layer, answered wrongly"
run headwise exercise two-head --kind shape --seed 1 --answer 3,5,2,4 || true

say "Load test: 4 clients for 3 seconds, sequences of 16 to 64 tokens"
run headwise-load minilm --concurrency 4 --duration 3s --lengths uniform:16-64

say "Nothing is left running. To start the server for yourself:"
cat <<'END'
$ ./dev exec headwise-server --repository tests/data --demo
and, in a second terminal:
$ ./dev exec headwise list
END
