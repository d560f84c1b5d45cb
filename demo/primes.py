"""Count primes for a few seconds: progress on stdout, warnings on stderr."""
import json
import sys
import time

path = "/workspace/numbers.json"
with open(path) as f:
    numbers = json.load(f)

limit, rounds = numbers["limit"], numbers["rounds"]
found = 0
for step in range(1, rounds + 1):
    begin, end = 2 + (step - 1) * limit // rounds, 2 + step * limit // rounds
    until = time.monotonic() + 0.3
    count = sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(begin, end))
    while time.monotonic() < until:
        pow(3, 10**5, 10**9 + 7)
    found += count
    print(f"step {step} of {rounds}: {found} primes below {end}", flush=True)
    # Two pipes keep no order between them finer than their reader's pace.
    time.sleep(0.2)
    if step % 2 == 0:
        print(f"warning: step {step} took a while", file=sys.stderr, flush=True)

numbers["primes"] = found
with open(path, "w") as f:
    json.dump(numbers, f)
sys.exit(3)  # on purpose: the exit code is the program's own
