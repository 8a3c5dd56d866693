"""Three equal machines behind nginx, and behind HAProxy, with the configurations in `deploy/` as they are there but for addresses.

Clients put, get whole and in ranges, upload in parts, list and delete through the balancer, with TLS and without. One machine
is killed: no client of ordinary retries sees a failure. It comes back and takes its share. One is taken out and stopped: not even clients
without retries see a failure. What a balancer may spoil is tried one by one: signed headers, odd keys, presigned URLs, bodies that are
refused before they came, `Expect: 100-continue`.

    python3 tests/clients/balancers.py [--seed N] [--binary PATH] [--only nginx|haproxy]
"""

import argparse
import contextlib
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from botocore.exceptions import BotoCoreError, ClientError
from harness import ACCESS, COMMAND_SECONDS, ROOT, SECRET, STOP_SECONDS, Server, content, default_binary, free_port, md5, scratch_folder
from peers import WHOLE_SECONDS, Machine, equal_machines, ready, secret_file, until
from sigv4 import UNSIGNED, Signer, quote
from workload import MIB, Clock, Failed

BUCKET = "balanced"
CLIENTS, KEYS_OF_CLIENT = 4, 8
SIZES = [(0.5, 3_000), (0.35, 90_000), (0.15, 700_000)]
HEALTHY_SECONDS = 1.5
STRUCK_SECONDS = 4
STOPPED_SECONDS = 2.5
SHARE_SECONDS = 15
# Of three machines each gets a third, and a sixth if one of two balancers forgets it.
LEAST_SHARE = 0.22
# boto3 waits between its five tries, at random, and a request may meet the 1.5 s after which a machine counts as lost.
SLOWEST_SECONDS = 12
ANSWER_SECONDS = 10
KEYS = ["plain", "a b+c&d=e", "double//slash", "dots/../up", "tilde~(1)!'*", "ärger/世界", "percent%2Fsign", "trailing/"]


class Balancer:
    """A balancer's process and its endpoints. `boto3` is that of a server."""

    boto3 = Server.boto3

    def __init__(self, machines, scratch, certificate):
        self.machines, self.folder = machines, scratch / self.name
        self.folder.mkdir()
        self.port, self.tls_port = free_port(), free_port()
        self.endpoint, self.tls = f"http://127.0.0.1:{self.port}", f"https://localhost:{self.tls_port}"
        self.certificate, self.log, self.process, self.out = certificate, self.folder / "log", None, None

    def over_tls(self, **settings):
        plain, self.endpoint = self.endpoint, self.tls
        try:
            return self.boto3(**settings)
        finally:
            self.endpoint = plain

    def configure(self):
        """The file of `deploy/`, with addresses and paths of this test."""
        text = (ROOT / "deploy" / self.file).read_text()
        for old, new in self.substitutions():
            if old not in text:
                raise Failed(f"deploy/{self.file} has no {old!r}")
            text = text.replace(old, new)
        for number, machine in enumerate(self.machines, 1):
            text = text.replace(f"host{number}:9000", f"127.0.0.1:{machine.port}")
        path = self.folder / self.file
        path.write_text(text)
        return path

    def start(self):
        self.configure()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(f"{self.name} passes requests on", ANSWER_SECONDS, self.passes, self.machines, self.told)

    def passes(self):
        if self.process.poll() is not None:
            raise Failed(f"{self.name} ended with {self.process.returncode}:\n{self.told()}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.endpoint}/readyz", timeout=2) as answer:
            return answer.status == 200
        return False

    def told(self):
        return self.log.read_text(errors="replace")[-2000:]

    def stop(self):
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


