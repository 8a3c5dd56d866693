"""Lists of the keys of all regions. A part of regions.py and regions_of_clusters.py.

A change that was answered by one region is in the next such list, whichever machine of whichever region is asked."""

import statistics
import time

from botocore.exceptions import ClientError
from workload import Failed

BUCKET = "lists"
HEADER = "x-larder-list-regions"
MADE_SECONDS = 20


def lister(place, value="all"):
    """A client whose lists are of all regions."""
    s3 = place.boto3(connect_timeout=2, read_timeout=30, retries={"total_max_attempts": 1})
    s3.meta.events.register("before-sign.s3.ListObjectsV2", lambda request, **_: request.headers.add_header(HEADER, value))
    return s3


def items(s3, of_all=True, **asked):
    """Keys and groups of all pages."""
    found = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, **asked):
        if of_all != (page["ResponseMetadata"]["HTTPHeaders"].get(HEADER) == "all"):
            raise Failed("an answer does not say of which regions it is")
        found += [one["Key"] for one in page.get("Contents", [])]
        found += [one["Prefix"] for one in page.get("CommonPrefixes", [])]
    return sorted(found)


def at_once(writers, readers, clock):
    writers = [place.boto3() for place in writers]
    writers[0].create_bucket(Bucket=BUCKET)
    readers, until = [(place.name, lister(place), place.boto3()) for place in readers], time.monotonic() + MADE_SECONDS
    for name, _, plain in readers:
        while BUCKET not in [one["Name"] for one in plain.list_buckets()["Buckets"]]:
            if time.monotonic() > until:
                raise Failed(f"{name} does not have a bucket that was made elsewhere")
            time.sleep(0.05)
    keys, lacked, times = set(), 0, []
    for number in range(40):
        s3, key = writers[number % len(writers)], f"{number % 7}/{number}"
        s3.put_object(Bucket=BUCKET, Key=key, Body=bytes(300))
        keys.add(key)
        if number % 5 == 4:
            # By the region that put it: another may not have it yet.
            s3.delete_object(Bucket=BUCKET, Key=key)
            keys.remove(key)
        # All pairs of writers and readers have their turn.
        name, listing, plain = readers[(number + number // len(writers) + 1) % len(readers)]
        groups = sorted({key.split("/")[0] + "/" for key in keys})
        began = time.monotonic()
        shown = items(listing, Delimiter="/")
        times.append(time.monotonic() - began)
        if shown != groups:
            raise Failed(f"a list of all regions through {name} shows {shown}, not {groups}")
        lacked += items(plain, of_all=False) != sorted(keys)
        if (shown := items(listing, PaginationConfig={"PageSize": 9})) != sorted(keys):
            raise Failed(f"a list of all regions through {name} shows {shown}, not {sorted(keys)}")
    if not lacked:
        raise Failed("no list of one region lacked a change: lists of all regions show nothing")
    clock.tell(f"lists of all regions had each of {40 + 8} changes at once ({lacked} of 40 lists of one region did not), "
               f"in {1000 * statistics.median(times):.0f} ms at the median")


def needs_all(place, away):
    """A region does not answer: a list of all regions says so."""
    try:
        found = items(lister(place))
        raise Failed(f"a list of all regions has {len(found)} keys while region {away} is away")
    except ClientError as error:
        status, message = error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Message"]
        if status != 503 or f"Region {away}" not in message:
            raise Failed(f"a list of all regions while {away} is away is answered with {status}: {message}") from error
    items(place.boto3(), of_all=False)
