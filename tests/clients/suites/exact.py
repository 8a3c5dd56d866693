"""What goes into an answer and out of a request exactly: characters, digests, dates, entity tags, form fields."""

import base64
import datetime
import hashlib
import hmac
import json
import re
import zlib

from harness import ACCESS, SECRET, Checks
from sigv4 import UNSIGNED_TRAILER, plain_chunks, sha256

checks = Checks("exact")

NAMESPACE = b'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
OLD = "Wed, 21 Oct 2015 07:28:00 GMT"
OBSOLETE = ("Wednesday, 21-Oct-15 07:28:00 GMT", "Wed Oct 21 07:28:00 2015")


def b64(data):
    return base64.b64encode(data).decode()


def inside(answer, tag):
    """The text of all elements of that name."""
    return re.findall(f"<{tag}>(.*?)</{tag}>".encode(), answer.body, re.DOTALL)


def expect(answer, status, code=None):
    assert (answer.status, answer.code) == (status, code), answer
    return answer


@checks
def keys_that_xml_cannot_carry_are_escaped(bench):
    bucket, raw = bench.bucket(), bench.raw()
    for key in ("cr%0Dkey", "one%01", "two%EF%BF%BF"):
        expect(raw.signed("PUT", f"/{bucket}/{key}", body=b"x"), 200)
    shown = [b"cr&#13;key", b"one&#x1;", b"two&#xffff;"]
    for query in ([], [("list-type", "2")], [("versions", "")]):
        assert inside(raw.signed("GET", f"/{bucket}", query), "Key") == shown, query
    begun = expect(raw.signed("POST", f"/{bucket}/cr%0Dkey", [("uploads", "")]), 200)
    assert inside(begun, "Key") == [b"cr&#13;key"]
    upload = inside(begun, "UploadId")[0].decode()
    assert inside(raw.signed("GET", f"/{bucket}", [("uploads", "")]), "Key") == [b"cr&#13;key"]
    assert inside(raw.signed("GET", f"/{bucket}/cr%0Dkey", [("uploadId", upload)]), "Key") == [b"cr&#13;key"]
    body = b"<Delete><Object><Key>cr&#13;key</Key></Object></Delete>"
    answer = raw.signed("POST", f"/{bucket}", [("delete", "")], {"content-md5": b64(hashlib.md5(body).digest())}, body)
    assert inside(expect(answer, 200), "Key") == [b"cr&#13;key"], answer
    expect(raw.signed("GET", f"/{bucket}/cr%0Dkey"), 404, "NoSuchKey")


@checks
def checksums_that_are_not_stored_are_verified(bench):
    bucket, raw = bench.bucket(), bench.raw()
    path = f"/{bucket}/k"
    right = {"sha512": b64(hashlib.sha512(b"123456789").digest()), "md5": b64(hashlib.md5(b"123456789").digest()),
             "xxhash64": b64(bytes.fromhex("8cb841db40e6ae83"))}
    wrong = {"sha512": b64(bytes(64)), "md5": b64(bytes(16)), "xxhash64": b64(bytes(8)), "xxhash3": b64(bytes(8)), "xxhash128": b64(bytes(16))}
    for name, value in wrong.items():
        header = f"x-amz-checksum-{name}"
        expect(raw.signed("PUT", path, headers={header: value}, body=b"123456789"), 400, "BadDigest")
        headers = {"x-amz-decoded-content-length": "9", "x-amz-trailer": header, "content-encoding": "aws-chunked"}
        framed = plain_chunks([b"123456789"], [(header, value)])
        expect(raw.signed("PUT", path, headers=headers, body=framed, payload=UNSIGNED_TRAILER), 400, "BadDigest")
    expect(raw.signed("GET", path), 404, "NoSuchKey")
    for name, value in right.items():
        expect(raw.signed("PUT", path, headers={f"x-amz-checksum-{name}": value}, body=b"123456789"), 200)
    answer = expect(raw.signed("PUT", path, headers={"x-amz-checksum-foo": "AAAA"}, body=b"x"), 400, "InvalidRequest")
    assert b"x-amz-checksum-foo" in answer.body, answer


