"""Three machines of one cluster, each one `larder server DIR --peer …`: started in any order, one killed and started again.

They form one cluster once all of them are there, and none before; whoever has another secret or another list is refused and told
what to do. Nothing that was acknowledged may be lost when one is killed under load and started again with the same command, nor when
all are. With one machine left nothing is ready, and requests are refused soon. A fourth machine joins while the first, which founded the cluster, is gone; certificates are renewed meanwhile. The first comes in
anew with an empty directory. A directory of a single node and one of a cluster are not taken for each other.

    python3 tests/clients/peers.py [--seed N] [--binary PATH]
"""

import argparse
import contextlib
import http.client
import itertools
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request

from botocore.exceptions import ClientError
from devcluster import is_ready
from harness import COMMAND_SECONDS, Host, Server, default_binary, free_port, scratch_folder
from workload import BUCKET, Clock, Failed, Journal, Load, Uploads, verify

FORMED_SECONDS = 60
WHOLE_SECONDS = 60
REFUSED_SECONDS = 20
LOAD_SECONDS = 1.5
UNREADY_SECONDS = 20
# An answer that comes later finds a load balancer that has given up.
REFUSED_WITHIN = 2.5
CERTIFICATE_LIFE = "12s"


class Machine(Server):
    """One machine; `peers` and `secret` may be changed before a start."""

    certificate_life = CERTIFICATE_LIFE

    def __init__(self, binary, directory, secret, host=Host()):
        super().__init__(binary, directory, host=host)
        self.name, self.secret, self.peers = f"{host.address}:{free_port()}", secret, []

    def flags(self):
        peers = [word for peer in self.peers for word in ("--peer", peer)]
        config = self.directory.with_suffix(".toml")
        config.write_text(f'pg_count = 32\nvolume_mib = 64\nlog_segment_mib = 4\ncertificate_life = "{self.certificate_life}"\n')
        return [*super().flags(), *peers, "--me", self.name, "--secret-file", self.secret, "--config", config]

    def refusal(self):
        """Starts it, which must fail; the exit code and what it says."""
        self.spawn()
        try:
            code = self.process.wait(REFUSED_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} was not refused:\n{self.log_tail()}") from None
        finally:
            self.kill()
        return code, self.log_tail()

    def metric(self, name):
        with urllib.request.urlopen(self.metrics_url(), timeout=5) as answer:
            text = answer.read().decode()
        names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise Failed(f"metrics that two roles have: {sorted(twice)}")
        return float(re.search(rf"^larder_{re.escape(name)} (\S+)", text, re.MULTILINE)[1])


def equal_machines(kind, binary, folder, secret, *host, count=3, name="machine"):
    """Machines that are to form a cluster; none of them runs yet."""
    machines = [kind(binary, folder / f"{name}-{number}", secret, *host) for number in range(1, count + 1)]
    for machine in machines:
        machine.peers = [one.name for one in machines]
    return machines


