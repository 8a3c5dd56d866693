"""Signature version 4 in all forms, right and wrong; path and virtual-host style."""

import base64
import datetime
import urllib.error
import urllib.request
import zlib

from harness import ACCESS, VIRTUAL_HOST, Checks, content, fails
from sigv4 import SIGNED_CHUNKS, SIGNED_CHUNKS_TRAILER, UNSIGNED, Raw, Signer, quote

checks = Checks("signatures")


@checks
def an_unsigned_request_is_denied(bench):
    bucket, raw = bench.bucket(), bench.raw()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"secret")
    for method, path in (("GET", f"/{bucket}/k"), ("PUT", f"/{bucket}/n"), ("GET", f"/{bucket}"), ("GET", "/"),
                         ("DELETE", f"/{bucket}/k"), ("PUT", "/another-bucket")):
        answer = raw.send(method, path)
        assert (answer.status, answer.code) == (403, "AccessDenied"), f"{method} {path}: {answer}"
        assert b"secret" not in answer.body
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"secret"


@checks
def wrong_keys_are_told_apart(bench):
    port = bench.server.port
    answer = Raw(port, "NOSUCHKEY00000000000", "x").signed("GET", "/")
    assert (answer.status, answer.code) == (403, "InvalidAccessKeyId"), answer
    answer = Raw(port, ACCESS, "wrong secret").signed("GET", "/")
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch"), answer


@checks
def anything_changed_after_signing_is_refused(bench):
    bucket, raw = bench.bucket(), bench.raw()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    sign = lambda **more: raw.signer().headers(
        "GET", f"/{bucket}/k", [], {"host": raw.host, "x-amz-meta-a": "1", **more}, UNSIGNED)
    assert raw.send("GET", f"/{bucket}/k", headers=sign()).status == 200
    changed = [
        (f"/{bucket}/other", [], {}), (f"/{bucket}/k", [("tagging", "")], {}), (f"/{bucket}/k", [], {"x-amz-meta-a": "2"}),
    ]
    for path, query, more in changed:
        answer = raw.send("GET", path, query, headers={**sign(), **more})
        assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch"), answer
    answer = raw.send("DELETE", f"/{bucket}/k", headers=sign())
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch"), answer


@checks
def a_stale_or_future_date_is_refused(bench):
    raw, now = bench.raw(), datetime.datetime.now(datetime.timezone.utc)
    for minutes in (-20, 20):
        signer = raw.signer(now + datetime.timedelta(minutes=minutes))
        answer = raw.signed("GET", "/", signer=signer)
        assert (answer.status, answer.code) == (403, "RequestTimeTooSkewed"), f"{minutes}: {answer}"
    assert raw.signed("GET", "/", signer=raw.signer(now - datetime.timedelta(minutes=10))).status == 200


@checks
def malformed_authorization_is_refused(bench):
    raw = bench.raw()
    good = raw.signer().headers("GET", "/", [], {"host": raw.host}, UNSIGNED)
    for value in ("", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=x", "Basic dXNlcjpwYXNz", "AWS x:y",
                  good["authorization"].replace("Signature=", "Sig="), good["authorization"][:-5]):
        answer = raw.send("GET", "/", headers={**good, "authorization": value})
        assert answer.status in (400, 403), f"{value!r}: {answer}"


@checks
def presigned_urls_work_without_headers(bench):
    bucket, raw = bench.bucket(), bench.raw()
    key = "a b+ü/c"
    path = f"/{bucket}/{quote(key, safe='/-_.~')}"
    answer = raw.send("PUT", path, raw.signer().presigned("PUT", path, raw.host), body=b"presigned")
    assert answer.status == 200, answer
    answer = raw.send("GET", path, raw.signer().presigned("GET", path, raw.host))
    assert (answer.status, answer.body) == (200, b"presigned"), answer
    # Unless told otherwise, boto3 presigns by version 2 for us-east-1.
    signs = bench.server.boto3(signature_version="s3v4")
    url = signs.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=60)
    assert urllib.request.urlopen(url, timeout=20).read() == b"presigned"
    url = signs.generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": key, "ResponseContentType": "image/png"})
    assert urllib.request.urlopen(url, timeout=20).headers["content-type"] == "image/png"


@checks
def urls_presigned_by_version_2_are_refused_with_the_remedy(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    signs = bench.server.boto3(signature_version="s3")
    url = signs.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"}, ExpiresIn=60)
    assert "AWSAccessKeyId=" in url, url
    try:
        urllib.request.urlopen(url, timeout=20)
    except urllib.error.HTTPError as refused:
        text = refused.read().decode()
        assert refused.code == 400 and "<Code>InvalidRequest</Code>" in text and "s3v4" in text, text
    else:
        raise AssertionError("a URL presigned by version 2 was taken")


@checks
def presigned_urls_end_and_cannot_be_changed(bench):
    bucket, raw = bench.bucket(), bench.raw()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    path = f"/{bucket}/k"
    early = raw.signer(datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=2))
    answer = raw.send("GET", path, early.presigned("GET", path, raw.host, expires=60))
    assert (answer.status, answer.code) == (403, "AccessDenied"), answer
    assert raw.send("GET", path, early.presigned("GET", path, raw.host, expires=300)).status == 200
    answer = raw.send("GET", f"/{bucket}/other", raw.signer().presigned("GET", path, raw.host))
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch"), answer
    answer = raw.send("DELETE", path, raw.signer().presigned("GET", path, raw.host))
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch"), answer
    long = raw.send("GET", path, raw.signer().presigned("GET", path, raw.host, expires=8 * 86_400))
    assert long.status in (400, 403), long