class Nginx(Balancer):
    name, file = "nginx", "nginx.conf"
    program = "nginx"

    def substitutions(self):
        places = "".join(f"    {kind}_temp_path {self.folder};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        changes = [
            ("/run/nginx.pid", f"{self.folder}/pid"), ("/var/log/nginx/error.log", f"{self.folder}/log"),
            # Whoever runs the test may not write where the package does.
            ("http {\n", f"http {{\n{places}"),
            ("listen 80;", f"listen 127.0.0.1:{self.port};"), ("listen 443 ssl;", f"listen 127.0.0.1:{self.tls_port} ssl;"),
            ("/etc/ssl/larder/s3.example.org.crt", str(self.certificate)), ("/etc/ssl/larder/s3.example.org.key", f"{self.certificate}.key"),
        ]
        return changes if self.out is None else [*changes, (f"server host{self.out + 1}:9000", f"server host{self.out + 1}:9000 down")]

    def command(self):
        return [found("nginx"), "-p", self.folder, "-e", self.folder / "log", "-c", self.folder / self.file, "-g", "daemon off;"]

    def take_out(self, number):
        """`down` at the machine's line, and a reload; None takes it in again."""
        def workers():
            return set(pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split())
        before, self.out = workers(), number
        self.configure()
        subprocess.run([*self.command()[:-2], "-s", "reload"], check=True, stdin=subprocess.DEVNULL, timeout=COMMAND_SECONDS)
        until("nginx reloaded", ANSWER_SECONDS, lambda: not before & workers(), self.machines, self.told)


class Haproxy(Balancer):
    name, file = "haproxy", "haproxy.cfg"
    program = "haproxy"

    def substitutions(self):
        return [
            ("log /dev/log local0", "log stdout format raw local0"), ("/run/haproxy/admin.sock", f"{self.folder}/sock"), ("bind :80", f"bind 127.0.0.1:{self.port}"),
            ("bind :443", f"bind 127.0.0.1:{self.tls_port}"), ("/etc/haproxy/s3.example.org.pem", f"{self.certificate}.pem"),
        ]

    def command(self):
        return [found("haproxy"), "-db", "-f", self.folder / self.file]

    def say(self, words):
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(ANSWER_SECONDS)
            admin.connect(str(self.folder / "sock"))
            admin.sendall(f"{words}\n".encode())
            return b"".join(iter(lambda: admin.recv(4096), b"")).decode()

    def take_out(self, number):
        taken, state = (self.out, "ready") if number is None else (number, "drain")
        server, self.out = f"larder/host{taken + 1}", number
        if said := self.say(f"set server {server} state {state}").strip():
            raise Failed(f"haproxy: {said}")
        if number is not None:
            # Its columns are named by the first line; requests under way are those of `scur`.
            until("drained", ANSWER_SECONDS, lambda: self.under_way(server) == 0, self.machines, self.told)

    def under_way(self, server):
        names, *rows = self.say("show stat").removeprefix("# ").splitlines()
        places = names.split(",")
        return next(int(row.split(",")[places.index("scur")]) for row in rows if "/".join(row.split(",")[:2]) == server)


def found(program):
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        raise Failed(f"{program} is not installed: run tests/clients/install.sh")
    return path


class Load:
    """Clients that each do one thing after the other with keys of their own, until told to stop; what failed, and what took how long."""

    def __init__(self, clients, seed):
        self.seed, self.stopping, self.lock, self.faults, self.done = seed, threading.Event(), threading.Lock(), [], []
        self.threads = [threading.Thread(target=self.run, args=(s3, number, random.Random(f"{seed}/{number}")))
                        for number, s3 in enumerate(clients)]
        for thread in self.threads:
            thread.start()

    def run(self, s3, number, rng):
        there, turn = {}, 0
        while not self.stopping.is_set():
            turn += 1
            key = f"{self.seed}/{number}/{rng.randrange(KEYS_OF_CLIENT)}"
            action = self.draw(rng, key in there)
            began = time.monotonic()
            try:
                action(s3, rng, key, there, f"{self.seed}/{number}/{turn}")
            except (BotoCoreError, ClientError, Failed) as error:
                with self.lock:
                    self.faults.append(f"{action.__name__} of {key}: {error!r}")
            with self.lock:
                self.done.append((action.__name__, began, time.monotonic()))

    def draw(self, rng, is_there):
        if not is_there:
            return put
        return rng.choices([put, read, piece, parts, listed, deleted], [30, 25, 20, 4, 10, 8])[0]

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        if self.faults:
            raise Failed(f"{len(self.faults)} of {len(self.done)} requests failed: {'; '.join(self.faults[:4])}")

    def slowest(self, since):
        with self.lock:
            return max(((ended - began, name) for name, began, ended in self.done if ended > since), default=(0.0, ""))


