#!/usr/bin/env bash
# demo.sh shows the main path: a worker, a sandbox, a program whose output
# arrives while it runs, a file that goes in and comes back, and nothing left.
# It fails when any of that is not as it should be.
set -euo pipefail
cd "$(dirname "$0")/.."

fleet=demo-$$
state=$(mktemp -d)
export SHOAL_STATE_DIR=$state SHOAL_FLEET=$fleet
worker=
box=demo

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
stop() {
	printf 'demo: %s\n' "$*" >&2
	[ -s "$state/worker.log" ] && tail -n 20 "$state/worker.log" >&2
	exit 1
}

left() {
	docker ps -aq --filter "label=shoal.fleet=$fleet"
	docker volume ls -q --filter "label=shoal.fleet=$fleet"
	docker network ls -q --filter "label=shoal.fleet=$fleet"
}

# An interrupted demo leaves nothing either.
clean_up() {
	if [ -n "$worker" ] && kill -0 "$worker" 2>/dev/null; then
		timeout 60 bin/shoal rm "$box" >/dev/null 2>&1 || true
		kill "$worker" 2>/dev/null || true
		wait "$worker" 2>/dev/null || true
	fi
	rm -rf "$state"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

start_worker() {
	bin/worker >"$state/worker.log" 2>&1 &
	worker=$!
	for _ in $(seq 100); do
		[ -s "$state/nats.json" ] && bin/shoal workers 2>/dev/null | grep -q serving && return
		kill -0 "$worker" 2>/dev/null || stop "the worker ended"
		sleep 0.1
	done
	stop "the worker does not answer after 10 s"
}

# stamp prints each line with the time at which it arrived.
stamp() {
	local line begin=${EPOCHREALTIME/./} now
	while IFS= read -r line; do
		now=${EPOCHREALTIME/./}
		printf '%6d ms  %s\n' $(((now - begin) / 1000)) "$line"
	done
}

# check_output compares each stream with what the program writes, in its order,
# and the times of arrival with the time that it takes. Between two pipes there
# is no order finer than their reader's pace, so a busy machine may swap lines of
# different streams.
check_output() {
	local steps warnings
	steps=$(grep -Eo 'step [0-9]+ of 6:' "$1" | tr -dc '0-9 \n' | awk '{ printf "%s", $1 }')
	warnings=$(grep -Eo 'warning: step [0-9]+' "$1" | awk '{ printf "%s", $3 }')
	[ "$steps $warnings" = "123456 246" ] ||
		stop "the output is not what the program wrote, in its order: steps $steps, warnings $warnings"
	local first last
	first=$(awk 'NR == 1 { print $1 }' "$1")
	last=$(awk 'END { print $1 }' "$1")
	[ $((last - first)) -gt 1500 ] || stop "the output did not arrive while the program ran"
}

say "1. A worker, with a NATS server of its own"
start_worker
bin/shoal workers

say "2. A sandbox: no network, one core, 512 MiB"
bin/shoal create "$box" --memory-mb 512
bin/shoal exec "$box" -- id

say "3. A file and a program go in"
echo '{"limit": 60000, "rounds": 6}' | bin/shoal cp - "$box:numbers.json"
bin/shoal cp demo/primes.py "$box:primes.py"
bin/shoal exec "$box" -c 'ls -l; cat numbers.json'

say "4. The program runs; its output and its warnings arrive live, each in order"
set +e
bin/shoal exec "$box" -- python3 primes.py 2>&1 | stamp | tee "$state/output"
code=${PIPESTATUS[0]}
set -e
echo "exit code $code"
[ "$code" -eq 3 ] || stop "the exit code should be the program's, 3"
check_output "$state/output"

say "5. The file that it changed comes back"
bin/shoal cp "$box:numbers.json" -
echo
bin/shoal cp "$box:numbers.json" - | grep -q '"primes": 6057}' || stop "the file does not hold what the program computed"

say "6. The sandbox is destroyed; nothing of it is left in the engine"
[ -n "$(left)" ] || stop "there should be a container and its volumes by now"
bin/shoal rm "$box"
[ -z "$(left)" ] || stop "left behind: $(left)"
echo "containers, volumes, networks of this demo: none"