def chunked(raw, path, size, chunks, trailers=None, spoil=None, announced=None):
    headers = {"host": raw.host, "content-encoding": "aws-chunked",
               "x-amz-decoded-content-length": str(size if announced is None else announced)}
    if trailers is not None:
        headers["x-amz-trailer"] = ",".join(name for name, _ in trailers)
    signer = raw.signer()
    head = signer.headers("PUT", path, [], headers, SIGNED_CHUNKS if trailers is None else SIGNED_CHUNKS_TRAILER)
    framed = signer.signed_chunks(chunks, trailers)
    return raw.send("PUT", path, headers=head, body=spoil(framed) if spoil else framed)


def cut(data, size=65_536):
    return [data[at : at + size] for at in range(0, len(data), size)]


@checks
def signed_chunks_are_put_together(bench):
    bucket, raw = bench.bucket(), bench.raw()
    for size in (0, 1, 65_536, 300_000, 10_000_000):
        data = content(size, size)
        answer = chunked(raw, f"/{bucket}/k", size, cut(data))
        assert answer.status == 200, f"{size}: {answer}"
        got = bench.s3.get_object(Bucket=bucket, Key="k")
        assert got["Body"].read() == data and not got.get("ContentEncoding"), size


@checks
def a_spoiled_chunk_puts_nothing(bench):
    bucket, raw = bench.bucket(), bench.raw()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"old")
    for size in (100, 300_000, 9_000_000):
        data = content(size, size)
        flip = lambda body: body[:-200] + bytes([body[-200] ^ 1]) + body[-199:]
        answer = chunked(raw, f"/{bucket}/k", size, cut(data), spoil=flip)
        assert answer.status in (400, 403), f"{size}: {answer}"
        answer = chunked(raw, f"/{bucket}/k", size, cut(data), announced=size + 1)
        assert answer.status == 400, f"{size} announced longer: {answer}"
        answer = chunked(raw, f"/{bucket}/k", size, cut(data), announced=size - 1)
        assert answer.status == 400, f"{size} announced shorter: {answer}"
        tail = lambda body: body[: body.rindex(b"0;chunk-signature")]
        answer = chunked(raw, f"/{bucket}/k", size, cut(data), spoil=tail)
        assert answer.status in (400, 403), f"{size} without an end: {answer}"
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"old"


@checks
def signed_chunks_with_a_signed_trailer_are_verified(bench):
    bucket, raw = bench.bucket(), bench.raw()
    for size in (1, 300_000):
        data = content(size, size)
        crc = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
        trailers = [("x-amz-checksum-crc32", crc)]
        answer = chunked(raw, f"/{bucket}/k", size, cut(data), trailers)
        assert answer.status == 200, f"{size}: {answer}"
        got = bench.s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
        assert got["Body"].read() == data and got["ChecksumCRC32"] == crc
        spoil = lambda body: body.replace(b"x-amz-trailer-signature:", b"x-amz-trailer-signature:0")
        answer = chunked(raw, f"/{bucket}/other", size, cut(data), trailers, spoil=spoil)
        assert answer.status in (400, 403), f"{size} spoiled: {answer}"
    with fails("404", 404):
        bench.s3.head_object(Bucket=bucket, Key="other")


@checks
def virtual_hosts_name_the_bucket(bench):
    bucket, raw = bench.bucket(), bench.raw()
    host = f"{bucket}.{VIRTUAL_HOST}"
    answer = raw.signed("PUT", "/dir/key", body=b"by host", host=host)
    assert answer.status == 200, answer
    assert raw.signed("GET", "/dir/key", host=host).body == b"by host"
    assert b"<Key>dir/key</Key>" in raw.signed("GET", "/", query=[("list-type", "2")], host=host).body
    assert raw.signed("GET", f"/{bucket}/dir/key", host=VIRTUAL_HOST).body == b"by host"
    assert bench.s3.get_object(Bucket=bucket, Key="dir/key")["Body"].read() == b"by host"
    answer = raw.signed("GET", "/k", host=f"no-such-bucket.{VIRTUAL_HOST}")
    assert (answer.status, answer.code) == (404, "NoSuchBucket"), answer


@checks
def another_region_in_the_scope_is_taken_or_named(bench):
    raw = bench.raw()
    signer = Signer(raw.access, raw.secret, region="eu-nowhere-9")
    answer = raw.signed("GET", "/", signer=signer)
    assert answer.status == 200 or answer.code == "AuthorizationHeaderMalformed", answer