def put(s3, rng, key, there, seed):
    size = rng.choices([size for _, size in SIZES], [share for share, _ in SIZES])[0]
    s3.put_object(Bucket=BUCKET, Key=key, Body=content(seed, size))
    there[key] = seed, size


def parts(s3, _, key, there, seed):
    size = 5 * MIB + 70_000
    data, upload = content(seed, size), s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
    sent = [s3.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=number, Body=body)["ETag"]
            for number, body in ((1, data[:5 * MIB]), (2, data[5 * MIB:]))]
    named = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(sent, 1)]
    try:
        s3.complete_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload={"Parts": named})
    except s3.exceptions.NoSuchUpload:
        # The try before this one was made, and its answer was lost with the machine.
        if s3.head_object(Bucket=BUCKET, Key=key)["ContentLength"] != size:
            raise
    there[key] = seed, size


def read(s3, _, key, there, __):
    # An answer that ends half-way is no failed request for boto3's retries: its transfers do these gets, and ask again.
    body = bytearray()

    class Sink:
        def write(self, piece):
            body.extend(piece)

    s3.download_fileobj(BUCKET, key, Sink(), Config=in_order())
    if bytes(body) != content(*there[key]):
        raise Failed(f"{key} reads otherwise than it was put: {len(body)} bytes")


def in_order():
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(use_threads=False, preferred_transfer_client="classic")


def piece(s3, rng, key, there, _):
    size = there[key][1]
    first = rng.randrange(size)
    last = min(first + 999, size - 1)
    answer = s3.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={first}-{last}")
    if answer["Body"].read() != content(*there[key])[first:last + 1]:
        raise Failed(f"bytes {first} to {last} of {key} are others than were put")


def listed(s3, _, key, there, __):
    prefix = key.rsplit("/", 1)[0] + "/"
    seen = {entry["Key"]: entry["Size"] for entry in s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])}
    if seen != {name: size for name, (_, size) in there.items()}:
        raise Failed(f"a list of {prefix} has {seen}, but there are {there}")


def deleted(s3, _, key, there, __):
    s3.delete_object(Bucket=BUCKET, Key=key)
    del there[key]


def spoiled(balancer):
    """What a balancer may spoil, one by one, with TLS and without."""
    # boto3 presigns by version 2 unless told otherwise.
    settings = {"signature_version": "s3v4", "retries": None}
    for s3 in (balancer.boto3(**settings), balancer.over_tls(**settings)):
        for key in KEYS:
            s3.put_object(Bucket=BUCKET, Key=f"odd/{key}", Body=key.encode(), Metadata={"with_underscore": "1", "with.dot": "2"})
            got = s3.get_object(Bucket=BUCKET, Key=f"odd/{key}")
            if got["Body"].read() != key.encode() or got["Metadata"] != {"with_underscore": "1", "with.dot": "2"}:
                raise Failed(f"the key {key!r} comes back as {got}")
        url = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": f"odd/{KEYS[1]}"})
        if not url.startswith("https"):
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                if answer.read() != KEYS[1].encode():
                    raise Failed(f"{url} reads otherwise than was put")
        many = {f"k{number}": "v" * 60 for number in range(30)}
        s3.put_object(Bucket=BUCKET, Key="odd/many", Body=b"x", Metadata=many)
        if s3.head_object(Bucket=BUCKET, Key="odd/many")["Metadata"] != many:
            raise Failed("an object's metadata is not what was put")
    status, said = early(balancer, f"/{BUCKET}/early", wrong=True)
    if status != 403:
        raise Failed(f"a put with a wrong signature and most of its body to come: {status}, {said[:200]}")
    status, said = early(balancer, f"/{BUCKET}/expected", wrong=False)
    if status != 200:
        raise Failed(f"a put that waits for 100-continue: {status}, {said[:200]}")