@checks
def parts_of_a_composite_checksum_have_their_own(bench):
    bucket, raw = bench.bucket(), bench.raw()
    begun = raw.signed("POST", f"/{bucket}/k", [("uploads", "")], {"x-amz-checksum-algorithm": "SHA256"})
    part = [("partNumber", "1"), ("uploadId", inside(begun, "UploadId")[0].decode())]
    expect(raw.signed("PUT", f"/{bucket}/k", part, body=b"x"), 400, "InvalidRequest")
    sha = {"x-amz-checksum-sha256": b64(hashlib.sha256(b"x").digest())}
    expect(raw.signed("PUT", f"/{bucket}/k", part, sha, b"x"), 200)


@checks
def xml_that_is_not_what_was_signed_is_refused(bench):
    bucket, raw = bench.bucket(), bench.raw()
    expect(raw.signed("PUT", f"/{bucket}/k", body=b"x"), 200)
    for method, path, query, body in [
        ("PUT", f"/{bucket}/k", "tagging", b"<Tagging><TagSet></TagSet></Tagging>"),
        ("POST", f"/{bucket}", "delete", b"<Delete><Object><Key>k</Key></Object></Delete>"),
        ("PUT", f"/{bucket}-new", None, b"<CreateBucketConfiguration/>"), ("PUT", f"/{bucket}-new", None, b""),
        ("POST", f"/{bucket}/k", "uploads", b""), ("POST", f"/{bucket}/k", "uploads", b"never read"),
    ]:
        answer = raw.signed(method, path, [(query, "")] if query else [], body=body, payload=sha256(b"another"))
        expect(answer, 400, "XAmzContentSHA256Mismatch")
    expect(raw.signed("GET", f"/{bucket}/k"), 200)
    assert not inside(raw.signed("GET", f"/{bucket}", [("uploads", "")]), "UploadId")


@checks
def nothing_is_dropped_in_silence(bench):
    bucket, raw = bench.bucket(), bench.raw()
    tags = b"<CreateBucketConfiguration><Tags><Tag><Key>a</Key><Value>b</Value></Tag></Tags></CreateBucketConfiguration>"
    expect(raw.signed("PUT", f"/{bucket}-tagged", body=tags), 501, "NotImplemented")
    begun = raw.signed("POST", f"/{bucket}/k", [("uploads", "")])
    upload = [("uploadId", inside(begun, "UploadId")[0].decode())]
    expect(raw.signed("DELETE", f"/{bucket}/k", upload, {"x-amz-if-match-initiated-time": OLD}), 412, "PreconditionFailed")
    expect(raw.signed("GET", f"/{bucket}/k", upload), 200)
    expect(raw.signed("DELETE", f"/{bucket}/k", upload), 204)
    expect(raw.signed("DELETE", f"/{bucket}-none/k", [("uploadId", "x")]), 404, "NoSuchBucket")


@checks
def a_range_of_another_version_is_the_whole_object(bench):
    bucket, raw = bench.bucket(), bench.raw()
    put = expect(raw.signed("PUT", f"/{bucket}/k", body=b"0123456789"), 200)
    get = lambda value: raw.signed("GET", f"/{bucket}/k", headers={"range": "bytes=2-4", "if-range": value})
    for same in (put.headers["etag"], raw.signed("GET", f"/{bucket}/k").headers["last-modified"]):
        assert expect(get(same), 206).body == b"234"
    for other in ('"other"', f"W/{put.headers['etag']}", OLD, "soon"):
        assert expect(get(other), 200).body == b"0123456789", other


@checks
def dates_and_entity_tags_are_read_as_http_has_them(bench):
    bucket, raw = bench.bucket(), bench.raw()
    expect(raw.signed("PUT", f"/{bucket}/k", body=b"x"), 200)
    get = lambda name, value: raw.signed("GET", f"/{bucket}/k", headers={name: value})
    for date in OBSOLETE:
        expect(get("if-modified-since", date), 200)
        expect(get("if-unmodified-since", date), 412, "PreconditionFailed")
    for date in ("0", "soon"):
        expect(get("if-modified-since", date), 200)
        expect(get("if-unmodified-since", date), 200)
    for tag in ("a_b", "a b", "a, b"):
        expect(get("if-match", tag), 412, "PreconditionFailed")
        expect(get("if-none-match", tag), 200)
    for expires in ("0", "Thu, 21 Oct 2015 07:28:00 GMT"):
        expect(raw.signed("PUT", f"/{bucket}/k", headers={"expires": expires}, body=b"x"), 200)
        assert raw.signed("GET", f"/{bucket}/k").headers["expires"] == expires


