"""Uploads in parts of a bucket whose home is another region. A part of regions.py and regions_of_clusters.py.

Where all writes go to the home an upload lies there, and ordinary clients do not notice. Their conditions hold in all regions."""

import io
import time

import region_homes
from botocore.exceptions import ClientError
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
