"""Root's keys are rotated while clients work, of a single node, of three equal machines and of a development cluster.

No request fails while both pairs are taken, whichever it is signed with. Once the pair before is retired every proxy refuses it: also one
that was down meanwhile, and comes back with a file of the pair before. With `--at-once` it is refused at once, also while the map changes
several times a second, and while another pair waits to be retired. No command prints a secret, and the exit code says whether all take the
keys that count. A command that was cut off is finished by the next. Nothing is changed where a command may not change it: without --yes,
where the environment has the keys, where a pair before is still taken, where a file has other keys than proxies take, where a server cannot
be asked, where somebody else keeps the file.

    python3 tests/clients/keys.py [--seed N] [--binary PATH]
"""

import argparse
import concurrent.futures
import pathlib
import random
import stat
import subprocess
import sys
import threading
import time
import tomllib

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from devcluster import Cluster
from harness import COMMAND_SECONDS, Server, default_binary, scratch_folder
from peers import Machine, equal_machines, ready, secret_file, until, whole
from workload import Clock, Failed

BUCKET = "rotated"
UNSET = {"LARDER_ROOT_ACCESS_KEY": "", "LARDER_ROOT_SECRET_KEY": ""}
LOAD_SECONDS = 1.0
TAKEN_SECONDS, RAISED_SECONDS = 10, 30
SERVERS = 12


class Node(Server):
    """A single node whose keys are in its file."""

    def environment(self):
        return UNSET


class Peer(Machine):
    """A machine of a cluster whose keys are in its file."""

    # A command that waits for proxies has the certificate that it began with.
    certificate_life = "30d"

    def environment(self):
        return UNSET


class Keys:
    """All that is run and printed, for a look at whether a secret is in it."""

    def __init__(self, binary):
        self.binary, self.secrets, self.printed = binary, set(), []

    def run(self, *words, code=0, says=""):
        done = subprocess.run([self.binary, "keys", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS)
        told = done.stdout + done.stderr
        self.printed.append(told)
        if done.returncode != code or says not in told:
            raise Failed(f"larder keys {' '.join(map(str, words))}: {done.returncode}, {told!r}")
        return told

    def of(self, file):
        """The current pair in a file, which its owner alone can read."""
        if stat.S_IMODE(file.stat().st_mode) != 0o600:
            raise Failed(f"{file} has mode {stat.S_IMODE(file.stat().st_mode):o}")
        kept = tomllib.loads(file.read_text())
        pair = kept["access_key"], kept["secret_key"]
        self.secrets.add(pair[1])
        return pair

    def check_printed(self, logs):
        texts = [*self.printed, *(log.read_text(errors="replace") for log in logs)]
        if any(secret in text for text in texts for secret in self.secrets):
            raise Failed("a secret key was printed")


def client(server, pair):
    import boto3

    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=server.endpoint, aws_access_key_id=pair[0], aws_secret_access_key=pair[1],
                        region_name="us-east-1", config=config)


def answer(server, pair):
    """The code of a list of buckets: "" if it is answered."""
    try:
        client(server, pair).list_buckets()
        return ""
    except ClientError as error:
        return error.response["Error"]["Code"]


def takes(servers, pair):
    refused = {server.endpoint: code for server in servers if (code := answer(server, pair))}
    if refused:
        raise Failed(f"access key {pair[0]} is not taken: {refused}")


def refuses(servers, pair):
    taken = {server.endpoint: code for server in servers if (code := answer(server, pair)) != "InvalidAccessKeyId"}
    if taken:
        raise Failed(f"access key {pair[0]} is not refused: {taken}")


