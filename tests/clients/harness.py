"""What every black-box test needs: a server of its own, a place for files, checks that are counted.

A check passes by returning and fails by raising. Nothing is skipped: what cannot be run has failed.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
ACCESS = "LARDERTESTROOTKEY000"
SECRET = "larder/test+root/secret0000000000000000"
VIRTUAL_HOST = "s3.larder.test"
READY_SECONDS = 60
STOP_SECONDS = 15
CHECK_SECONDS = 300
COMMAND_SECONDS = 240
# Below those of /proc/sys/net/ipv4/ip_local_port_range. Runs beside each other are given ranges that do not meet.
SERVER_PORTS = tuple(map(int, os.environ.get("LARDER_TEST_PORTS", "10000-20000").split("-")))
# Each belongs to one server of this run, also while that server is not up yet.
_given_ports = set()


# A session may not be used by two threads while it makes a client.
_making_clients = threading.Lock()


@functools.cache
def _boto3_session():
    """One for the process: each reads the whole model of S3, which takes thirty times as long as to make a client."""
    import boto3

    return boto3.session.Session()


def default_binary():
    """The program of LARDER_TEST_BINARY; that of the release build if it is not set."""
    built = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "larder"
    return pathlib.Path(os.environ.get("LARDER_TEST_BINARY", built)).absolute()


def free_port():
    """A port that nobody listens at, that was given to nobody here, and that the system does not give to connections: a server
    that starts on it later, or again, would find it taken by one."""
    while True:
        port = random.SystemRandom().randrange(*SERVER_PORTS)
        if port in _given_ports:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            _given_ports.add(port)
            return port


def content(seed, size):
    """Bytes that are the same for the same seed and differ for others; cheap for large sizes."""
    return random.Random(str(seed)).randbytes(size)


def md5(data):
    return hashlib.md5(data).hexdigest()


class Host:
    """Where a server runs: on this machine, unless a test makes a network."""

    address = "127.0.0.1"

    def inside(self, line):
        """The command line that runs another one there."""
        return line


class Server:
    """One `larder server` process on a directory. Restartable; the port stays."""

    def __init__(self, binary, directory, extra=(), log=None, host=Host()):
        self.binary, self.directory, self.extra, self.host = binary, pathlib.Path(directory), list(extra), host
        self.port, self.metrics_port = free_port(), free_port()
        self.endpoint = f"http://{host.address}:{self.port}"
        self.log = pathlib.Path(log) if log else pathlib.Path(f"{directory}.log")
        self.process = None

    def start(self):
        """Starts it and waits until it is ready."""
        self.spawn()
        self.wait_until_ready()
        return self

    def spawn(self):
        assert self.process is None, "the server runs already"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "LARDER_"))}
        environment |= {"LARDER_ROOT_ACCESS_KEY": ACCESS, "LARDER_ROOT_SECRET_KEY": SECRET, **self.environment()}
        line = self.host.inside([self.binary, *self.command(), *self.flags(), *self.extra])
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                line, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def command(self):
        """What is run."""
        return ["server", self.directory]

    def environment(self):
        """What it finds in its environment besides."""
        return {}

    def flags(self):
        """How the server is told where to listen; metrics get a free port, so that servers do not meet."""
        return ["--listen", f"{self.host.address}:{self.port}", "--metrics-listen", f"{self.host.address}:{self.metrics_port}"]

    def metrics_url(self):
        return f"http://{self.host.address}:{self.metrics_port}/metrics"

    def metric(self, name):
        with urllib.request.urlopen(self.metrics_url(), timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def wait_until_ready(self):
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}, {self.log_tail(1)}\n{self.log_tail()}")
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"{self.endpoint}/readyz", timeout=5) as answer:
                    if answer.status == 200:
                        return
            time.sleep(0.02)
        self.kill()
        raise AssertionError(f"the server was not ready within {READY_SECONDS} s:\n{self.log_tail()}")

    def log_tail(self, lines=40):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        """`kill -9`."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self):
        """SIGTERM; the exit code."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not stop within {STOP_SECONDS} s") from None
        self.process = None
        return code

    def inspect(self):
        """`larder inspect` of the stopped store: exit code and what it printed."""
        assert self.process is None, "inspect wants a stopped server"
        done = subprocess.run(
            [self.binary, "inspect", self.directory],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS,
        )
        return done.returncode, done.stdout + done.stderr

    def boto3(self, **settings):
        """A boto3 client with root's keys, without retries, so that every answer is seen."""
        from botocore.config import Config

        settings = {"retries": {"total_max_attempts": 1}, "max_pool_connections": 64, **settings}
        settings.setdefault("s3", {"addressing_style": "path"})
        with _making_clients:
            return _boto3_session().client(
                "s3", endpoint_url=self.endpoint, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET,
                region_name="us-east-1", config=Config(**settings),
            )


