"""Signature version 4, written out, and a bare HTTP client that sends exactly what it is told.

The SDKs sign only what is right. The checks also need what is wrong: stale dates, flipped signatures, broken chunk
frames, paths no SDK would send. Independent of botocore, so that the server is not tested against one signer only.
"""

import datetime
import hashlib
import hmac
import http.client
import urllib.parse

REGION = "us-east-1"
UNSIGNED = "UNSIGNED-PAYLOAD"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_CHUNKS_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def quote(text, safe="-_.~"):
    return urllib.parse.quote(text, safe=safe)


class Answer:
    """A whole response."""

    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def code(self):
        """The S3 error code in the body, or None."""
        text = self.body.decode("utf-8", "replace")
        start, end = text.find("<Code>"), text.find("</Code>")
        return text[start + 6 : end] if 0 <= start < end else None

    def __repr__(self):
        return f"{self.status} {self.code} {self.body[:300]!r}"


class Signer:
    """Signs requests and chunks with one key pair."""

    def __init__(self, access, secret, region=REGION, now=None):
        self.access, self.secret, self.region = access, secret, region
        now = now or datetime.datetime.now(datetime.timezone.utc)
        self.stamp = now.strftime("%Y%m%dT%H%M%SZ")
        self.scope = f"{self.stamp[:8]}/{region}/s3/aws4_request"

    def _key(self):
        key = ("AWS4" + self.secret).encode()
        for part in (self.stamp[:8], self.region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key

    def _mac(self, text):
        return hmac.new(self._key(), text.encode(), hashlib.sha256).hexdigest()

    def _signature(self, method, path, query, headers, payload):
        names = sorted(name.lower() for name in headers)
        joined = {name.lower(): ",".join(value) if isinstance(value, list) else str(value) for name, value in headers.items()}
        lower = {name: " ".join(value.split()) for name, value in joined.items()}
        pairs = sorted((quote(k), quote(v)) for k, v in query)
        canonical = "\n".join(
            [
                method,
                path,
                "&".join(f"{k}={v}" for k, v in pairs),
                "".join(f"{name}:{lower[name]}\n" for name in names),
                ";".join(names),
                payload,
            ]
        )
        text = "\n".join(["AWS4-HMAC-SHA256", self.stamp, self.scope, sha256(canonical.encode())])
        return self._mac(text), ";".join(names)

    def headers(self, method, path, query, headers, payload):
        """The headers with date, payload hash and signature; all of them are signed."""
        headers = {**headers, "x-amz-date": self.stamp, "x-amz-content-sha256": payload}
        signature, names = self._signature(method, path, query, headers, payload)
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.access}/{self.scope}, SignedHeaders={names}, Signature={signature}"
        )
        self.seed = signature
        return headers

    def presigned(self, method, path, host, query=(), expires=60):
        """The query of a presigned URL, signature included."""
        query = [
            *query,
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", f"{self.access}/{self.scope}"),
            ("X-Amz-Date", self.stamp),
            ("X-Amz-Expires", str(expires)),
            ("X-Amz-SignedHeaders", "host"),
        ]
        signature, _ = self._signature(method, path, query, {"host": host}, UNSIGNED)
        return [*query, ("X-Amz-Signature", signature)]

    def signed_chunks(self, chunks, trailers=None):
        """The chunks framed and signed, each chained to the one before; then signed trailers."""
        previous, body = self.seed, b""
        for chunk in [*chunks, b""]:
            text = ["AWS4-HMAC-SHA256-PAYLOAD", self.stamp, self.scope, previous, EMPTY_SHA256, sha256(chunk)]
            previous = self._mac("\n".join(text))
            body += f"{len(chunk):x};chunk-signature={previous}\r\n".encode() + chunk
            body += b"\r\n" if chunk or trailers is None else b""
        if trailers is not None:
            block = "".join(f"{name}:{value}\n" for name, value in trailers)
            text = ["AWS4-HMAC-SHA256-TRAILER", self.stamp, self.scope, previous, sha256(block.encode())]
            lines = [f"{name}:{value}\r\n" for name, value in trailers]
            body += "".join(lines).encode()
            body += f"x-amz-trailer-signature:{self._mac(chr(10).join(text))}\r\n\r\n".encode()
        return body


def plain_chunks(chunks, trailers):
    """The chunks framed without signatures, then trailers."""
    body = b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks)
    lines = "".join(f"{name}:{value}\r\n" for name, value in trailers)
    return body + b"0\r\n" + lines.encode() + b"\r\n"


class Raw:
    """Sends requests to one server, a connection each."""

    def __init__(self, port, access, secret):
        self.host = f"127.0.0.1:{port}"
        self.access, self.secret = access, secret

    def signer(self, now=None):
        return Signer(self.access, self.secret, now=now)

    def send(self, method, path, query=(), headers=None, body=b"", host=None):
        """Sends as told, unsigned. `path` is sent as it is; a header whose value is a list goes out in as many lines."""
        target = path + ("?" + "&".join(f"{quote(k)}={quote(v)}" for k, v in query) if query else "")
        headers = {"host": host or self.host, **(headers or {})}
        connection = http.client.HTTPConnection(self.host, timeout=30)
        try:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            lower = {name.lower() for name in headers}
            if body is not None and not {"content-length", "transfer-encoding"} & lower:
                headers["content-length"] = str(len(body))
            for name, value in headers.items():
                for line in value if isinstance(value, list) else [value]:
                    if line is not None:
                        connection.putheader(name, line)
            connection.endheaders(body or None)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def signed(self, method, path, query=(), headers=None, body=b"", payload=None, host=None, signer=None):
        """Sends with a signed header; the payload hash is that of the body unless told otherwise."""
        signer = signer or self.signer()
        base = {"host": host or self.host, **(headers or {})}
        head = signer.headers(method, path, list(query), base, payload or sha256(body))
        return self.send(method, path, query, head, body, host)
