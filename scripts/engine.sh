#!/usr/bin/env bash
# engine.sh makes sure that a Docker engine answers. Where none does, as root on
# Debian or Ubuntu, it installs docker.io and starts dockerd, which goes on
# running after this script; elsewhere it prints the one line to act on.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

readonly log=/var/log/dockerd.log wait_seconds=60

answers() { command -v docker >/dev/null && timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# refused is true when an engine is there and only the permission is missing.
refused() { timeout 10 docker version 2>&1 | grep -qi 'permission denied'; }

install_engine() {
	if ! command -v dockerd >/dev/null; then
		apt_install docker.io || stop "docker.io could not be installed; install a Docker engine, then run this again"
	fi
	# Newer releases keep the command line in a package of its own.
	command -v docker >/dev/null || apt_install docker-cli || stop "the docker command is missing; install it, then run this again"
}

# start_engine starts dockerd the way the machine starts services, or by itself
# in a session of its own where there is no service manager (a container).
start_engine() {
	if [ -d /run/systemd/system ]; then
		systemctl start docker || stop "docker did not start; see: journalctl -u docker"
		return
	fi
	say "starting dockerd, log in $log"
	setsid --fork dockerd >>"$log" 2>&1 </dev/null 9>&-
}

await_engine() {
	local deadline=$((SECONDS + wait_seconds))
	until answers; do
		if [ $SECONDS -ge $deadline ]; then
			[ -r "$log" ] && tail -n 20 "$log" >&2
			stop "dockerd does not answer after $wait_seconds s; its log is $log"
		fi
		sleep 0.3
	done
	say "Docker engine $(docker version --format '{{.Server.Version}}') answers"
}

main() {
	answers && return
	[ -z "${DOCKER_HOST:-}" ] || stop "no engine answers at DOCKER_HOST=$DOCKER_HOST; start it or unset DOCKER_HOST"
	if command -v docker >/dev/null && refused; then
		stop "no permission on the Docker socket; run: sudo usermod -aG docker $(id -un), then log in again"
	fi
	can_install || stop "no Docker engine answers; run: sudo apt-get install docker.io && sudo systemctl start docker"
	exec 9>/run/lock/shoal-engine.lock
	flock -w 600 9 || stop "another set-up holds /run/lock/shoal-engine.lock for 10 minutes"
	answers && return
	install_engine
	answers || start_engine # some packages start the service themselves
	await_engine
}

main
