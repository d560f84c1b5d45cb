#!/usr/bin/env bash
# test.sh runs every test of the tree, or those of the packages it is given. Run
# through make, which has brought the engine up and put the image into SHOAL_IMAGE.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

need_compiler # for the race detector
# The longest first, so that none of them runs alone at the end.
[ $# -gt 0 ] || set -- ./docker ./e2e ./docker/filter ./e2b ./fleet ./sandbox/sandboxtest ./...
go build -o bin/testsum ./scripts/testsum
# Three packages at once on two cores: most of them wait for the engine.
go test -json -race -shuffle=on -timeout 20m -p "${TEST_PACKAGES:-3}" "$@" | bin/testsum
