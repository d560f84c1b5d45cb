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
# Two packages at once: each has tests beside each other and fills a core. A third
# makes nothing quicker and everything late. Vetting is make lint's.
go test -json -race -vet=off -shuffle=on -timeout 20m -p "${TEST_PACKAGES:-2}" "$@" | bin/testsum
