#!/usr/bin/env bash
# build.sh makes the sandbox image: shoal-sandbox:dev, and the same under a tag
# that is a hash of everything that goes into it. Where that tag exists already
# nothing is built. The last line on standard output is the hash tag.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
. "$root/scripts/lib.sh"

readonly name=shoal-sandbox context=$root/bin/image

# The label says which protocol the agent speaks: the constant of package agent.
protocol=$(sed -n 's/^\tProtocol *= *\([0-9]*\)$/\1/p' "$root/agent/protocol.go")
[ -n "$protocol" ] || stop "agent/protocol.go names no Protocol"
readonly protocol

# stage collects the build's context; its programs are static and reproducible.
stage() {
	rm -rf "$context"
	mkdir -p "$context/bin"
	cp "$here/Dockerfile" "$here/packages.txt" "$context/"
	if [ -d "$root/cmd/agent" ]; then
		"$here/programs.sh" "$context/bin"
	fi
}

# fingerprint hashes the context and whatever chooses the base.
fingerprint() {
	{
		cat "$here/base.sh"
		echo "${BASE:-} $protocol"
		cd "$context"
		find . -type f -print0 | sort -z | xargs -0 sha256sum
	} | sha256sum | cut -c1-12
}

build() {
	local tag=$1 base
	base=$("$here/base.sh")
	say "building $tag on $base"
	# The classic builder is part of every engine. Proxy settings are arguments
	# that it knows by itself and that do not stay in the image.
	DOCKER_BUILDKIT=0 docker build --quiet --force-rm --tag "$tag" \
		--build-arg BASE="$base" --build-arg PROTOCOL="$protocol" \
		--build-arg http_proxy --build-arg https_proxy --build-arg no_proxy \
		"$context" >"$APT_LOG" 2>&1 || {
		tail -n 20 "$APT_LOG" >&2
		stop "the sandbox image could not be built"
	}
}

main() {
	local tag
	mkdir -p "$root/bin"
	exec 9>"$root/bin/.image.lock" # one build at a time in this tree
	flock -w 600 9 || stop "another build of the image holds bin/.image.lock for 10 minutes"
	stage
	tag=$name:$(fingerprint)
	docker image inspect "$tag" >/dev/null 2>&1 || build "$tag"
	docker tag "$tag" "$name:dev"
	say "image $name:dev is $tag"
	echo "$tag"
}

main
