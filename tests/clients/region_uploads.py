"""Uploads in parts of a bucket whose home is another region. A part of regions.py, regions_of_clusters.py and region_sites.py.

Where all writes go to the home an upload lies there, and ordinary clients do not notice. Their conditions hold in all regions, also while
the home moves."""

import io
import threading
import time

import region_homes
from botocore.exceptions import BotoCoreError, ClientError
from harness import content
from workload import Failed

PART = 5 << 20
SAME_SECONDS = 60
# As `larder region home` says it.
ALL, CONDITIONS = "all changes go there", "changes with conditions go there"


def code_of(call, **words):
    """The code of the error that a call ends with."""
    try:
        call(Bucket=region_homes.BUCKET, **words)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return None


def upload(s3, key, parts):
    """Puts the parts of an upload, and returns the words that complete it."""
    begun = s3.create_multipart_upload(Bucket=region_homes.BUCKET, Key=key, ContentType="text/uploaded")["UploadId"]
    put = [
        s3.upload_part(Bucket=region_homes.BUCKET, Key=key, UploadId=begun, PartNumber=number, Body=part)["ETag"]
        for number, part in enumerate(parts, 1)
    ]
    named = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(put, 1)]
    return {"Key": key, "UploadId": begun, "MultipartUpload": {"Parts": named}}


def awaited(places, key, body, etag):
    until = time.monotonic() + SAME_SECONDS
    for place in places:
        s3 = region_homes.client(place)
        while True:
            try:
                read = s3.get_object(Bucket=region_homes.BUCKET, Key=key)
                if (read["Body"].read(), read["ETag"], read["ContentType"]) == (body, etag, "text/uploaded"):
                    break
            except ClientError as error:
                if error.response["Error"]["Code"] not in ("NoSuchKey", "ServiceUnavailable"):
                    raise
            if time.monotonic() > until:
                raise Failed(f"{place.name} does not have {key} as it was uploaded")
            time.sleep(0.1)


def with_conditions(place, key):
    """An upload that lies elsewhere than at the home is completed without a condition there, and the answer to one with says so."""
    s3 = region_homes.client(place)
    words = upload(s3, key, [content(key, PART), content(f"{key} end", 70_000)])
    code = code_of(s3.complete_multipart_upload, IfNoneMatch="*", **words)
    if code != "NotImplemented":
        raise Failed(f"an upload that is completed with a condition elsewhere than at the home is answered with {code}")
    s3.complete_multipart_upload(Bucket=region_homes.BUCKET, **words)


def at_home(place, places, key):
    """An upload that lies at the home is one, as far as a client elsewhere sees."""
    s3 = region_homes.client(place)
    parts = [content(f"{key} {number}", PART) for number in range(3)]
    words = upload(s3, key, parts)
    shown = s3.list_parts(Bucket=region_homes.BUCKET, Key=key, UploadId=words["UploadId"])["Parts"]
    if [part["Size"] for part in shown] != [PART] * 3:
        raise Failed(f"an upload at the home has the parts {shown}")
    too_large = code_of(s3.upload_part, Key=key, UploadId=words["UploadId"], PartNumber=4, Body=bytes((8 << 20) + 1))
    lacking = {**words, "MultipartUpload": {"Parts": [{"PartNumber": 9, "ETag": '"00"'}]}}
    not_put = code_of(s3.complete_multipart_upload, **lacking)
    ends = [s3.complete_multipart_upload(Bucket=region_homes.BUCKET, **words)["ETag"] for _ in range(2)]
    gone = code_of(s3.upload_part, Key=key, UploadId=words["UploadId"], PartNumber=1, Body=b"late")
    if (too_large, not_put, ends[0] == ends[1], gone) != ("EntityTooLarge", "InvalidPart", True, "NoSuchUpload"):
        raise Failed(f"an upload at the home is answered with {too_large}, {not_put}, {ends}, {gone}")
    awaited(places, key, b"".join(parts), ends[0])
    # Of two that are to make a key one does.
    code = code_of(s3.complete_multipart_upload, IfNoneMatch="*", **upload(s3, key, parts[:1]))
    if code != "PreconditionFailed":
        raise Failed(f"a second upload that is to make a key is answered with {code}")
    aborted = s3.create_multipart_upload(Bucket=region_homes.BUCKET, Key=key)["UploadId"]
    s3.abort_multipart_upload(Bucket=region_homes.BUCKET, Key=key, UploadId=aborted)
    gone = code_of(s3.list_parts, Key=key, UploadId=aborted)
    if gone != "NoSuchUpload":
        raise Failed(f"an upload that was aborted from elsewhere is answered with {gone}")
    # A client that uploads in parts of its own accord.
    body = content(f"{key} managed", 20 << 20)
    s3.upload_fileobj(io.BytesIO(body), region_homes.BUCKET, f"{key} managed", ExtraArgs={"ContentType": "text/uploaded"})
    awaited(places, f"{key} managed", body, s3.head_object(Bucket=region_homes.BUCKET, Key=f"{key} managed")["ETag"])