class Load:
    """Puts and gets through some servers, each without a retry, until it is told to end; any failure is one of the test."""

    def __init__(self, servers, pair):
        self.clients = [client(server, pair) for server in servers]
        self.ending, self.done = threading.Event(), 0
        self.pool = concurrent.futures.ThreadPoolExecutor(len(self.clients))

    def __enter__(self):
        self.threads = [self.pool.submit(self._run, at, s3) for at, s3 in enumerate(self.clients)]
        return self

    def __exit__(self, *failure):
        time.sleep(LOAD_SECONDS)
        self.ending.set()
        ended = [thread.exception() for thread in self.threads]
        self.pool.shutdown()
        if any(ended) and not any(failure):
            raise Failed(f"a request failed meanwhile: {next(filter(None, ended))}")
        if not self.done:
            raise Failed("no request was made meanwhile")

    def _run(self, at, s3):
        number = 0
        while not self.ending.is_set():
            key, body = f"{at}/{number % 50}", f"{at}/{number}".encode() * 1000
            s3.put_object(Bucket=BUCKET, Key=key, Body=body)
            if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != body:
                raise Failed(f"{key} reads otherwise than it was put")
            number += 1
            self.done += 1


def single(keys, scratch, clock):
    node = Node(keys.binary, scratch / "node")
    file = node.directory / "credentials.toml"
    try:
        node.start()
        first = keys.of(file)
        client(node, first).create_bucket(Bucket=BUCKET)
        with Load([node], first):
            keys.run("rotate", node.directory, says="the running server takes them")
            second = keys.of(file)
        takes([node], second)
        keys.run("status", node.directory, says="the pair before was used")
        keys.run("rotate", node.directory, code=1, says="retire them first")
        if keys.of(file) != second:
            raise Failed("a rotation that was refused has changed the file")
        node.stop()
        node.start()
        takes([node], first)
        takes([node], second)
        with Load([node], second):
            keys.run("retire", node.directory, says="add --yes")
            takes([node], first)
            keys.run("retire", node.directory, "--yes", says="are refused")
        refuses([node], first)
        keys.run("retire", node.directory, "--yes", says="nothing to do")
        given = scratch / "given.toml"
        given.write_text('access_key = "given-key"\nsecret_key = "given-secret"\n')
        keys.run("rotate", node.directory, "--at-once", "--keys", given, says="access key given-key")
        refuses([node], second)
        takes([node], ("given-key", "given-secret"))
        keys.run("rotate", node.directory, "--keys", scratch / "missing.toml", code=3, says="missing.toml")
        node.stop()
        keys.run("rotate", node.directory, says="no server runs")
        keys.run("status", node.directory, code=1, says="no server that can be asked runs")
        node.start()
        takes([node], keys.of(file))
        node.stop()
        clock.tell("a single node")
        cut_off(keys, node)
        clock.tell("commands cut off")
    finally:
        node.kill()
    fixed = Server(keys.binary, scratch / "fixed")
    try:
        fixed.start()
        (fixed.directory / "credentials.toml").write_text('access_key = "other"\nsecret_key = "other-secret"\n')
        (fixed.directory / "credentials.toml").chmod(0o600)
        keys.run("rotate", fixed.directory, code=1, says="from its environment")
        if keys.of(fixed.directory / "credentials.toml")[0] != "other":
            raise Failed("keys were rotated that do not count")
    finally:
        fixed.kill()
    return [node.log, fixed.log]


def written(file, current, previous=None):
    """The file as a command has left it that was killed before it could ask the server."""
    text = f'access_key = "{current[0]}"\nsecret_key = "{current[1]}"\n'
    if previous:
        text += f'\n[previous]\naccess_key = "{previous[0]}"\nsecret_key = "{previous[1]}"\n'
    file.write_text(text)
    file.chmod(0o600)


def cut_off(keys, node):
    """Commands that were killed between the file and the server, and a server that cannot be asked."""
    file = node.directory / "credentials.toml"
    node.start()
    one, two, three = keys.of(file), ("second-key", "second-secret"), ("third-key", "third-secret")
    written(file, two, one)
    keys.run("status", node.directory, code=1, says="HAS OTHER KEYS")
    refuses([node], two)
    keys.run("rotate", node.directory, code=1, says="retire them first")
    takes([node], one)
    takes([node], two)
    written(file, three)
    for words in (("rotate",), ("retire", "--yes")):
        keys.run(words[0], node.directory, *words[1:], code=1, says="has others")
    keys.run("retire", node.directory, says="nothing to do")
    takes([node], two)
    written(file, two)
    told = keys.run("retire", node.directory, "--yes", says="nothing to do")
    if "takes what is in the file now" not in told:
        raise Failed(f"a retirement that was cut off was finished in silence: {told}")
    refuses([node], one)
    keys.run("rotate", node.directory)
    written(file, three)
    keys.run("rotate", node.directory, "--at-once", says="the keys before are refused")
    refuses([node], three)
    refuses([node], two)
    before = file.read_text()
    (node.directory / "status.sock").unlink()
    keys.run("rotate", node.directory, "--at-once", code=1, says="cannot be asked")
    if file.read_text() != before:
        raise Failed("keys were changed though the server could not be asked")
    node.stop()
    written(node.directory / "elsewhere.toml", three)
    file.unlink()
    file.symlink_to(node.directory / "elsewhere.toml")
    keys.run("rotate", node.directory, code=1, says="is a link")


