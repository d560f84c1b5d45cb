#!/usr/bin/env bash
# fuzz.sh runs every fuzz test of the tree for FUZZTIME each (20s by default), or
# those of the packages it is given. What it finds is left in the package's
# testdata/fuzz, where an ordinary test run takes it up.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- ./...
for package in $(go list "$@"); do
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		say "fuzzing $target of $package"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-20s}" "$package"
	done
done