def early(balancer, path, wrong):
    """A put of 64 MiB of which the client sends 64 KiB and waits; or one of 1 MiB that waits for `100 Continue` first. The status."""
    size = 64 * MIB if wrong else MIB
    headers = {"host": f"127.0.0.1:{balancer.port}", "content-length": str(size)}
    signed = Signer(ACCESS, SECRET[::-1] if wrong else SECRET).headers("PUT", quote(path, "/-_.~"), [], headers, UNSIGNED)
    if not wrong:
        signed["expect"] = "100-continue"
    head = f"PUT {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in signed.items()) + "\r\n"
    with socket.create_connection(("127.0.0.1", balancer.port), ANSWER_SECONDS) as there:
        there.sendall(head.encode() + (bytes(64 * 1024) if wrong else b""))
        if not wrong and not (said := there.recv(4096)).startswith(b"HTTP/1.1 100"):
            return 0, said
        if not wrong:
            there.sendall(bytes(size))
        said = there.recv(4096)
        return int(said.split()[1]), said


def requests(machine):
    """The requests that a machine has answered since it started."""
    try:
        with urllib.request.urlopen(machine.metrics_url(), timeout=ANSWER_SECONDS) as answer:
            return sum(float(count) for count in re.findall(r"^larder_requests_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE))
    except OSError:
        return 0.0


def in_its_share(balancers, machines, number):
    """Waits until a machine gets its share of the requests of all balancers: checks may not have found it ready yet."""
    def takes():
        before = [requests(machine) for machine in machines]
        time.sleep(0.5)
        grown = [requests(machine) - count for machine, count in zip(machines, before)]
        return grown[number] > LEAST_SHARE * sum(grown)
    until(f"machine {number + 1} takes its share", SHARE_SECONDS, takes, machines, lambda: "\n".join(one.told() for one in balancers))


def ordinary(balancer):
    """Clients with the retries that boto3 has if nothing is set; half of them speak TLS."""
    settings = {"retries": None, "connect_timeout": 5, "read_timeout": 30}
    return [(balancer.over_tls if number % 2 else balancer.boto3)(**settings) for number in range(CLIENTS)]


def killed(balancers, machines, struck, seed, clock):
    """A machine is killed and comes back under clients with ordinary retries."""
    loads = [Load(ordinary(balancer), f"{seed}/{balancer.name}/killed") for balancer in balancers]
    try:
        time.sleep(HEALTHY_SECONDS)
        for number in range(len(machines)):
            in_its_share(balancers, machines, number)
        usual, at = [load.slowest(0)[0] for load in loads], time.monotonic()
        machines[struck].kill()
        time.sleep(STRUCK_SECONDS)
        slowest = [load.slowest(at) for load in loads]
        machines[struck].spawn()
        ready(machines)
        began = time.monotonic()
        in_its_share(balancers, machines, struck)
        took = time.monotonic() - began
    finally:
        stop_all(loads)
    for balancer, load, (seconds, what), before in zip(balancers, loads, slowest, usual):
        if seconds > SLOWEST_SECONDS:
            raise Failed(f"{balancer.name}: {what} took {seconds:.1f} s when a machine was killed")
        clock.tell(f"{balancer.name}: machine {struck + 1} killed under {len(load.done)} requests of clients with ordinary retries, none failed; slowest "
                   f"{seconds:.1f} s ({what}), before {before:.1f} s; in its share {took:.1f} s after it was ready")


def health(machine, question=""):
    """What a machine answers to a question about the cluster, and the servers that a write needs."""
    try:
        with urllib.request.urlopen(f"{machine.endpoint}/healthz/cluster{question}", timeout=5) as answer:
            return answer.status, answer.headers["x-minio-write-quorum"]
    except urllib.error.HTTPError as error:
        return error.code, error.headers["x-minio-write-quorum"]


def may_stop(machine):
    """True if the cluster can spare the machine, as it says itself."""
    return health(machine, "?maintenance=true") == (200, "2")


def drained(balancers, machines, number, seed, clock):
    """A machine is taken out and stopped: clients without retries see nothing of it but the time that the others take to go on. That
    holds when nothing is being caught up with: a placement group can spare one of its members."""
    until("a machine can be spared", WHOLE_SECONDS, lambda: may_stop(machines[number]), machines)
    loads = [Load([balancer.boto3(read_timeout=30) for _ in range(CLIENTS)], f"{seed}/{balancer.name}/drained") for balancer in balancers]
    try:
        for balancer in balancers:
            balancer.take_out(number)
        time.sleep(0.3)
        before = requests(machines[number])
        time.sleep(0.5)
        if (late := requests(machines[number]) - before) > 0:
            raise Failed(f"a machine that was taken out got {late:.0f} requests")
        began = time.monotonic()
        if code := machines[number].stop():
            raise Failed(f"a machine did not stop well: {code}")
        time.sleep(STOPPED_SECONDS)
        slowest = [load.slowest(began) for load in loads]
        others = [machine for machine in machines if machine is not machines[number]]
        if (told := [(health(one)[0], health(one, "?maintenance=true")[0]) for one in others]) != [(200, 412)] * 2:
            raise Failed(f"the others say of the cluster without one machine, and without two: {told}")
        machines[number].spawn()
        ready(machines)
        for balancer in balancers:
            balancer.take_out(None)
        in_its_share(balancers, machines, number)
    finally:
        stop_all(loads)
    for balancer, load, (seconds, what) in zip(balancers, loads, slowest):
        clock.tell(f"{balancer.name}: machine {number + 1} taken out, stopped and back under {len(load.done)} requests of clients without retries, none failed; "
                   f"slowest {seconds:.1f} s ({what})")


def stop_all(loads):
    for load in loads:
        load.stopping.set()
    for load in loads:
        load.stop()


def certificate(scratch):
    """One for localhost, its key beside it, and both in one file as HAProxy wants it."""
    path = scratch / "localhost.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", f"{path}.key", "-out", path], check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=COMMAND_SECONDS,
    )
    pathlib.Path(f"{path}.pem").write_text(path.read_text() + pathlib.Path(f"{path}.key").read_text())
    # Where botocore looks for authorities.
    os.environ["AWS_CA_BUNDLE"] = str(path)
    return path