class Restless(threading.Thread):
    """Makes buckets all the time: each is a change of the map."""

    def __init__(self, server, pair):
        super().__init__()
        self.s3, self.ending, self.made = client(server, pair), threading.Event(), 0

    def run(self):
        while not self.ending.wait(0.2):
            try:
                self.s3.create_bucket(Bucket=f"restless-{self.made}")
                self.made += 1
            except ClientError:
                return

    def __enter__(self):
        self.start()
        until("another bucket", TAKEN_SECONDS, lambda: self.made > 1, [])
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.join()


def machines_of(keys, scratch, clock):
    secret = secret_file(keys.binary, scratch / "secret")
    machines = equal_machines(Peer, keys.binary, scratch, secret)
    files = [machine.directory / "credentials.toml" for machine in machines]
    one, two, three = machines
    try:
        for machine in machines:
            machine.spawn()
        ready(machines)
        until("the cluster's version", RAISED_SECONDS, lambda: min(machine.metric("cluster_version") for machine in machines) >= 20, machines)
        first = keys.of(files[0])
        client(one, first).create_bucket(Bucket=BUCKET)
        refused(keys, scratch, one, first)
        with Load(machines, first):
            told = keys.run("rotate", one.directory, says="3 of 3 proxies take them")
        second = keys.of(files[0])
        if told.count("takes access key") != 3 or {keys.of(file) for file in files} != {second}:
            raise Failed(f"not all machines have the new keys: {told}")
        takes(machines, second)
        takes(machines, first)
        keys.run("rotate", two.directory, code=1, says="retire them first")
        told = keys.run("status", two.directory, says="is taken, too")
        if "the pair before was used" not in told or "DIFFERENT" in told:
            raise Failed(f"nobody has used the pair before: {told}")
        if min(machine.metric("root_keys_previous_requests") for machine in machines) < 1:
            raise Failed("requests signed with the pair before were not counted")
        clock.tell("rotated under load")
        whole(one, machines, SERVERS)
        three.kill()
        before = files[2].read_text()
        keys.run("retire", two.directory, code=1, says="add --yes")
        takes([one, two], first)
        with Load([one, two], second):
            keys.run("retire", two.directory, "--yes", code=1, says="2 of 3 proxies refuse it")
        refuses([one, two], first)
        keys.run("retire", two.directory, "--yes", code=1, says="nothing to do")
        keys.run("rotate", two.directory, code=1, says="is not reached")
        third = keys.of(files[1])
        keys.run("retire", one.directory, "--yes", code=1, says="generation 4")
        if files[2].read_text() != before:
            raise Failed("the file of a machine that is down has changed")
        three.spawn()
        ready([three])
        takes(machines, third)
        refuses(machines, first)
        refuses(machines, second)
        until("the file", TAKEN_SECONDS, lambda: keys.of(files[2]) == third, machines)
        whole(one, machines, SERVERS)
        clock.tell("one machine was down meanwhile, and takes what counts")
        for machine in machines:
            machine.kill()
        files[0].unlink()
        said = len(one.log.read_text())
        for machine in machines:
            machine.spawn()
        ready(machines)
        takes(machines, third)
        until("the file", TAKEN_SECONDS, lambda: keys.of(files[0]) == third, machines)
        if "were drawn" in one.log.read_text()[said:]:
            raise Failed("a machine without its file has drawn keys that count nowhere")
        with Restless(two, third):
            keys.run("rotate", one.directory, says="generation 5")
            fourth = keys.of(files[0])
            keys.run("rotate", one.directory, "--at-once", says="generation 6")
        refuses(machines, third)
        refuses(machines, fourth)
        takes(machines, keys.of(files[2]))
        keys.run("status", two.directory, says="generation 6")
        clock.tell("all killed, one without its file, and keys replaced at once")
        of_environment(keys, machines)
        clock.tell("keys of the environment")
        return [machine.log for machine in machines]
    finally:
        for machine in machines:
            machine.kill()


