"""Machines lose their managers' directories, all or a majority, while all are killed under load. `larder recover` makes managers anew
from the maps that the other servers keep: every acknowledged object is there, and nothing is given a second time.

In the second part one machine is lost with all that it had, too. It is removed afterwards, and comes in anew.

    python3 tests/clients/recover.py [--seed N] [--turns N] [--binary PATH]
"""

import argparse
import contextlib
import pathlib
import random
import shutil
import subprocess
import sys
import time

from botocore.exceptions import BotoCoreError, ClientError
from harness import content, default_binary, scratch_folder
from peers import Machine, equal_machines, ready, run, secret_file, until, whole
from workload import BUCKET, Clock, Failed, Journal, Load, Uploads, verify

SERVERS = 12
LOAD_SECONDS = 4
SAID_SECONDS = 20
DECIDED_SECONDS = 60
FILL_KEYS, FILL_BYTES = 60, 300_000
SAYS = "manager has lost its directory"
ROLES = ("meta", "data", "proxy")


class LastingMachine(Machine):
    """One whose certificates outlast a drill."""

    certificate_life = "30d"


class Drill:
    """Three machines, and what was acknowledged of them."""

    def __init__(self, binary, scratch, rng):
        self.binary, self.scratch, self.rng, self.clock = binary, scratch, rng, Clock(every=1)
        secret = secret_file(binary, scratch / "secret")
        self.machines = equal_machines(LastingMachine, binary, scratch, secret)
        self.journal, self.uploads, self.rounds, self.checks = Journal(), Uploads(), 0, 0
        self.buckets, self.undecided = {}, ""

    def start(self, machines):
        for machine in machines:
            machine.spawn()

    def load_and_kill(self):
        """Kills all machines under load, in any order, with a bucket made just before."""
        s3, self.rounds = self.machines[0].boto3(), self.rounds + 1
        load = Load(self.machines[self.rounds % 3], self.journal, self.uploads, self.rng.random(), round_number=self.rounds)
        load.start()
        time.sleep(LOAD_SECONDS)
        name = f"late-{self.rounds}"
        s3.create_bucket(Bucket=name)
        s3.put_object(Bucket=name, Key="key", Body=content(name, 9_000))
        self.buckets[name] = content(name, 9_000)
        load.cut.set()
        for machine in self.rng.sample(self.machines, 3):
            machine.kill()
        load.join()

    def maps(self, machines):
        """What machines keep of the map, and the logs of managers that are left."""
        maps = [machine.directory / role / "cluster-map" for machine in machines for role in ROLES]
        logs = [machine.directory / "manager" / "quorum" / "log" for machine in machines]
        return maps + [log for log in logs if log.exists()]

    def make(self, machines, *words, code=0, out=None):
        out = out or self.scratch / f"recovery-{self.rounds}"
        return out, run(self.binary, "recover", "make", *self.maps(machines), "--out", out, *words, code=code)

    def decided(self, machines):
        """Waits until puts that were cut off are decided, some of them without the data servers that are gone."""
        s3 = machines[0].boto3()

        def is_decided():
            try:
                for key in self.journal.keys():
                    with contextlib.suppress(s3.exceptions.NoSuchKey):
                        s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
                for upload, (key, _) in self.uploads.open.items():
                    s3.list_parts(Bucket=BUCKET, Key=key, UploadId=upload)
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
                    raise
                self.undecided = str(error)
                return False
            return True

        until("decided", DECIDED_SECONDS, is_decided, machines, lambda: self.undecided)
        self.clock.tell("what was cut off is decided")

    def check(self, machines):
        """What was acknowledged is there, and new puts and buckets take no place of it."""
        s3 = machines[-1].boto3()
        self.decided(machines)
        verify(machines[0], self.journal, self.uploads, whole=True)
        self.checks += 1
        new = f"new-{self.checks}"
        s3.create_bucket(Bucket=new)
        if s3.list_objects_v2(Bucket=new).get("KeyCount"):
            raise Failed("a new bucket has objects of another")
        for number in range(FILL_KEYS):
            s3.put_object(Bucket=new, Key=str(number), Body=content(f"{new}/{number}", FILL_BYTES))
        for name, expected in self.buckets.items():
            if s3.get_object(Bucket=name, Key="key")["Body"].read() != expected:
                raise Failed(f"{name}/key reads otherwise than it was put")
        verify(machines[-1], self.journal, self.uploads, whole=True)