@checks
def a_copy_shows_its_namespace_and_the_checksum_of_its_source(bench):
    bucket, raw = bench.bucket(), bench.raw()
    crc = b64(zlib.crc32(b"body").to_bytes(4, "big"))
    expect(raw.signed("PUT", f"/{bucket}/src", headers={"x-amz-checksum-crc32": crc}, body=b"body"), 200)
    copy = expect(raw.signed("PUT", f"/{bucket}/k", headers={"x-amz-copy-source": f"/{bucket}/src"}), 200)
    assert inside(copy, "ChecksumCRC32") == [crc.encode()] and b"<CopyObjectResult " + NAMESPACE in copy.body, copy


@checks
def storage_classes_that_are_read_at_once_are_kept_and_shown(bench):
    bucket, raw = bench.bucket(), bench.raw()
    put = lambda name: raw.signed("PUT", f"/{bucket}/k", headers={"x-amz-storage-class": name}, body=b"x")
    for name in ("REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"):
        expect(put(name), 200)
        assert raw.signed("GET", f"/{bucket}/k").headers["x-amz-storage-class"] == name
        assert inside(raw.signed("GET", f"/{bucket}"), "StorageClass") == [name.encode()]
    expect(put("STANDARD"), 200)
    assert raw.signed("GET", f"/{bucket}/k").headers["x-amz-storage-class"] is None
    expect(put("DEEP_ARCHIVE"), 400, "InvalidStorageClass")


@checks
def a_malformed_signature_is_told_so(bench):
    bucket, raw = bench.bucket(), bench.raw()
    good = lambda: raw.signer().headers("GET", f"/{bucket}", [], {"host": raw.host}, sha256(b""))
    for change, code in [
        (lambda text: text.replace("SHA256", "SHA1"), "InvalidRequest"),
        (lambda text: text.replace("Credential=", "Credentials="), "AuthorizationHeaderMalformed"),
        (lambda text: text.replace("/us-east-1/", "/"), "AuthorizationHeaderMalformed"),
        (lambda text: "Basic dXNlcjpwYXNz", "InvalidArgument"),
    ]:
        headers = good()
        headers["authorization"] = change(headers["authorization"])
        expect(raw.send("GET", f"/{bucket}", headers=headers), 400, code)
    query = raw.signer().presigned("GET", f"/{bucket}", raw.host)
    query = [(name, value) for name, value in query if name != "X-Amz-Date"]
    expect(raw.send("GET", f"/{bucket}", query), 400, "AuthorizationQueryParametersError")


def post(raw, bucket, **fields):
    """Posts a form, signed with version 2, whose file is `hello`."""
    fields = {"key": "form key", **fields}
    expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    conditions = [{"bucket": bucket}, *(["starts-with", f"${name}", ""] for name in fields)]
    policy = b64(json.dumps({"expiration": f"{expires:%Y-%m-%dT%H:%M:%SZ}", "conditions": conditions}).encode())
    signature = b64(hmac.new(SECRET.encode(), policy.encode(), hashlib.sha1).digest())
    fields = {**fields, "AWSAccessKeyId": ACCESS, "policy": policy, "signature": signature}
    lines = [f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    lines.append('--edge\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nhello\r\n--edge--\r\n')
    headers = {"content-type": "multipart/form-data; boundary=edge"}
    return raw.send("POST", f"/{bucket}", headers=headers, body="".join(lines).encode())


@checks
def a_form_is_obeyed_or_refused_and_told_where_its_object_is(bench):
    bucket, raw = bench.bucket(), bench.raw()
    expect(post(raw, bucket, acl="public-read"), 400, "AccessControlListNotSupported")
    expect(post(raw, bucket, **{"x-amz-checksum-algorithm": "FOO"}), 400, "InvalidRequest")
    expect(raw.signed("GET", f"/{bucket}/form%20key"), 404, "NoSuchKey")
    tagging = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    answer = expect(post(raw, bucket, tagging=tagging), 204)
    etag, url = f'"{hashlib.md5(b"hello").hexdigest()}"', f"http://{raw.host}/{bucket}/form%20key"
    assert (answer.headers["etag"], answer.headers["location"]) == (etag, url), answer.headers
    assert inside(raw.signed("GET", f"/{bucket}/form%20key", [("tagging", "")]), "Value") == [b"b"]
    answer = expect(post(raw, bucket, success_action_status="201"), 201)
    assert inside(answer, "Location") == [url.encode()] and b"<PostResponse " + NAMESPACE in answer.body, answer