class PackServer(Server):
    """One `larder pack` process on a directory, over blobs in another, or in a bucket of another server. Small blobs that
    go up soon."""

    SIZES = ["--blob-mib", "4", "--packed-kib", "1024", "--spool-mib", "256", "--flush-ms", "500"]

    def __init__(self, binary, directory, blobs, extra=(), log=None, backend=None):
        super().__init__(binary, directory, extra, log)
        self.blobs, self.backend = pathlib.Path(blobs), backend
        self.prefix = self.blobs.name

    def command(self):
        url = f"s3://blobs/{self.prefix}?endpoint={self.backend.endpoint}" if self.backend else f"file://{self.blobs}"
        return ["pack", self.directory, "--backend", url, *self.SIZES]

    def environment(self):
        return {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}

    def fetch(self):
        """Brings the blobs of a bucket here, to be looked at."""
        s3, here = self.backend.boto3(), self.blobs / "blobs"
        here.mkdir(parents=True)
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket="blobs", Prefix=f"{self.prefix}/blobs/"):
            for blob in page.get("Contents", []):
                s3.download_file("blobs", blob["Key"], str(here / blob["Key"].rsplit("/")[-1]))

    def wait_until_uploaded(self):
        deadline = time.monotonic() + READY_SECONDS
        while self.metric("larder_pack_waiting_blobs"):
            assert time.monotonic() < deadline, f"blobs wait for longer than {READY_SECONDS} s"
            time.sleep(0.05)

    def inspect(self):
        """`larder pack inspect --verify` of every blob: exit code and what was wrong."""
        code, faults = 0, ""
        # With a number behind a hash they are what a killed process had begun.
        for blob in sorted(blob for blob in (self.blobs / "blobs").iterdir() if "#" not in blob.name):
            done = subprocess.run(
                [self.binary, "pack", "inspect", "--verify", blob],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                timeout=COMMAND_SECONDS,
            )
            if done.returncode:
                code, faults = done.returncode, faults + f"{blob.name}: {done.stderr}"
        return code, faults


class Checks:
    """The checks of one suite, in the order they are written."""

    def __init__(self, name):
        self.name, self.all = name, []

    def __call__(self, function):
        self.all.append(function)
        return function


class Bench:
    """What a check works with."""

    def __init__(self, server, scratch, name=""):
        self.server, self.scratch, self.name = server, pathlib.Path(scratch), name
        self.s3 = server.boto3()
        self._buckets = 0

    def bucket(self, hint="b"):
        """A new bucket."""
        self._buckets += 1
        name = f"{hint}{self.name}-{self._buckets}-{os.getpid()}"
        self.s3.create_bucket(Bucket=name)
        return name

    def raw(self):
        from sigv4 import Raw

        return Raw(self.server.port, ACCESS, SECRET)

    def folder(self):
        """A new empty folder, removed with the run."""
        return pathlib.Path(tempfile.mkdtemp(dir=self.scratch))

    def file(self, data, name="file"):
        path = self.folder() / name
        path.write_bytes(data)
        return path


def command(line, environment=None, cwd=None, expect=0, stdin=None):
    """Runs a client; its output. A client that is not installed, or ends otherwise than expected, fails."""
    program = shutil.which(str(line[0]), path=search_path())
    assert program, f"{line[0]} is not installed"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RCLONE_", "RESTIC_"))}
    clean["PATH"] = search_path()
    done = subprocess.run(
        [program, *map(str, line[1:])], env={**clean, **(environment or {})}, cwd=cwd,
        input=stdin, stdin=None if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_SECONDS,
    )
    output = done.stdout.decode(errors="replace")
    if expect is not None:
        assert done.returncode == expect, f"{' '.join(map(str, line))} ended with {done.returncode}:\n{output[-3000:]}"
    return output


def search_path():
    """The programs of this Python's environment come first."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])


def aws_environment(server):
    return {
        "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server.endpoint, "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1",
        "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_PAGER": "",
    }


@contextlib.contextmanager
def fails(code, status=None):
    """The body must fail with this S3 error code (for HEAD, which has no body: the status as a string)."""
    from botocore.exceptions import ClientError

    try:
        yield
    except ClientError as error:
        answer = error.response
        got = (answer["Error"].get("Code"), answer["ResponseMetadata"]["HTTPStatusCode"])
        codes = code if isinstance(code, tuple) else (code,)
        assert got[0] in codes, f"expected {code}, got {got}: {answer['Error'].get('Message')}"
        assert status in (None, got[1]), f"expected status {status}, got {got}"
        return
    raise AssertionError(f"expected {code}, but it succeeded")


class TookTooLong(Exception):
    """A check ran past its limit."""


def run_checks(suites, bench, only=None):
    """Runs every check with a time limit; (passed, failed)."""
    def too_long(*_):
        raise TookTooLong(f"longer than {CHECK_SECONDS} s")

    signal.signal(signal.SIGALRM, too_long)
    passed = failed = 0
    for checks in suites:
        began, before = time.monotonic(), (passed, failed)
        for function in checks.all:
            name = f"{checks.name}/{function.__name__}"
            if only and only not in name:
                continue
            signal.alarm(CHECK_SECONDS)
            try:
                function(bench)
                passed += 1
            except Exception as error:
                failed += 1
                print(f"FAIL {name}: {type(error).__name__}: {error}")
                print("".join(traceback.format_tb(error.__traceback__)[-3:]), end="")
            finally:
                signal.alarm(0)
        took = time.monotonic() - began
        if (passed, failed) == before:
            continue
        print(f"{checks.name}: {passed - before[0]} passed, {failed - before[1]} failed, {took:.1f} s", flush=True)
    return passed, failed


@contextlib.contextmanager
def scratch_folder(keep=False):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="larder-test-"))
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
