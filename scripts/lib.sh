# shellcheck shell=bash
# lib.sh: what the set-up scripts share. Sourced, never run.

# say prints one plain line about what happens now. Standard output stays free for results.
say() { printf "%s\n" "shoal: $*" >&2; }

# stop ends the script with the one line that the person must act on.
stop() {
	printf '%s\n' "shoal: $*" >&2
	exit 1
}

# can_install is true where packages may be installed without asking anybody:
# as root on a Debian or a descendant of it.
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && command -v dpkg >/dev/null; }

# has_package is true when the named Debian package is installed.
has_package() { dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

# apt_install installs the named packages without a question. Package lists are
# fetched only when the packages cannot be found in the ones that are there.
apt_install() {
	say "installing $* with apt"
	local options=(-y -qq --no-install-recommends -o DPkg::Lock::Timeout=300)
	export DEBIAN_FRONTEND=noninteractive
	if ! apt-get install "${options[@]}" --download-only "$@" >/dev/null 2>&1; then
		apt-get update -qq -o DPkg::Lock::Timeout=300 || say "apt-get update had trouble; trying with what there is"
	fi
	apt-get install "${options[@]}" "$@" </dev/null >"$APT_LOG" 2>&1 || {
		tail -n 15 "$APT_LOG" >&2
		return 1
	}
}
APT_LOG=$(mktemp -t shoal-apt.XXXXXX)
trap 'rm -f "$APT_LOG"' EXIT

# need makes sure that a command exists, from the package that holds it.
need() {
	local command=$1 package=$2
	command -v "$command" >/dev/null && return
	can_install || stop "$command is missing; run: sudo apt-get install $package"
	apt_install "$package" || stop "$command is missing and $package could not be installed"
}

# need_compiler makes sure that C compiles, headers included: for this machine
# (the race detector needs it, and the small programs of the image), or for the
# given architecture of Go's.
need_compiler() {
	local compiler=gcc packages=(gcc libc6-dev)
	if [ "${1:-native}" = arm64 ] && [ "$(uname -m)" != aarch64 ]; then
		compiler=aarch64-linux-gnu-gcc packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
	fi
	echo '#include <linux/seccomp.h>' | "$compiler" -E - >/dev/null 2>&1 && return
	can_install || stop "no C compiler; run: sudo apt-get install ${packages[*]}"
	apt_install "${packages[@]}" || stop "the C compiler could not be installed"
}
