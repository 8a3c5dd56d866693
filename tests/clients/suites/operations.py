"""The server as its operator meets it: first start, readiness, one server per directory, a clean stop."""

import contextlib
import os
import pty
import signal
import stat
import subprocess
import time
import tomllib
import urllib.error
import urllib.request

from harness import Checks, Server

checks = Checks("operations")

USAGE, CANNOT_START = 2, 3


def get(server, path):
    try:
        with urllib.request.urlopen(f"{server.endpoint}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@checks
def health_needs_no_credentials(bench):
    assert get(bench.server, "/healthz")[0] == 200
    assert get(bench.server, "/readyz")[0] == 200


@checks
def a_second_server_on_the_directory_is_refused(bench):
    second = subprocess.run(
        [bench.server.binary, "server", bench.server.directory, *Server(None, "").flags()],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert second.returncode == CANNOT_START and "in use" in second.stderr, second
    assert bench.s3.list_buckets(), "the first serves on"


@checks
def an_inspection_of_a_running_store_is_refused(bench):
    done = subprocess.run(
        [bench.server.binary, "inspect", bench.server.directory],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == CANNOT_START, done


def started(bench, directory, stderr=subprocess.PIPE):
    """A start without keys in the environment, and a stop: what it printed on both."""
    server = Server(bench.server.binary, directory)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "LARDER_"))}
    process = subprocess.Popen(
        [server.binary, "server", directory, *server.flags()], env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        server.process = process
        server.wait_until_ready()
    finally:
        process.send_signal(signal.SIGTERM)
        printed = process.communicate(timeout=20)
        server.process = None
    return server, printed


def secret_in(directory):
    kept = directory / "credentials.toml"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    return tomllib.loads(kept.read_text())["secret_key"]


@checks
def a_first_start_draws_keys_and_names_their_file_but_logs_no_secret(bench):
    directory = bench.folder() / "fresh"
    for _ in range(2):
        server, (stdout, stderr) = started(bench, directory)
        assert secret_in(directory) not in stdout + stderr, "what is no terminal may be a journal"
        assert str(directory / "credentials.toml") in stdout + stderr, "the file is named"
        assert server.endpoint in stdout + stderr and "aws" in stdout + stderr


@checks
def a_terminal_is_shown_the_secret_once(bench):
    directory = bench.folder() / "fresh"
    shown = []
    for _ in range(2):
        ours, theirs = pty.openpty()
        _, (stdout, _) = started(bench, directory, stderr=theirs)
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 1 << 16):
                text += piece
        os.close(ours)
        shown.append(text.decode())
        assert secret_in(directory) not in stdout, "stdout carries results only"
    assert secret_in(directory) in shown[0] and secret_in(directory) not in shown[1]


@checks
def a_stop_is_clean_and_loses_nothing(bench):
    server = Server(bench.server.binary, bench.folder() / "stopped")
    server.start()
    s3 = server.boto3()
    s3.create_bucket(Bucket="kept")
    s3.put_object(Bucket="kept", Key="small", Body=b"s")
    s3.put_object(Bucket="kept", Key="large", Body=b"l" * 10_000_000)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 10
    code, report = server.inspect()
    assert code == 0, report
    server.start()
    assert s3.get_object(Bucket="kept", Key="large")["Body"].read() == b"l" * 10_000_000
    assert s3.get_object(Bucket="kept", Key="small")["Body"].read() == b"s"
    assert server.stop() == 0


@checks
def what_a_large_object_had_goes_in_steps_that_a_crash_does_not_end(bench):
    # One request removes this many rows. A piece has a row, and its chunk another; those of a MiB are never coalesced.
    step, mib = 256, 1 << 20
    server = Server(bench.server.binary, bench.folder() / "steps")
    server.start()

    def append_and_delete(key, pieces):
        for at in range(pieces):
            s3.put_object(Bucket="logs", Key=key, Body=bytes(mib), WriteOffsetBytes=at * mib)
        s3.delete_object(Bucket="logs", Key=key)
        assert "Contents" not in s3.list_objects_v2(Bucket="logs"), "it is gone at once"

    def wait_for_steps(rows):
        deadline = time.monotonic() + 30
        while server.metric("larder_reaped_rows_total") < rows:
            assert time.monotonic() < deadline, f"{rows} rows were to go in steps"
            time.sleep(0.05)

    try:
        s3 = server.boto3()
        s3.create_bucket(Bucket="logs")
        # Steps are agreed on within the time that the second half takes.
        append_and_delete("short", step + 44)
        wait_for_steps(step + 88)
        append_and_delete("long", step + 44)
        server.kill()
        code, report = server.inspect()
        assert code == 0, report
        server.start()
        s3 = server.boto3()
        if "in steps" in report:
            wait_for_steps(1)
        s3.delete_bucket(Bucket="logs")
        assert server.stop() == 0
        code, report = server.inspect()
        assert code == 0, report
    finally:
        server.kill()


@checks
def metrics_are_served_for_prometheus(bench):
    with urllib.request.urlopen(bench.server.metrics_url(), timeout=10) as answer:
        text = answer.read().decode()
    assert "# TYPE" in text and "larder_" in text, text[:300]


@checks
def help_is_there_for_every_command(bench):
    for command in ([], ["server"], ["inspect"], ["bench"]):
        done = subprocess.run(
            [bench.server.binary, *command, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0 and len(done.stdout) > 200, (command, done)


@checks
def a_bad_setting_is_named_with_its_remedy(bench):
    config = bench.file(b"no_such_setting = 1\n", "larder.toml")
    done = subprocess.run(
        [bench.server.binary, "server", bench.folder(), "--config", config, *Server(None, "").flags()],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert done.returncode == USAGE and "no_such_setting" in done.stderr, done
