"""Kills the server at random moments under load, again and again: no acknowledged put is lost, none is torn.

Each round starts the server, checks every key written since, puts load on it and kills it with SIGKILL. Some kills come
while it starts. `larder inspect` must find the store sound every few rounds and at the end.

    python3 tests/clients/crash.py [--rounds 200] [--seed N] [--binary PATH]
"""

import argparse
import random
import sys
import time

from harness import Server, default_binary, scratch_folder
from workload import BUCKET, Clock, Failed, Journal, Load, Uploads, verify

INSPECT_EVERY = 10
LOAD_SECONDS = (0.05, 1.5)
START_SECONDS = (0.0, 0.4)
KILLED_WHILE_STARTING = 0.15


def inspect(server):
    code, report = server.inspect()
    if code != 0:
        raise Failed(f"inspect ended with {code}:\n{report[-3000:]}")


def one_round(server, journal, uploads, rng, seed, number):
    if rng.random() < KILLED_WHILE_STARTING:
        server.spawn()
        time.sleep(rng.uniform(*START_SECONDS))
        server.kill()
    server.start()
    verify(server, journal, uploads, whole=number % INSPECT_EVERY == 0)
    load = Load(server, journal, uploads, seed, round_number=number)
    load.start()
    time.sleep(rng.uniform(*LOAD_SECONDS))
    server.kill()
    load.join()
    if number % INSPECT_EVERY == 0:
        inspect(server)


def run(server, rounds, seed):
    journal, uploads, rng, clock = Journal(), Uploads(), random.Random(seed), Clock()
    server.start()
    server.boto3().create_bucket(Bucket=BUCKET)
    server.kill()
    for number in range(1, rounds + 1):
        try:
            one_round(server, journal, uploads, rng, seed, number)
        except Failed as failure:
            raise Failed(f"round {number}: {failure}") from failure
        clock.tell(f"round {number} of {rounds}, {journal.acknowledged} acknowledged")
    server.start()
    verify(server, journal, uploads, whole=True)
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
