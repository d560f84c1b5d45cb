#!/usr/bin/env bash
# lint.sh GOLANGCI_LINT GOFUMPT is every check that runs no test. It goes on after
# a finding, so that one run shows them all.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.." || exit

readonly golangci_lint=$1 gofumpt=$2
failed=()

# check runs one check under a name; a check fails by its exit code.
check() {
	local name=$1
	shift
	say "lint: $name"
	"$@" || failed+=("$name")
}

# formatted is gofumpt's own verdict: it lists the files that it would change.
formatted() {
	local files
	files=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 "$gofumpt" -l)
	[ -n "$files" ] || return 0
	printf 'not formatted (run make fmt):\n%s\n' "$files"
	return 1
}

check format formatted
check vet go vet ./...
check "go fix" go fix -diff ./...
check modules go mod tidy -diff
# What goes into the image is built for arm64 too; running it takes such a machine.
check "arm64 build" image/programs.sh bin/arm64 arm64
check golangci-lint "$golangci_lint" run ./...

[ ${#failed[@]} = 0 ] || stop "lint found something in: ${failed[*]}"
