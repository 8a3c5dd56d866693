"""Kills the server at random moments under load, again and again: no acknowledged put is lost, none is torn.

Each round starts the server, checks every key written since, puts load on it and kills it with SIGKILL. Some kills come
while it starts. `larder inspect` must find the store sound every few rounds and at the end.

    python3 tests/clients/crash.py [--rounds 200] [--seed N] [--binary PATH]
"""

import argparse
import random
import sys

from harness import Server, default_binary, scratch_folder
from kills import killed_under_load, rounds_of_kills
from workload import Failed

INSPECT_EVERY = 10


def inspect(server):
    code, report = server.inspect()
    if code != 0:
        raise Failed(f"inspect ended with {code}:\n{report[-3000:]}")


def one_round(server, journal, uploads, rng, seed, number):
    killed_under_load(server, journal, uploads, rng, seed, number)
    if number % INSPECT_EVERY == 0:
        inspect(server)


def run(server, rounds, seed):
    journal, _ = rounds_of_kills(server, rounds, seed, one_round)
    if server.stop() != 0:
        raise Failed("the last stop was not clean")
    inspect(server)
    return journal.acknowledged


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"crash: {arguments.rounds} kills, seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        server = Server(arguments.binary, scratch / "store")
        try:
            acknowledged = run(server, arguments.rounds, arguments.seed)
        except (Failed, AssertionError) as failure:
            print(f"FAIL crash: {failure}\n{server.log_tail()}\n0 passed, 1 failed")
            return 1
        finally:
            server.kill()
    print(f"crash: {arguments.rounds} kills, {acknowledged} acknowledged operations, none lost, store sound")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
