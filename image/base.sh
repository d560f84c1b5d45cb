#!/usr/bin/env bash
# base.sh prints the reference of the base image to build on and makes sure that
# the engine has it: $BASE (default debian:trixie-slim) from the engine or its
# registry, by digest; else the same base made with debootstrap from the
# machine's Debian mirror, with the packages of packages.txt already in it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../scripts/lib.sh"

readonly suite=trixie base=${BASE:-debian:trixie-slim} pull_seconds=${PULL_SECONDS:-180}

# present prints the image's digest, where it came from a registry, or its id.
present() {
	docker image inspect "$1" >/dev/null 2>&1 &&
		docker image inspect --format '{{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}{{.Id}}{{end}}' "$1"
}

# mirror prints the Debian mirror of the machine; nothing on other systems,
# where debootstrap then takes its own default.
mirror() {
	apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
		awk -F'|' '$1 == "Debian" && $2 == "Debian" { print $3; exit }'
}

# use_apt_proxy gives debootstrap the proxy that apt is configured with.
use_apt_proxy() {
	local proxy
	proxy=$(apt-config dump --format '%v' Acquire::http::Proxy)
	if [ -n "$proxy" ]; then export http_proxy=$proxy; fi
}

# slim removes what debian:*-slim leaves out too, and what belongs to this machine.
slim() {
	local root=$1
	rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/log/*.log
	find "$root/usr/share/doc" -mindepth 2 ! -type d ! -name copyright -delete
	rm -rf "$root"/usr/share/{man,info,locale,doc-base,lintian}/*
	rm -f "$root/etc/resolv.conf" "$root/etc/hostname" "$root/etc/machine-id"
}

# bootstrap makes the base in a temporary directory and imports it as $1.
bootstrap() {
	can_install || stop "no registry answers and there is no base image; run as root, or: docker load an image of $base"
	need debootstrap debootstrap
	use_apt_proxy
	say "no registry answers: making the base with debootstrap, which takes a minute or two"
	local packages
	work=$(mktemp -d -t shoal-base.XXXXXX) # global: the trap needs it at exit
	trap 'rm -rf "$work" "$APT_LOG"' EXIT
	packages=$(paste -sd, "$here/packages.txt")
	# shellcheck disable=SC2046 # no mirror means no argument
	debootstrap --variant=minbase --include="$packages" "$suite" "$work/root" $(mirror) >"$work/log" 2>&1 || {
		tail -n 15 "$work/log" "$work/root/debootstrap/debootstrap.log" >&2 || true
		stop "debootstrap could not make the base"
	}
	slim "$work/root"
	tar -C "$work/root" --numeric-owner -c . | docker import --change 'CMD ["bash"]' - "$1" >/dev/null
}

main() {
	local made
	made=shoal-base:$(cat "$0" "$here/packages.txt" | sha256sum | cut -c1-12)
	present "$base" && return
	if docker image inspect "$made" >/dev/null 2>&1; then
		echo "$made"
		return
	fi
	say "pulling $base"
	if timeout "$pull_seconds" docker pull --quiet "$base" >/dev/null 2>&1; then
		present "$base"
		return
	fi
	[ -z "${BASE:-}" ] || stop "the base image $BASE is not there and cannot be pulled"
	bootstrap "$made"
	echo "$made"
}

main
