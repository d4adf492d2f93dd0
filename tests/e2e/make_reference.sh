#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Writes docs/commands.md from what the built programs print: ./dev exec tests/e2e/make_reference.sh
set -euo pipefail
page=$(dirname "$0")/../../docs/commands.md
{
  printf '# Commands\n\nMade by `tests/e2e/make_reference.sh` from what the programs print; a test compares the two. The flags of\n'
  printf '`headwise-server` are in [operations.md](operations.md#all-flags). For completion in bash:\n'
  printf '`source <(headwise --completion)`; an installation has it in place.\n\n'
  headwise --reference
  headwise-load --reference
} >"$page.new"
mv "$page.new" "$page"