def test(binary, scratch, seed, kinds):
    rng, clock, balancers = random.Random(seed), Clock(every=0), []
    secret = secret_file(binary, scratch / "cluster.secret")
    machines = equal_machines(Machine, binary, scratch, secret)
    try:
        for machine in machines:
            machine.spawn()
        ready(machines)
        machines[0].boto3().create_bucket(Bucket=BUCKET)
        clock.tell("three machines are ready")
        trusted = certificate(scratch)
        for kind in kinds:
            balancers.append(kind(machines, scratch, trusted))
            balancers[-1].start()
            spoiled(balancers[-1])
        clock.tell("nothing is spoiled on the way")
        struck = rng.randrange(3)
        drained(balancers, machines, (struck + 1) % 3, seed, clock)
        killed(balancers, machines, struck, seed, clock)
    finally:
        for one in [*balancers, *machines]:
            one.stop() if isinstance(one, Balancer) else one.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", choices=("nginx", "haproxy"))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"balancers: seed {arguments.seed}", flush=True)
    kinds = [kind for kind in (Nginx, Haproxy) if arguments.only in (None, kind.name)]
    with scratch_folder(arguments.keep) as scratch:
        try:
            test(arguments.binary, pathlib.Path(scratch), arguments.seed, kinds)
        except (Failed, AssertionError, BotoCoreError, ClientError) as failure:
            print(f"FAIL balancers: {failure}\n0 passed, 1 failed")
            return 1
    print(f"{len(kinds)} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
