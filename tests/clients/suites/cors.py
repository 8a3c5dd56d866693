"""CORS of a bucket: its rules through boto3, and preflights and requests as browsers send them."""

from harness import VIRTUAL_HOST, Checks, fails

checks = Checks("cors")
refused = Checks("cors refused")

OWN = "https://app.example.org"
RULES = [
    {"ID": "own", "AllowedOrigins": ["https://*.example.org"], "AllowedMethods": ["PUT", "POST", "DELETE"],
     "AllowedHeaders": ["x-amz-*", "Content-Type"], "ExposeHeaders": ["ETag", "x-amz-request-id"], "MaxAgeSeconds": 600},
    {"AllowedOrigins": ["*"], "AllowedMethods": ["GET", "HEAD"]},
]


def with_rules(bench, rules=None):
    """A bucket with these rules."""
    bucket = bench.bucket()
    bench.s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": rules or RULES})
    return bucket


def preflight(bench, path, origin, method, headers=None, host=None):
    """The answer to what a browser asks before a request."""
    asks = {"origin": origin, "access-control-request-method": method, "access-control-request-headers": headers}
    return bench.raw().send("OPTIONS", path, headers={k: v for k, v in asks.items() if v is not None}, host=host)


def allowed(answer):
    """The origin that an answer lets see it."""
    return answer.headers.get("access-control-allow-origin")


@checks
def rules_are_kept_and_removed(bench):
    bucket, s3 = with_rules(bench), bench.s3
    assert s3.get_bucket_cors(Bucket=bucket)["CORSRules"] == RULES
    s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": RULES[1:]})
    assert s3.get_bucket_cors(Bucket=bucket)["CORSRules"] == RULES[1:]
    s3.delete_bucket_cors(Bucket=bucket)
    with fails("NoSuchCORSConfiguration", 404):
        s3.get_bucket_cors(Bucket=bucket)
    assert preflight(bench, f"/{bucket}/k", OWN, "GET").status == 403
    s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": RULES})
    s3.delete_bucket(Bucket=bucket)
    s3.create_bucket(Bucket=bucket)
    with fails("NoSuchCORSConfiguration", 404):
        s3.get_bucket_cors(Bucket=bucket)
    with fails("NoSuchBucket", 404):
        s3.put_bucket_cors(Bucket="no-such-bucket", CORSConfiguration={"CORSRules": RULES})


@checks
def rules_that_are_wrong_change_nothing(bench):
    bucket = with_rules(bench)
    rule = RULES[1]
    for rules, code in [
        ([{**rule, "AllowedMethods": ["PATCH"]}], "InvalidRequest"), ([{**rule, "AllowedOrigins": ["*.*"]}], "InvalidRequest"),
        ([{**rule, "AllowedHeaders": ["**"]}], "InvalidRequest"), ([{**rule, "ExposeHeaders": ["x-*"]}], "InvalidRequest"),
        ([rule] * 101, "InvalidRequest"), ([], "MalformedXML"),
    ]:
        with fails(code, 400):
            bench.s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": rules})
    assert bench.s3.get_bucket_cors(Bucket=bucket)["CORSRules"] == RULES


@checks
def a_browser_may_do_what_a_rule_allows(bench):
    bucket, raw = with_rules(bench), bench.raw()
    asked = preflight(bench, f"/{bucket}/a%20key", OWN, "PUT", "Content-Type, X-Amz-Date")
    assert (asked.status, asked.body, allowed(asked)) == (200, b"", OWN), asked
    expected = {
        "access-control-allow-credentials": "true", "access-control-allow-methods": "PUT, POST, DELETE",
        "access-control-allow-headers": "content-type, x-amz-date", "access-control-expose-headers": "ETag, x-amz-request-id",
        "access-control-max-age": "600", "vary": "Origin, Access-Control-Request-Headers, Access-Control-Request-Method",
    }
    assert {name: asked.headers.get(name) for name in expected} == expected, asked.headers
    put = raw.signed("PUT", f"/{bucket}/a%20key", headers={"origin": OWN}, body=b"body")
    assert (put.status, allowed(put)) == (200, OWN), put
    assert "ETag" in put.headers["access-control-expose-headers"] and put.headers["etag"]
    for host, path in [(f"{bucket}.{VIRTUAL_HOST}", "/a%20key"), (VIRTUAL_HOST, f"/{bucket}/a%20key")]:
        assert allowed(preflight(bench, path, OWN, "DELETE", host=host)) == OWN, host
        # With a query that is presigned.
        query = raw.signer().presigned("GET", path, host)
        got = raw.send("GET", path, query, {"origin": "null"}, host=host)
        assert (got.status, got.body, allowed(got)) == (200, b"body", "*"), got
        assert "access-control-allow-credentials" not in got.headers
    gone = raw.signed("GET", f"/{bucket}/none", headers={"origin": OWN})
    assert (gone.status, allowed(gone)) == (404, "*"), "a page sees why"


@checks
def a_browser_may_do_nothing_else(bench):
    bucket, plain = with_rules(bench), bench.bucket()
    for origin, method, headers in [
        ("https://other.example", "PUT", None), (OWN, "PUT", "range"), ("http://app.example.org", "DELETE", None)]:
        answer = preflight(bench, f"/{bucket}/k", origin, method, headers)
        assert (answer.status, answer.code, allowed(answer)) == (403, "AccessForbidden", None), answer
    answers = [preflight(bench, f"/{name}/k", OWN, "GET") for name in (plain, "no-such-bucket")]
    assert all((it.status, it.code) == (403, "AccessForbidden") for it in answers), answers
    assert all(b"CORS is not enabled for this bucket" in it.body for it in answers), "which buckets there are is nobody's to know"
    for origin, method in [(None, "GET"), (OWN, None), (OWN, "PATCH")]:
        answer = preflight(bench, f"/{bucket}/k", origin, method)
        assert (answer.status, answer.code) == (400, "BadRequest"), answer
    put = bench.raw().signed("PUT", f"/{bucket}/k", headers={"origin": "https://other.example"}, body=b"x")
    assert (put.status, allowed(put)) == (200, None), "whoever signs may put; a page of that origin does not see the answer"


@refused
def a_store_that_keeps_no_rules_says_so(bench):
    bucket = bench.bucket()
    with fails("NotImplemented", 501):
        bench.s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": RULES})
    with fails("NoSuchCORSConfiguration", 404):
        bench.s3.get_bucket_cors(Bucket=bucket)
    bench.s3.delete_bucket_cors(Bucket=bucket)
    assert preflight(bench, f"/{bucket}/k", OWN, "GET").code == "AccessForbidden"
