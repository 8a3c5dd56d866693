"""A store whose data lies on a block device: it serves, survives kills, and refuses a device that is not its own.

The device is a loop device over a file. Needs root.

    python3 tests/clients/device.py [--binary PATH]
"""

import argparse
import subprocess
import sys

from disk import sh
from harness import Server, content, default_binary, scratch_folder
from workload import Failed

DEVICE_BYTES = 1 << 30
BUCKET = "device"
OBJECTS = 300
KILLS = 3


def loop_device(file):
    with file.open("wb") as made:
        made.truncate(DEVICE_BYTES)
    done = subprocess.run(["losetup", "--find", "--show", file], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def size_of(number):
    return (300, 8 << 10, 100 << 10, 2 << 20)[number % 4]


def put_and_kill(server, first):
    s3 = server.boto3()
    for number in range(first, first + OBJECTS):
        s3.put_object(Bucket=BUCKET, Key=f"k{number}", Body=content(number, size_of(number)))
        if number % 3 == 0:
            s3.delete_object(Bucket=BUCKET, Key=f"k{number}")
    server.kill()


def check(server, count):
    s3 = server.boto3()
    for number in range(count):
        if number % 3 == 0:
            continue
        if s3.get_object(Bucket=BUCKET, Key=f"k{number}")["Body"].read() != content(number, size_of(number)):
            raise Failed(f"k{number} reads otherwise than it was put")


def inspect(server, settings):
    done = subprocess.run(
        [server.binary, "inspect", server.directory, "--config", settings], capture_output=True, text=True,
    )
    if done.returncode != 0:
        raise Failed(f"inspect ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-1000:]}")


def refused(server, device, settings):
    """Another device, which was never this store's, in place of its own."""
    settings.write_text(f'data = "{device}"\n')
    server.spawn()
    code = server.process.wait(30)
    server.process = None
    if code == 0 or device not in server.log_tail(5):
        raise Failed(f"a device that is not the store's: ended with {code}:\n{server.log_tail(5)}")


def a_copy_is_refused(server, settings):
    """A server on a copy of the directory, whose configuration names the device that the first server has."""
    copy = server.directory.with_name("copy")
    subprocess.run(["cp", "-a", server.directory, copy], check=True)
    command = [server.binary, "server", copy, "--config", settings, "--listen", "127.0.0.1:0", "--metrics-listen", "off"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode == 0 or "in use by another process" not in done.stderr + done.stdout:
        raise Failed(f"a second server on the device ended with {done.returncode}:\n{(done.stderr + done.stdout)[-1000:]}")


def too_many_groups_are_refused(server, device, settings):
    settings.write_text(f'data = "{device}"\npg_count = 256\n')
    server.spawn()
    code = server.process.wait(30)
    server.process = None
    if code != 2 or "pg_count" not in server.log_tail(5):
        raise Failed(f"256 groups on {DEVICE_BYTES >> 20} MiB: ended with {code}:\n{server.log_tail(5)}")
    settings.write_text(f'data = "{device}"\n')


def run(server, device, other, settings):
    too_many_groups_are_refused(server, device, settings)
    server.start()
    server.boto3().create_bucket(Bucket=BUCKET)
    for round_number in range(KILLS):
        put_and_kill(server, round_number * OBJECTS)
        inspect(server, settings)
        server.start()
        check(server, (round_number + 1) * OBJECTS)
    a_copy_is_refused(server, settings)
    check(server, KILLS * OBJECTS)
    if server.stop() != 0:
        raise Failed("the stop was not clean")
    inspect(server, settings)
    refused(server, other, settings)
    settings.write_text(f'data = "{device}"\n')
    server.start()
    check(server, KILLS * OBJECTS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    arguments = parser.parse_args()
    devices = []
    with scratch_folder() as scratch:
        settings = scratch / "larder.toml"
        server = Server(arguments.binary, scratch / "store", ["--config", settings], scratch / "server.log")
        try:
            devices = [loop_device(scratch / name) for name in ("own", "other")]
            run(server, *devices, settings)
        except (Failed, AssertionError, OSError, subprocess.SubprocessError) as failure:
            log = server.log_tail() if server.log.exists() else ""
            print(f"FAIL device: {failure}\n{log}\n0 passed, 1 failed")
            return 1
        finally:
            server.kill()
            for device in devices:
                sh("losetup", "--detach", device)
    print(f"device: {KILLS} kills, {KILLS * OBJECTS} puts on {devices[0]}, none lost, another device refused")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