def refused(keys, scratch, machine, present):
    """First rotations that would end the keys that clients have."""
    file = machine.directory / "credentials.toml"
    written(file, ("edited-key", "edited-secret"))
    keys.run("rotate", machine.directory, code=1, says="Nothing was changed")
    written(file, present)
    other = scratch / "other.toml"
    written(other, ("other-key", "other-secret"))
    keys.run("rotate", machine.directory, "--current", other, code=1, says="Nothing was changed")
    file.rename(scratch / "kept.toml")
    file.symlink_to(scratch / "kept.toml")
    keys.run("rotate", machine.directory, code=1, says="is a link")
    file.unlink()
    (scratch / "kept.toml").rename(file)
    written(scratch / "short.toml", ("short-key", "short"))
    keys.run("rotate", machine.directory, "--keys", scratch / "short.toml", code=3, says="8 characters")
    keys.run("status", machine.directory, says="never rotated")


def of_environment(keys, machines):
    """A machine whose environment has the keys: nothing is rotated that would not count there."""
    one, two = machines[:2]
    one.stop()
    one.environment = lambda: {}
    one.spawn()
    ready([one])
    file = two.directory / "credentials.toml"
    before = file.read_text()
    keys.run("status", two.directory, code=1, says="TAKES KEYS OF ITS ENVIRONMENT")
    keys.run("rotate", two.directory, "--at-once", code=1, says="2 of 3 proxies take them")
    if file.read_text() == before or file.with_name("credentials.toml.new").exists():
        raise Failed("the keys of the others were not replaced")


def development(keys, scratch, clock):
    directory = scratch / "cluster"
    cluster = Cluster(keys.binary, directory, nodes=1, environment=UNSET)
    try:
        cluster.start()
        deadline = time.monotonic() + RAISED_SECONDS
        while cluster.status()["cluster_version"] < 20 and time.monotonic() < deadline:
            time.sleep(0.2)
        file, proxies = directory / "credentials.toml", cluster.proxies
        first, into = keys.of(file), scratch / "new.toml"
        keys.run("rotate", directory, says="generation 1")
        second = keys.of(file)
        takes(proxies, first)
        takes(proxies, second)
        config = cluster.config(0, "manager")
        keys.run("retire", "--config", config, "--yes", says="generation 2")
        refuses(proxies, first)
        keys.run("rotate", "--config", config, code=2, says="--into FILE")
        keys.run("rotate", "--config", config, "--into", file, code=2, says="exists")
        keys.run("rotate", "--config", config, "--into", into, "--current", file, code=2, says="leave --current out")
        keys.run("rotate", "--config", config, "--into", into, says="generation 3")
        takes(proxies, keys.of(into))
        takes(proxies, second)
        keys.run("rotate", "--config", cluster.config(0, "meta"), "--into", scratch / "unused.toml", code=2, says="with a manager's")
        clock.tell("servers of a role each")
    finally:
        cluster.kill_all()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"keys: seed {arguments.seed}", flush=True)
    keys, clock = Keys(arguments.binary), Clock()
    with scratch_folder(arguments.keep) as scratch:
        scratch = pathlib.Path(scratch)
        try:
            logs = single(keys, scratch, clock)
            logs += machines_of(keys, scratch, clock)
            development(keys, scratch, clock)
            keys.check_printed(logs)
        except (Failed, AssertionError, BotoCoreError, ClientError) as failure:
            print(f"FAIL keys: {failure}\n0 passed, 1 failed")
            return 1
    print("keys: rotated and retired, no request failed, no secret printed")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
