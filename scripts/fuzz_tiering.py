"""Run seeded schedules of faults through the tiered cache; print the seed of each failure. ``--seed`` replays one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from warmtier.testing.invariants import BrokenInvariantError
from warmtier.testing.schedules import run_schedule

_BATCH = 100


def run_batch(first: int, count: int, steps: int) -> tuple[int, list[str]]:
    """Run ``count`` seeds from ``first``; return the loads checked and the failures."""
    loads, failures = 0, []
    for seed in range(first, first + count):
        try:
            loads += run_schedule(seed, steps).loads
        except BrokenInvariantError as error:
            failures.append(str(error))
    return loads, failures


def main() -> int:
    """Parse, run, report; exit 1 if a schedule failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=60, help="scheduler steps per schedule")
    parser.add_argument("--seed", type=int, help="replay one seed, with its traceback")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    args = parser.parse_args()
    if args.seed is not None:
        run_schedule(args.seed, args.steps)
        print(f"seed {args.seed}: no failure")
        return 0
    started_s = time.monotonic()
    starts = range(args.first, args.first + args.schedules, _BATCH)
    counts = [min(_BATCH, args.first + args.schedules - first) for first in starts]
    loads, failures = 0, []
    with ProcessPoolExecutor(args.jobs) as pool:
        for found, failed in pool.map(run_batch, starts, counts, [args.steps] * len(counts)):
            loads += found
            failures += failed
    for failure in failures:
        print(f"{failure}\n  replay: python scripts/fuzz_tiering.py --steps {args.steps} --seed N", file=sys.stderr)
    seconds = time.monotonic() - started_s
    print(f"{args.schedules} schedules, {loads} loads checked, {len(failures)} failures, {seconds:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
