"""Objects that clients of several regions append to. A part of regions.py and regions_of_clusters.py.

A bucket without a home takes no appends; one with a home does, in all regions. Each record that was acknowledged is in the object once,
where it was said to be, in every region. Between regions pass the records, and not again all that was there."""

import time
import urllib.request

from botocore.exceptions import BotoCoreError, ClientError
from workload import Failed

BUCKET = "homed"
KEY = "records"
SAME_SECONDS = 60


def client(place):
    """Asks once, and appends what it puts under the name of the records."""
    s3 = place.boto3(connect_timeout=2, read_timeout=30, retries={"total_max_attempts": 1})

    def mark(request, **_):
        if f"/{KEY}" in request.url:
            request.headers.add_header("x-larder-append", "record")

    s3.meta.events.register("before-sign.s3.PutObject", mark)
    return s3


def append(s3, body, bucket=BUCKET, key=KEY):
    """Appends a record; returns its offset."""
    answer = s3.put_object(Bucket=bucket, Key=key, Body=body)
    return int(answer["ResponseMetadata"]["HTTPHeaders"]["x-larder-offset"])


def refused(place, bucket):
    """A bucket of several regions that has no home takes no appends, and the answer says why."""
    try:
        append(client(place), b"record", bucket)
        raise Failed("a bucket without a home is appended to")
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 501 or "larder region home" not in error.response["Error"]["Message"]:
            raise Failed(f"an append to a bucket without a home is answered with {error}") from error


def tails(place):
    """Versions of which this place has fetched only the end."""
    with urllib.request.urlopen(place.metrics_url(), timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("larder_region_tails_total"))


def shows(s3, body, key):
    try:
        return s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == body
    except (ClientError, BotoCoreError):
        return False


def passed_once(home, others, bytes_passed):
    """Appends small records to a large object: they alone pass between regions."""
    key, body, s3 = f"{KEY}/large", bytes(range(256)) * 16384, client(home)
    append(s3, body, key=key)
    for place in others:
        awaited(place, body, key)
    before, fetched = bytes_passed(), sum(tails(place) for place in others)
    for number in range(40):
        record = f"{number:08}".encode() * 1000
        # At the home, and elsewhere: these go by way of the home.
        place = [home, *others][number % (1 + len(others))]
        offset = append(client(place), record, key=key)
        if offset != len(body):
            raise Failed(f"a record is at {offset}, and not at the end, {len(body)}")
        body += record
    for place in [home, *others]:
        awaited(place, body, key)
    share = (bytes_passed() - before) / (40 * 8000 * len(others))
    found = sum(tails(place) for place in others) - fetched
    if found < len(others):
        raise Failed(f"{found} times only the end of an object was fetched")
    # Those that were made elsewhere pass twice. What is idle passes too.
    if share > 4:
        raise Failed(f"{share:.1f} bytes pass for each byte that was appended: all that was there passes again")
    print(f"40 records on an object of 4 MiB: {share:.2f} bytes pass for each byte and region, in {found:.0f} ends of the object")


def awaited(place, body, key):
    s3, until = client(place), time.monotonic() + SAME_SECONDS
    while not shows(s3, body, key):
        if time.monotonic() > until:
            raise Failed(f"{place.name} does not have {key} as it was appended")
        time.sleep(0.05)


class Records:
    """Records that a client appends, and where they are."""

    def __init__(self, writer):
        self.writer, self.tries = writer, 0
        self.acknowledged, self.tried = {}, set()

    def append(self, place, rng):
        self.tries += 1
        record = f"{self.writer} {self.tries} {'x' * rng.randrange(5000)}\n"
        self.tried.add(record)
        try:
            self.acknowledged[record] = append(client(place), record.encode())
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise Failed(f"an append is answered with {error}") from error


def held(all_records, places, clock):
    """All places have the same records: those that were acknowledged where they were said to be, and none twice."""
    acknowledged, tried = {}, set()
    for records in all_records:
        acknowledged |= records.acknowledged
        tried |= records.tried
    if not acknowledged:
        raise Failed("no record was appended")
    body = client(places[0]).get_object(Bucket=BUCKET, Key=KEY)["Body"].read()
    for place in places[1:]:
        awaited(place, body, KEY)
    found, offset = {}, 0
    for line in body.decode().splitlines(keepends=True):
        if line in found or line not in tried:
            raise Failed(f"a record is there twice, or nobody appended it: {line[:40]}")
        found[line] = offset
        offset += len(line)
    wrong = {record[:20]: at for record, at in acknowledged.items() if found.get(record) != at}
    if wrong:
        raise Failed(f"these were appended at other offsets, or are not there: {wrong}")
    clock.tell(f"{len(acknowledged)} records are in one object once each, and where they were said to be, in all regions")
