"""A region that was removed takes no changes of clients, as no other would ever have them; what it has can be read. Part of regions.py
and regions_of_clusters.py."""

import time
import urllib.error
import urllib.request

from botocore.exceptions import ClientError
from region_buckets import client
from workload import Failed

# The region hears of it when it next asks another one, and a machine of a cluster from its managers.
HEARD_SECONDS = 30
SAID = "this region was removed"


def refusal(change):
    """Why a change is refused as of a removed region; None if it is made."""
    try:
        change()
    except ClientError as error:
        said, status = error.response["Error"]["Message"], error.response["ResponseMetadata"]["HTTPStatusCode"]
        if status == 503 and SAID in said:
            return said
        raise Failed(f"a removed region answers a change with {status}: {said}") from error
    return None


def is_ready(place):
    try:
        with urllib.request.urlopen(f"{place.endpoint}/readyz", timeout=5):
            return True
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise Failed(f"/readyz answers {error.code}") from error
        return False


def shows_removal(place):
    with urllib.request.urlopen(place.metrics_url(), timeout=5) as answer:
        return "larder_region_removed 1\n" in answer.read().decode()


def removed(remover, region, places, bucket, clock):
    """Removes a region, which is at these places, at another one."""
    places[0].boto3().put_object(Bucket=bucket, Key="removal", Body=b"kept")
    remover.region("remove", remover.directory, region.name, "--yes")
    deadline = time.monotonic() + HEARD_SECONDS
    for place in places:
        s3 = client(place)
        while not refusal(lambda s3=s3: s3.put_object(Bucket=bucket, Key="later", Body=b"lost")):
            if time.monotonic() > deadline:
                raise Failed(f"{HEARD_SECONDS} s after its removal a region takes puts")
            time.sleep(0.1)
        for change in (
            lambda s3=s3: s3.delete_object(Bucket=bucket, Key="removal"),
            lambda s3=s3: s3.put_object_tagging(Bucket=bucket, Key="removal", Tagging={"TagSet": []}),
            lambda s3=s3: s3.create_multipart_upload(Bucket=bucket, Key="parts"),
            lambda s3=s3: s3.create_bucket(Bucket="removal"),
            lambda s3=s3: s3.delete_bucket(Bucket=bucket),
        ):
            if not refusal(change):
                raise Failed("a removed region makes a change")
        if s3.get_object(Bucket=bucket, Key="removal")["Body"].read() != b"kept":
            raise Failed("a removed region does not give what it has")
        if is_ready(place):
            raise Failed("a removed region is ready")
    if not any(shows_removal(place) for place in places):
        raise Failed("a removed region has no metric that says so")
    clock.tell("a region that was removed takes no changes, and gives what it has")