def loses_managers(drill, lost):
    """All machines are killed, and managers' directories of some are gone."""
    machines = drill.machines
    drill.load_and_kill()
    for machine in lost:
        shutil.rmtree(machine.directory / "manager")
    drill.start(machines)
    status = subprocess.run([drill.binary, "status", lost[0].directory], capture_output=True, text=True, timeout=60)
    if status.returncode == 0 or "identity" in status.stdout + status.stderr:
        raise Failed(f"the status without managers: {status.returncode}, {status.stdout}{status.stderr}")
    until("said", SAID_SECONDS, lambda: all(SAYS in machine.log.read_text() for machine in lost), machines)
    try:
        machines[0].boto3(read_timeout=5).put_object(Bucket=BUCKET, Key="new", Body=b"x")
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
            raise
    except BotoCoreError:
        # Its proxy waits for the managers.
        pass
    else:
        raise Failed("a put was served without managers")
    early, _ = drill.make(machines, out=drill.scratch / f"early-{drill.rounds}")
    said = run(drill.binary, "recover", "take", early, machines[0].directory, code=3)
    if "in use" not in said:
        raise Failed(f"a machine that runs takes a recovery: {said}")
    for machine in machines:
        machine.kill()
    _, said = drill.make(machines[1:], code=1, out=drill.scratch / "none")
    if machines[0].name not in said or "--lost" not in said:
        raise Failed(f"maps are missing, and nobody says which: {said}")
    recovery, said = drill.make(machines)
    if recovery.stat().st_mode & 0o77:
        raise Failed("others may read the recovery")
    for machine in machines:
        said = run(drill.binary, "recover", "take", recovery, machine.directory)
        if said.count("has taken the recovery") != 4:
            raise Failed(f"not all servers of {machine.name} have taken it: {said}")
    # One that was cut off is repeated.
    run(drill.binary, "recover", "take", recovery, machines[1].directory)
    drill.start(machines)
    ready(machines)
    drill.clock.tell(f"ready again without {len(lost)} managers' directories")
    drill.check(machines)
    whole(machines[0], machines, SERVERS)
    goes_on(drill, recovery)


def goes_on(drill, recovery):
    """Taken again, a recovery changes nothing, and a manager that has forgotten what it agreed to is not made from it."""
    machine = drill.machines[2]
    if machine.stop():
        raise Failed(f"a stop that was not clean:\n{machine.log_tail()}")
    said = run(drill.binary, "recover", "take", recovery, machine.directory)
    if said.count("left as it is") != 4:
        raise Failed(f"a machine that has gone on has taken the recovery again: {said}")
    log = machine.directory / "manager" / "quorum" / "log"
    whole_log = log.read_bytes()
    log.write_bytes(whole_log[:40] + b"damaged!" + whole_log[48:])
    said = run(drill.binary, "recover", "take", recovery, machine.directory, code=1)
    if "not made anew twice" not in said:
        raise Failed(f"a manager's log that cannot be read: {said}")
    log.write_bytes(whole_log)
    aside = machine.directory / "manager-aside"
    (machine.directory / "manager").rename(aside)
    said = run(drill.binary, "recover", "take", recovery, machine.directory, code=2)
    if "larder remove" not in said:
        raise Failed(f"an emptied manager: {said}")
    # It was mounted late: whoever starts the machine starts it again.
    said = machine.log.read_text().count(SAYS)
    machine.spawn()
    until("said", SAID_SECONDS, lambda: machine.log.read_text().count(SAYS) > said, [machine])
    aside.rename(machine.directory / "manager")
    if machine.process.wait(SAID_SECONDS) != 4:
        raise Failed(f"a manager's directory has come back: {machine.log_tail()}")
    machine.kill()
    machine.spawn()
    ready(drill.machines)


def loses_a_machine(drill):
    """One machine is lost with all that it had, and all managers' directories besides."""
    gone, left = drill.machines[0], drill.machines[1:]
    drill.load_and_kill()
    shutil.rmtree(gone.directory)
    for machine in left:
        shutil.rmtree(machine.directory / "manager")
    _, said = drill.make(left, code=1, out=drill.scratch / "none")
    if gone.name not in said:
        raise Failed(f"a machine is lost, and nobody says which: {said}")
    recovery, said = drill.make(left, "--lost", gone.name)
    if f"{gone.name}/data" not in said:
        raise Failed(f"what is lost is not told: {said}")
    for machine in left:
        run(drill.binary, "recover", "take", recovery, machine.directory)
    drill.start(left)
    ready(left)
    drill.clock.tell("ready again without a machine")
    # Before that a put is in doubt whose data may lie there alone.
    run(drill.binary, "remove", "--config", left[0].directory, gone.name, "--yes")
    drill.check(left)
    gone.directory.mkdir()
    gone.spawn()
    ready(drill.machines)
    whole(left[0], drill.machines, SERVERS)
    drill.clock.tell("the machine has come in anew")
    drill.check(drill.machines)


def test(binary, scratch, seed, turns):
    drill = Drill(binary, scratch, random.Random(seed))
    try:
        drill.start(drill.machines)
        ready(drill.machines)
        drill.machines[0].boto3().create_bucket(Bucket=BUCKET)
        for turn in range(turns):
            lost = drill.machines[:] if (turn + seed) % 2 == 0 else drill.rng.sample(drill.machines, 2)
            loses_managers(drill, lost)
        loses_a_machine(drill)
    finally:
        for machine in drill.machines:
            machine.kill()
    return drill.journal.acknowledged


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--turns", type=int, default=1, help="times that managers alone are lost, before a machine is (default 1)")
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        try:
            acknowledged = test(arguments.binary, pathlib.Path(scratch), seed, arguments.turns)
        except (Failed, AssertionError) as failure:
            print(f"FAIL recover (seed {seed}): {failure}\n0 passed, 1 failed")
            return 1
    print(f"recover: managers were made anew, and all of {acknowledged} acknowledged changes are there")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
