#!/usr/bin/env bash
# programs.sh DIR [ARCH] builds the programs of the image into DIR: the agent, and
# its static companions launch and attach. The same sources give the same bytes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"

out=$1 arch=${2:-$(go env GOARCH)}
mkdir -p "$out"
out=$(cd "$out" && pwd)
need_compiler "$arch"
cd "$root"
CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -buildvcs=false -ldflags='-s -w' -o "$out/agent" ./cmd/agent
agent/launch/build.sh "$out" "$arch"
