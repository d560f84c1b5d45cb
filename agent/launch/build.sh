#!/bin/sh
# build.sh ARCH OUTDIR: compiles launch and attach for linux/ARCH (amd64, arm64) into OUTDIR.
# The same sources, compiler and ARCH give the same bytes.
set -eu

[ $# -eq 2 ] || { echo "usage: build.sh amd64|arm64 OUTDIR" >&2; exit 2; }
case $1 in
amd64) triplet=x86_64-linux-gnu package=gcc ;;
arm64) triplet=aarch64-linux-gnu package=gcc-aarch64-linux-gnu ;;
*) echo "build.sh: no such architecture: $1 (amd64, arm64)" >&2; exit 2 ;;
esac

cc=${CC:-$triplet-gcc}
command -v "$cc" >/dev/null || { echo "build.sh: $cc is missing; install Debian's package $package" >&2; exit 1; }

src=$(cd "$(dirname "$0")/native" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
cd "$src"
for program in launch attach; do
	"$cc" -std=gnu11 -Os -Wall -Wextra -Werror \
		-ffreestanding -fno-stack-protector -fno-pic -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns \
		-nostdlib -static -no-pie -s \
		-Wl,--build-id=none -Wl,-z,noexecstack -Wl,-z,norelro -Wl,--gc-sections \
		-o "$out/$program.tmp" "$program.c"
	mv "$out/$program.tmp" "$out/$program"
done
