"""Rounds of a server that is killed at random moments under load, for the tests that do that. Some kills come while it starts."""

import random
import time

from workload import BUCKET, Clock, Failed, Journal, Load, Uploads, verify

LOAD_SECONDS = (0.05, 1.5)
START_SECONDS = (0.0, 0.4)
KILLED_WHILE_STARTING = 0.15
WHOLE_EVERY = 10


def killed_under_load(server, journal, uploads, rng, seed, number):
    """One round: starts the server, checks what was written since, puts load on it and kills it."""
    if rng.random() < KILLED_WHILE_STARTING:
        server.spawn()
        time.sleep(rng.uniform(*START_SECONDS))
        server.kill()
    server.start()
    verify(server, journal, uploads, whole=number % WHOLE_EVERY == 0)
    load = Load(server, journal, uploads, seed, round_number=number)
    load.start()
    time.sleep(rng.uniform(*LOAD_SECONDS))
    server.kill()
    load.join()


def rounds_of_kills(server, rounds, seed, one_round):
    """Runs all rounds; the server is up then, with all that was acknowledged. Returns what was asked of it."""
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
    return journal, uploads
