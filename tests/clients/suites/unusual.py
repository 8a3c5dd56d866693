"""Requests that clients send and that look odd: none is half obeyed."""

import base64
import datetime
import hashlib
import hmac
import json
import zlib

from harness import ACCESS, SECRET, Checks, content
from sigv4 import UNSIGNED_TRAILER, Raw, plain_chunks

checks = Checks("unusual")


@checks
def what_is_not_done_replaces_and_deletes_nothing(bench):
    bucket, raw = bench.bucket(), bench.raw()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"kept")
    path = f"/{bucket}/k"
    xml = b"<ObjectEncryption><SSE-S3/></ObjectEncryption>"
    for method, query, body, expected in [
        ("PUT", [("encryption", "")], xml, 501), ("PUT", [("renameObject", "")], b"", 501), ("PUT", [("uploads", "")], b"", 405),
        ("PUT", [("uploadId", "abc")], b"part", 400), ("PUT", [("partNumber", "1")], b"part", 400),
        ("PUT", [("versionId", "null")], b"new", 400),
        ("DELETE", [("acl", "")], b"", 405), ("DELETE", [("retention", "")], b"", 405), ("DELETE", [("legal-hold", "")], b"", 405),
        ("GET", [("restore", "")], b"", 501),
    ]:
        answer = raw.signed(method, path, query, body=body)
        assert answer.status == expected, f"{method} {query}: {answer}"
        assert answer.code in ("NotImplemented", "InvalidArgument", "MethodNotAllowed"), answer
        assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"kept", f"{method} {query}"
    empty = bench.bucket()
    for method, name, expected in [
        ("DELETE", "acl", (405, "MethodNotAllowed")), ("DELETE", "versioning", (405, "MethodNotAllowed")),
        ("DELETE", "metadataConfiguration", (501, "NotImplemented")), ("PUT", "abac", (501, "NotImplemented")),
    ]:
        answer = raw.signed(method, f"/{empty}", [(name, "")])
        assert (answer.status, answer.code) == expected, f"{method} {name}: {answer}"
    bench.s3.head_bucket(Bucket=empty)


@checks
def parameters_that_are_not_s3s_are_passed_over(bench):
    bucket, raw = bench.bucket(), bench.raw()
    answer = raw.signed("PUT", f"/{bucket}/k", [("x-id", "PutObject"), ("x-trace", "42")], body=b"body")
    assert answer.status == 200, answer
    answer = raw.signed("GET", f"/{bucket}/k", [("x-trace", "43")])
    assert (answer.status, answer.body) == (200, b"body"), answer


@checks
def a_header_in_two_lines_counts_as_one(bench):
    bucket, raw = bench.bucket(), bench.raw()
    headers = {"content-encoding": ["gzip", "aws-chunked"], "x-amz-meta-a": ["1", "2"], "x-amz-decoded-content-length": "4",
               "x-amz-trailer": "x-amz-checksum-crc32"}
    sum_of_it = base64.b64encode(zlib.crc32(b"body").to_bytes(4, "big")).decode()
    framed = plain_chunks([b"body"], [("x-amz-checksum-crc32", sum_of_it)])
    answer = raw.signed("PUT", f"/{bucket}/k", headers=headers, body=framed, payload=UNSIGNED_TRAILER)
    assert answer.status == 200, answer
    head = bench.s3.head_object(Bucket=bucket, Key="k")
    assert (head["ContentEncoding"], head["Metadata"], head["ContentLength"]) == ("gzip", {"a": "1,2"}, 4), head


@checks
def a_presigned_url_says_in_parameters_what_others_say_in_headers(bench):
    bucket, raw = bench.bucket(), bench.raw()
    presigned = lambda method, key, query: raw.signer().presigned(method, f"/{bucket}/{key}", raw.host, query)
    query = presigned("PUT", "k", [("x-amz-meta-id", "a b"), ("x-amz-tagging", "t=1"), ("x-id", "PutObject")])
    answer = raw.send("PUT", f"/{bucket}/k", query, body=b"body")
    assert answer.status == 200, answer
    assert bench.s3.head_object(Bucket=bucket, Key="k")["Metadata"] == {"id": "a b"}
    assert bench.s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [{"Key": "t", "Value": "1"}]
    answer = raw.send("PUT", f"/{bucket}/copy", presigned("PUT", "copy", [("x-amz-copy-source", f"/{bucket}/k")]))
    assert answer.status == 200 and b"CopyObjectResult" in answer.body, answer
    assert bench.s3.get_object(Bucket=bucket, Key="copy")["Body"].read() == b"body"
    query = [(name, "other" if name == "x-amz-meta-id" else value) for name, value in presigned("PUT", "k", [("x-amz-meta-id", "a")])]
    answer = raw.send("PUT", f"/{bucket}/k", query, body=b"forged")
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch"), answer


@checks
def cdata_is_part_of_a_key(bench):
    bucket, raw = bench.bucket(), bench.raw()
    for key in ("a", "a&b"):
        bench.s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    body = b"<Delete><Object><Key>a<![CDATA[&b]]></Key></Object></Delete>"
    headers = {"content-md5": base64.b64encode(hashlib.md5(body).digest()).decode()}
    answer = raw.signed("POST", f"/{bucket}", [("delete", "")], headers, body)
    assert answer.status == 200, answer
    assert [kept["Key"] for kept in bench.s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["a"]


def form(bucket, key, body, signed_at, expires_at):
    """An HTML form as a page that was made at one time has it, and its boundary."""
    stamp, scope = f"{signed_at:%Y%m%dT000000Z}", f"{signed_at:%Y%m%d}/us-east-1/s3/aws4_request"
    fields = {"key": key, "x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-credential": f"{ACCESS}/{scope}", "x-amz-date": stamp}
    conditions = [{"bucket": bucket}, *({name: value} for name, value in fields.items())]
    policy = json.dumps({"expiration": f"{expires_at:%Y-%m-%dT%H:%M:%S.000Z}", "conditions": conditions})
    fields["policy"] = base64.b64encode(policy.encode()).decode()
    secret = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    fields["x-amz-signature"] = hmac.new(secret, fields["policy"].encode(), hashlib.sha256).hexdigest()
    lines = [f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    lines.append('--edge\r\nContent-Disposition: form-data; name="file"; filename="f"\r\nContent-Type: text/plain\r\n\r\n')
    return "".join(lines).encode() + body + b"\r\n--edge--\r\n"


@checks
def a_form_is_good_until_its_policy_expires(bench):
    bucket, raw = bench.bucket(), bench.raw()
    now = datetime.datetime.now(datetime.timezone.utc)
    hours = lambda count: datetime.timedelta(hours=count)
    headers = {"content-type": "multipart/form-data; boundary=edge"}
    body = content("form", 5000)
    answer = raw.send("POST", f"/{bucket}", headers=headers, body=form(bucket, "k", body, now - hours(30), now + hours(1)))
    assert answer.status == 204, answer
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body
    answer = raw.send("POST", f"/{bucket}", headers=headers, body=form(bucket, "late", body, now - hours(1), now - hours(1)))
    assert (answer.status, answer.code) == (403, "AccessDenied"), answer
    other = Raw(bench.server.port, ACCESS, SECRET)
    answer = other.signed("GET", "/", headers=headers, signer=other.signer(now - hours(1)))
    assert (answer.status, answer.code) == (403, "RequestTimeTooSkewed"), answer