def run(binary, *words, code=0):
    done = subprocess.run([binary, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    if done.returncode != code:
        raise Failed(f"larder {' '.join(map(str, words))}: {done.returncode}, {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def secret_file(binary, path):
    path.write_text(run(binary, "secret"))
    path.chmod(0o600)
    return path


def until(what, seconds, is_so, machines, tell=lambda: ""):
    """Waits; what does not come within that time is a failure, which says what `tell` does of the state by then."""
    deadline = time.monotonic() + seconds
    while not is_so():
        for machine in machines:
            if machine.process is not None and machine.process.poll() is not None:
                raise Failed(f"{machine.name} ended with {machine.process.returncode}:\n{machine.log_tail()}")
        if time.monotonic() > deadline:
            tails = "\n".join(machine.log_tail(12) for machine in machines)
            raise Failed(f"{what}: not within {seconds} s\n{tell()}\n{tails}")
        time.sleep(0.05)


def ready(machines, seconds=FORMED_SECONDS):
    until("ready", seconds, lambda: all(is_ready(machine.endpoint) for machine in machines), machines)


def whole(machine, machines, servers):
    """`larder status` of the directory says that all servers are up and nothing lacks a copy."""
    def is_whole():
        done = subprocess.run([machine.binary, "status", "--config", machine.directory], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=COMMAND_SECONDS)
        return done.returncode == 0 and done.stdout.count(machine.host.address) >= servers
    until("whole", WHOLE_SECONDS, is_whole, machines)


def form(machines, rng, clock):
    """The machines form a cluster, once all are there."""
    order = machines[:]
    rng.shuffle(order)
    for machine in order[:-1]:
        machine.spawn()
    until("waiting", FORMED_SECONDS, lambda: all("waiting for" in machine.log_tail() for machine in order[:-1]), order[:-1])
    if any((machine.directory / "node.toml").exists() for machine in machines):
        raise Failed("a cluster was formed before all were there")
    order[-1].spawn()
    ready(machines)
    clock.tell(f"formed, started in the order {[machines.index(machine) + 1 for machine in order]}")


def shows_space(machines, clock):
    """`larder status` shows what objects take on disks, and what their bucket has, as soon as they are put or deleted."""
    s3, sizes, copies = machines[0].boto3(), [3_000_000, 70_000, 10], 3

    def told():
        done = subprocess.run([machines[1].binary, "status", "--config", machines[1].directory, "--json"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
        return json.loads(done.stdout)

    before = told()["space"]
    s3.create_bucket(Bucket="counted")
    for number, size in enumerate(sizes):
        s3.put_object(Bucket="counted", Key=str(number), Body=bytes(size))
    after = told()
    if not after["verdict"].startswith("well: all "):
        raise Failed(f"a whole cluster says: {after['verdict']}")
    space = after["space"]
    of_bucket = [bucket for bucket in space["buckets"] if bucket["name"] == "counted"]
    if of_bucket != [{"name": "counted", "objects": len(sizes), "bytes": sum(sizes)}]:
        raise Failed(f"of {sizes} bytes in a bucket the status says {of_bucket}")
    # Those of 2,048 bytes and less are in the index, and others take whole blocks.
    grown = space["all"]["used"] - before["all"]["used"]
    blocks = copies * sum(-(-size // 4096) * 4096 for size in sizes if size > 2048)
    if grown != blocks or sum(server["space"]["used"] for server in after["servers"]) != space["all"]["used"]:
        raise Failed(f"{sizes} bytes take {grown} of the disks, and not {blocks}; or the servers' do not make the whole")
    # The client may have sent one again.
    writes = machines[0].metric('bucket_requests_total{bucket="counted",kind="write"}')
    received = machines[0].metric('bucket_received_bytes_total{bucket="counted"}')
    if writes < len(sizes) or received < sum(sizes):
        raise Failed(f"of {len(sizes)} puts of {sum(sizes)} bytes the metrics count {writes}, and {received} bytes")
    for number in range(len(sizes)):
        s3.delete_object(Bucket="counted", Key=str(number))
    s3.delete_bucket(Bucket="counted")
    if (last := told()["space"])["objects"] != before["objects"]:
        raise Failed(f"deleted objects are counted: {last}")
    looks = subprocess.Popen([machines[1].binary, "status", "--config", machines[1].directory, "--watch"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(COMMAND_SECONDS, looks.kill)
    watchdog.start()
    try:
        seen = [line for line in itertools.islice((line for line in looks.stdout if "well: all " in line), 2)]
    finally:
        watchdog.cancel()
        looks.kill()
        looks.wait()
    # Without a reader it ends.
    piped = subprocess.run(["sh", "-c", '"$0" status --config "$1" --watch | head -1', machines[1].binary, machines[1].directory],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    if "well: all " not in piped.stdout or piped.stderr:
        raise Failed(f"a status that watches says without a reader: {piped.stderr}")
    if len(seen) < 2:
        raise Failed(f"a status that watches looked {len(seen)} times")
    clock.tell("the status shows the space of disks, and what a bucket has")


def without_most(machines, clock):
    """Two of three are gone: the third says that it cannot serve, and lets nobody wait for it. It serves again with one of them."""
    left, *gone = machines
    for machine in gone:
        machine.kill()
    began = time.monotonic()
    until("not ready", UNREADY_SECONDS, lambda: not is_ready(left.endpoint), [left])
    unready, s3, slowest = time.monotonic() - began, left.boto3(read_timeout=60), 0
    # Of some keys the machine that is left is the primary, which answers.
    keys = [f"without-most/{number}" for number in range(4)]
    asked = [lambda: s3.list_objects_v2(Bucket=BUCKET), lambda: s3.create_bucket(Bucket="without-most")]
    asked += [lambda key=key: s3.get_object(Bucket=BUCKET, Key=key) for key in keys]
    asked += [lambda key=key, size=size: s3.put_object(Bucket=BUCKET, Key=key, Body=bytes(size)) for key in keys for size in (1, 1 << 20)]
    for what in asked:
        began = time.monotonic()
        try:
            what()
            raise Failed("one machine of three serves")
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
                raise Failed(f"one machine of three answers {error}") from error
        slowest = max(slowest, time.monotonic() - began)
    if slowest > REFUSED_WITHIN:
        raise Failed(f"a machine that cannot serve says so after {slowest:.1f} s")
    said = run(left.binary, "status", "--config", left.directory, code=1)
    if "NO MANAGER LEADS" not in said:
        raise Failed(f"a machine without the others shows a status as if it knew it:\n{said[:500]}")
    gone[0].spawn()
    ready([left, gone[0]])
    # What was refused with 503 may be done all the same.
    for key in keys:
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"x")
        s3.delete_object(Bucket=BUCKET, Key=key)
    gone[1].spawn()
    ready(machines)
    clock.tell(f"with one machine of three nothing was ready after {unready:.1f} s, and refused within {slowest:.1f} s")


def refusals(binary, machines, scratch):
    """What must not come in, and is told why."""
    late = Machine(binary, scratch / "late", secret_file(binary, scratch / "other.secret"))
    late.peers = [*machines[0].peers, late.name]
    code, said = late.refusal()
    if code != 3 or "another secret" not in said:
        raise Failed(f"another secret: {code}, {said}")
    if not any("used another secret" in machine.log_tail(400) for machine in machines):
        raise Failed("nobody has logged that a machine with another secret was refused")
    late.secret.chmod(0o644)
    code, said = late.refusal()
    if code != 2 or "chmod 600" not in said:
        raise Failed(f"an exposed secret: {code}, {said}")
    impostor = Machine(binary, scratch / "impostor", machines[0].secret)
    impostor.peers = [machines[0].name, machines[1].name, impostor.name]
    taken = machines[2]
    taken.kill()
    impostor.name, impostor.peers = taken.name, taken.peers
    code, said = impostor.refusal()
    if code != 3 or "larder remove" not in said:
        raise Failed(f"the name of a member: {code}, {said}")
    taken.spawn()
    said = run(binary, "server", machines[0].directory, code=3)
    if "--peer" not in said:
        raise Failed(f"without its peers: {said}")
    single = Server(binary, scratch / "single").start()
    single.stop()
    other = Machine(binary, scratch / "single", machines[0].secret)
    other.peers = [other.name]
    code, said = other.refusal()
    if code != 3 or "is the store of a single node" not in said:
        raise Failed(f"a single node's directory: {code}, {said}")


def grow(binary, machines, scratch):
    """The founder is gone; a fourth machine joins, and all certificates are renewed meanwhile."""
    first, rest = machines[0], machines[1:]
    first.kill()
    fourth = Machine(binary, scratch / "fourth", first.secret)
    fourth.peers = [*first.peers, fourth.name]
    fourth.spawn()
    ready([*rest, fourth])
    until("renewed", 60, lambda: all("certificate was renewed" in pathlib.Path(machine.log).read_text() for machine in [*rest, fourth]),
          [*rest, fourth])
    if not all(machine.metric("connections_local_total") for machine in [*rest, fourth]):
        raise Failed("the servers of a machine speak with each other over sockets")
    until("one manager leads", 10, lambda: sum(machine.metric("manager_leads") for machine in rest) == 1, rest)
    left = [machine.metric("certificate_expires_seconds") for machine in [*rest, fourth]]
    if min(left) <= 0:
        raise Failed(f"certificates end: {left}")
    return fourth


def lose(binary, lost, others):
    """The first machine's disk is gone: it is removed, and it comes in anew under its name."""
    shutil.rmtree(lost.directory)
    said = run(binary, "remove", "--config", others[0].directory, lost.name, "--yes")
    if said.count("removed for good") != 4:
        raise Failed(f"the servers of a machine that is lost: {said}")
    lost.spawn()
    ready([lost, *others])
    if not (lost.directory / "manager" / "identity.pem").exists():
        raise Failed("a machine that comes in for one of three managers is none")


def waits(machine):
    """It has been started without the others: it lives, is not ready, and sends clients away, instead of letting them wait."""
    def asked(path):
        connection = http.client.HTTPConnection(machine.endpoint.removeprefix("http://"), timeout=REFUSED_WITHIN)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().status

    def lives():
        with contextlib.suppress(ConnectionRefusedError):
            return asked("/healthz") == 200
        return False

    until("listening", 10, lives, [machine])
    told = {path: asked(path) for path in ("/healthz", "/readyz", "/healthz/cluster", f"/{BUCKET}/key")}
    if told != {"/healthz": 200, "/readyz": 503, "/healthz/cluster": 503, f"/{BUCKET}/key": 503}:
        raise Failed(f"a machine that waits for the others answers {told}")


def test(binary, scratch, seed):
    rng, clock = random.Random(seed), Clock(every=0)
    secret = secret_file(binary, scratch / "cluster.secret")
    machines = equal_machines(Machine, binary, scratch, secret)
    everybody = machines[:]
    try:
        form(machines, rng, clock)
        s3 = machines[0].boto3()
        s3.create_bucket(Bucket=BUCKET)
        journal, uploads = Journal(), Uploads()
        whole(machines[0], machines, 12)
        shows_space(machines, clock)
        struck = rng.choice(machines)
        others = [machine for machine in machines if machine is not struck]
        loads = [Load(machine, journal, uploads, seed, writers=3, round_number=at) for at, machine in enumerate(others)]
        for load in loads:
            load.start()
        time.sleep(LOAD_SECONDS)
        struck.kill()
        time.sleep(LOAD_SECONDS)
        struck.spawn()
        ready(machines)
        for load in loads:
            load.join()
        verify(struck, journal, uploads, whole=True)
        clock.tell(f"machine {machines.index(struck) + 1} killed and back, {journal.acknowledged} acknowledged")
        # Groups that the machine has not come back into need both others.
        whole(machines[0], machines, 12)
        without_most(machines, clock)
        refusals(binary, machines, scratch)
        ready(machines)
        clock.tell("strangers refused")
        whole(machines[0], machines, 12)
        everybody.append(grow(binary, machines, scratch))
        clock.tell("a fourth joined without the first, certificates renewed")
        lose(binary, machines[0], everybody[1:])
        clock.tell("the first is back with an empty directory")
        for machine in everybody:
            machine.kill()
        rng.shuffle(everybody)
        everybody[0].spawn()
        waits(everybody[0])
        for machine in everybody[1:]:
            machine.spawn()
        ready(everybody)
        verify(everybody[-1], journal, uploads, whole=True)
        whole(everybody[0], everybody, 15)
        codes = [machine.stop() for machine in everybody]
        if any(codes):
            raise Failed(f"stops that were not clean: {codes}")
        clock.tell("all killed, back and stopped")
        return journal.acknowledged
    finally:
        for machine in everybody:
            machine.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"peers: seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        try:
            acknowledged = test(arguments.binary, pathlib.Path(scratch), arguments.seed)
        except (Failed, AssertionError) as failure:
            print(f"FAIL peers: {failure}\n0 passed, 1 failed")
            return 1
    print(f"peers: {acknowledged} acknowledged operations, none lost")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
