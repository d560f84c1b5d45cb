#!/usr/bin/env bash
# runsc.sh registers gVisor's runsc as a runtime of the Docker engine when it
# can, and says so when it cannot. It never fails: tests under gVisor are
# skipped, and counted, where the engine does not offer the runtime.
#
# Run before the engine's first start it needs no restart; a running dockerd
# reads its runtimes again on SIGHUP.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

readonly config=${DOCKERD_CONFIG:-/etc/docker/daemon.json}

# The ptrace platform and no network stack of its own work on every kernel,
# also where there is neither KVM nor a cgroup v2.
readonly entry='"runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--platform=ptrace", "--network=none"]}'

registered() { timeout 10 docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q '"runsc"'; }

give_up() {
	say "runsc is not registered, so tests under gVisor will be skipped: $*"
	exit 0
}

main() {
	registered && return
	[ -z "${DOCKER_HOST:-}" ] || give_up "the engine at DOCKER_HOST is not this script's to change"
	can_install || give_up "that takes root on Debian or Ubuntu"
	[ -x /usr/bin/runsc ] || apt_install runsc || give_up "the package runsc could not be installed"
	if [ ! -e "$config" ]; then
		say "writing $config with the runtime runsc"
		mkdir -p "$(dirname "$config")"
		printf '{"runtimes": {%s}}\n' "$entry" >"$config"
	elif ! grep -q '"runsc"' "$config"; then
		give_up "$config exists and is left alone; add to its \"runtimes\": $entry"
	fi
	local pid
	pid=$(cat /run/docker.pid 2>/dev/null || cat /var/run/docker.pid 2>/dev/null) || return 0
	kill -HUP "$pid" 2>/dev/null || return 0 # a left-over file: the first start reads the configuration
	sleep 1
	registered || give_up "dockerd did not take it up on SIGHUP; restart it"
}

main