def knows(region, said):
    """Waits until a region's command about the home says this."""
    until = time.monotonic() + SAME_SECONDS
    while said not in (shown := region.region("home", region.directory, region_homes.BUCKET, expect=None)):
        if time.monotonic() > until:
            raise Failed(f"{region.name} says of the home of {region_homes.BUCKET}: {shown}")
        time.sleep(0.2)


def through_home(home, other, place, places, clock):
    """Uploads through a place of another region than the home."""
    with_conditions(place, "uploads/conditions")
    home.region("home", home.directory, region_homes.BUCKET, "here", "--all-writes")
    knows(other, ALL)
    began = time.monotonic()
    at_home(place, places, "uploads/writes")
    took = time.monotonic() - began
    s3 = region_homes.client(place)
    left = upload(s3, "uploads/left", [b"begun while all writes went to the home"])
    home.region("home", home.directory, region_homes.BUCKET, "here")
    knows(other, CONDITIONS)
    s3.complete_multipart_upload(Bucket=region_homes.BUCKET, **left)
    clock.tell(f"uploads from elsewhere lie at the home, and make a key once: {took:.1f} s for 40 MiB in parts")


class Uploader(threading.Thread):
    """Uploads objects in parts through places chosen at random, while the home moves. Every second one is to make a key that others
    are to make, too."""

    def __init__(self, number, places, rng, until):
        super().__init__()
        self.number, self.places, self.rng, self.ends = number, places, rng, until
        self.failure = None
        # By key: contents of uploads that were completed, and of those that may have been.
        self.made, self.may_have_made, self.tries = {}, {}, 0

    def run(self):
        try:
            while time.monotonic() < self.ends:
                self.tries += 1
                once = self.tries % 2 == 0
                key = f"uploaded/once/{self.rng.randrange(30)}" if once else f"uploaded/{self.number}/{self.tries}"
                self.one(key, {"IfNoneMatch": "*"} if once else {})
                time.sleep(self.rng.uniform(0, 0.5))
        except Failed as failure:
            self.failure = failure

    def one(self, key, condition):
        name = f"{key} {self.number} {self.tries}"
        last = content(name, self.rng.choice([1, 3000, 70_000]))
        parts = [content(f"{name} first", PART), last] if self.rng.random() < 0.1 else [last]
        s3, completing = region_homes.client(self.rng.choice(self.places)), False
        try:
            words = upload(s3, key, parts)
            completing = True
            s3.complete_multipart_upload(Bucket=region_homes.BUCKET, **condition, **words)
            self.made.setdefault(key, []).append(b"".join(parts))
        except (ClientError, BotoCoreError) as error:
            self.refused(error, key, b"".join(parts), completing)

    def refused(self, error, key, body, completing):
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else None
        # The home moved meanwhile, or another one has made the key.
        if code in ("NoSuchUpload", "NotImplemented", region_homes.FAILED):
            return
        if isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
            raise Failed(f"an upload is answered with {error}") from error
        if completing:
            self.may_have_made.setdefault(key, []).append(body)
        time.sleep(0.05)


def uploaders(places, rng, until, new_rng):
    started = [Uploader(number, places, new_rng(rng), until) for number in range(2)]
    for one in started:
        one.start()
    return started


def held(started, places, clock):
    """Waits for these to end. What was completed is whole at all places; what several were to make was made once."""
    made, may_have_made = {}, {}
    for one in started:
        one.join()
        if one.failure:
            raise one.failure
        for all_of, of in ((made, one.made), (may_have_made, one.may_have_made)):
            for key, bodies in of.items():
                all_of.setdefault(key, []).extend(bodies)
    twice = [key for key, bodies in made.items() if len(bodies) > 1]
    if twice:
        raise Failed(f"completed more than once, each to make the key: {twice}")
    found = {}
    for place in places:
        s3, lacking, until = region_homes.client(place), made.keys() | may_have_made.keys(), None
        while lacking := {key for key in lacking if not as_elsewhere(s3, key, made.get(key), may_have_made.get(key, []), found)}:
            until = until or time.monotonic() + SAME_SECONDS
            if time.monotonic() > until:
                raise Failed(f"{place.name} does not have what was uploaded as {sorted(lacking)}")
            time.sleep(0.1)
    if not made:
        raise Failed("no upload was completed")
    once = sum(key.startswith("uploaded/once/") for key in made)
    clock.tell(f"{len(made)} uploads in parts are whole in all regions, {once} of them of keys that several were to make")


def as_elsewhere(s3, key, made, may_have_made, found):
    """True if a place has what was uploaded, and what the places before it have."""
    try:
        body = s3.get_object(Bucket=region_homes.BUCKET, Key=key)["Body"].read()
    except ClientError as error:
        body = None
        if error.response["Error"]["Code"] != "NoSuchKey":
            return False
    except BotoCoreError:
        return False
    allowed = made or [None, *may_have_made]
    return body in allowed and found.setdefault(key, body) == body
