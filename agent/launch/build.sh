#!/bin/sh
# build.sh OUTDIR [ARCH] compiles launch and attach into OUTDIR, for this machine's
# architecture or for ARCH (amd64, arm64). The same sources, compiler and
# architecture give the same bytes.
set -eu

[ $# -ge 1 ] || { echo "usage: build.sh OUTDIR [amd64|arm64]" >&2; exit 2; }
case ${2:-$(uname -m)} in
amd64 | x86_64) triplet=x86_64-linux-gnu package=gcc ;;
arm64 | aarch64) triplet=aarch64-linux-gnu package=gcc-aarch64-linux-gnu ;;
*) echo "build.sh: no such architecture: $2 (amd64, arm64)" >&2; exit 2 ;;
esac

cc=${CC:-$triplet-gcc}
command -v "$cc" >/dev/null || { echo "build.sh: $cc is missing; install Debian's package $package" >&2; exit 1; }

src=$(cd "$(dirname "$0")/native" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$src"
for program in launch attach; do
	"$cc" -std=gnu11 -Os -Wall -Wextra -Werror \
		-ffreestanding -fno-stack-protector -fno-pic -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns \
		-nostdlib -static -no-pie -s \
		-Wl,--build-id=none -Wl,-z,noexecstack -Wl,-z,norelro -Wl,--gc-sections \
		-o "$out/$program.tmp" "$program.c"
	mv "$out/$program.tmp" "$out/$program"
done
