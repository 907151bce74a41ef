"""python -m tests.fuzz --seconds 600"""

from __future__ import annotations

import argparse
import logging
import secrets

from tests.fuzz.run import execute, run
from tests.fuzz.targets import TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Feeds damaged bytes to what reads bytes."
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="of an earlier run, to repeat it")
    parser.add_argument("--only", choices=sorted(TARGETS), action="append", help="may be repeated; without it, all")
    parser.add_argument("--execution", type=int, help="run only this one, of one target")
    options = parser.parse_args()
    logging.getLogger("nri_rdma").setLevel(logging.CRITICAL)  # the session logs each payload that does not decode
    names = options.only or list(TARGETS)
    if options.execution is not None:
        for name in names:
            execute(name, TARGETS[name], options.seed, options.execution)
        return
    print(f"seed {options.seed}", flush=True)
    print(run(names, seed=options.seed, seconds=options.seconds))


if __name__ == "__main__":
    main()
