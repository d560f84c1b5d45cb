#!/usr/bin/env bash
# clean.sh removes the sandbox images that this project built, where an engine
# answers. The base image stays, as it takes minutes to make; so does the engine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

command -v docker >/dev/null && timeout 10 docker version >/dev/null 2>&1 || exit 0
mapfile -t images < <(docker images --format '{{.Repository}}:{{.Tag}}' | grep -E '^shoal-sandbox:' || true)
[ ${#images[@]} -gt 0 ] || exit 0
say "removing ${images[*]}"
docker rmi "${images[@]}" >/dev/null || say "some images are in use and stay"
