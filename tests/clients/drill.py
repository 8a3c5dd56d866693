"""`larder region drill` with two regions, one of which is stopped and started when it says so; and what it says when it fails. Before,
`larder region compare`: what the two have before they are regions, and that they have the same afterwards.

    python3 tests/clients/drill.py [--binary PATH]
"""

import argparse
import os
import subprocess
import sys
import time

from harness import ACCESS, SECRET, default_binary, scratch_folder
from regions import CONVERGED_SECONDS, Region
from workload import Failed


def drill(binary, *words):
    environment = os.environ | {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    return subprocess.Popen(
        [binary, "region", "drill", *words], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


def fails(binary, words, code, said):
    done = drill(binary, *words)
    _, error = done.communicate(timeout=60)
    if done.returncode != code or said not in error:
        raise Failed(f"a drill of {words}: {done.returncode}, {error}")


def compare(binary, words):
    environment = os.environ | {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    done = subprocess.run([binary, "region", "compare", *words], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def compared(binary, regions, named):
    """What two stores have before they are regions, and what would be lost: keys of several pages, with odd characters."""
    one, two = [region.boto3() for region in regions]
    for s3 in (one, two):
        s3.create_bucket(Bucket="both")
    for number in range(300):
        one.put_object(Bucket="both", Key=f"same/{number}", Body=b"same")
        two.put_object(Bucket="both", Key=f"same/{number}", Body=b"same")
    one.put_object(Bucket="both", Key="ärger+ & <1>", Body=b"older")
    one.put_object(Bucket="both", Key="only one", Body=b"one")
    time.sleep(1.1)  # Lists have whole seconds.
    two.put_object(Bucket="both", Key="ärger+ & <1>", Body=b"newer")
    two.put_object(Bucket="both", Key="~", Body=b"two")
    two.create_bucket(Bucket="empty")
    code, said, error = compare(binary, named)
    wanted = ["both: in both, 300 the same, 1 only in one, 1 only in two, 1 with two contents (one's is newer of 0, two's is newer of 1)",
              '  "ärger+ & <1>"', "empty: only in two, 0 objects", "larder-drill: only in one, 0 objects", "1 key has two contents: the older would be gone, in both"]
    if (code, said.splitlines(), error) != (1, wanted, ""):
        raise Failed(f"a comparison ended with {code}: {said}{error}")
    if (code := compare(binary, [named[0], named[0]])[0]) != 2:
        raise Failed(f"a comparison with itself ended with {code}")


def test(binary, regions):
    one, two = regions
    one.start()
    two.start()
    named = [f"{region.name}={region.endpoint}" for region in regions]
    # They are no regions of each other yet.
    fails(binary, [*named, "--seconds", "1"], 1, "two: that it answers is not so after 1 s")
    fails(binary, [named[0], named[0]], 2, "two of the regions are called one")
    fails(binary, [*named, "--away", "three"], 2, "none of the regions that are named is called so")
    fails(binary, [named[0], "two=https://two"], 2, "write http://HOST:PORT")
    compared(binary, regions, named)
    one.stop()
    two.stop()
    one.create()
    one.start()
    token = next(line for line in one.region("token", one.directory).split() if line.startswith("larder-region-"))
    try:
        two.region("join", two.directory, token, *two.place())
        raise Failed("a store with buckets joins without --merge")
    except Failed as failure:
        if f"ended with 2: error: {two.directory} has 2 buckets, such as both" not in str(failure):
            raise
    two.join(one, "--merge")
    two.start()
    deadline = time.monotonic() + CONVERGED_SECONDS
    while (done := compare(binary, named))[0] != 0 or "only in" in done[1].replace(" 0 only in", ""):
        if time.monotonic() > deadline:
            raise Failed(f"two regions do not come to the same: {done}")
        time.sleep(0.2)
    if "both: in both, 303 the same" not in done[1] or "no key has two contents" not in done[1]:
        raise Failed(f"the comparison of two regions: {done}")
    running = drill(binary, *named, "--away", "two")
    said = []
    for line in running.stdout:
        said.append(line)
        if line.startswith("STOP the server of two"):
            two.stop()
        elif line.startswith("START the server of two"):
            two.start()
    error = running.stderr.read()
    if running.wait(60) != 0 or "the regions have the same\n" not in said:
        raise Failed(f"a drill ended with {running.returncode}: {''.join(said)}{error}")
    print("".join(said), end="")
    deadline = time.monotonic() + CONVERGED_SECONDS
    while left := two.boto3().list_objects_v2(Bucket="larder-drill").get("Contents"):
        if time.monotonic() > deadline:
            raise Failed(f"the drill leaves {left}")
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    arguments = parser.parse_args()
    with scratch_folder(False) as scratch:
        regions = [Region(arguments.binary, scratch / name, name) for name in ("one", "two")]
        try:
            test(arguments.binary, regions)
        except (Failed, AssertionError) as failure:
            logs = "\n".join(f"{region.name}:\n{region.log_tail(15)}" for region in regions if region.log.exists())
            print(f"FAIL drill: {failure}\n{logs}\n0 passed, 1 failed")
            return 1
        finally:
            for region in regions:
                region.kill()
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
