"""A backend that limits requests: relays HTTP to another server, each request after a pause, and answers 503 SlowDown to
those beyond so many a second. Started by the scripts beside it; on its own:

    python3 tests/clients/slowbackend.py --upstream 127.0.0.1:9000 [--rate 100] [--latency-ms 20] [--retry-after N] [--kib-s N]

Prints its port. `GET /-/counts` tells how many requests it relayed and refused, as JSON. A rate of 0 is no limit, and so is --kib-s 0:
bytes a second that all connections together bring to the server.
"""

import argparse
import asyncio
import json
import time

HEAD_BYTES_MAX = 64 * 1024
COPY_BYTES = 256 * 1024
UPLINK_BYTES = 16 * 1024
BURST_SECONDS = 0.1
REFUSAL = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Budget:
    """So many a second; what was not used gathers for a tenth of one."""

    def __init__(self, rate):
        self.rate, self.left, self.at = rate, 1.0, time.monotonic()

    def take(self):
        if not self.rate:
            return True
        now = time.monotonic()
        self.left = min(self.left + (now - self.at) * self.rate, max(1.0, self.rate * BURST_SECONDS))
        self.at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class Uplink:
    """Bytes on their way to the server, of all connections together."""

    def __init__(self, bytes_per_s):
        self.bytes_per_s, self.free_at = bytes_per_s, 0.0

    async def take(self, count):
        if self.bytes_per_s:
            self.free_at = max(self.free_at, time.monotonic()) + count / self.bytes_per_s
            await asyncio.sleep(self.free_at - time.monotonic())


class Head:
    """A request's or answer's head, as it came."""

    def __init__(self, raw):
        self.raw = raw
        lines = raw.decode("latin-1").split("\r\n")
        self.first = lines[0].split(" ", 2)
        self.fields = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                self.fields[name.strip().lower()] = value.strip()

    def chunked(self):
        return "chunked" in self.fields.get("transfer-encoding", "").lower()

    def length(self):
        return int(self.fields.get("content-length", 0))

    def without(self, name):
        """The head without a field, as it is passed on."""
        lines = self.raw.split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.lower().startswith(name.encode() + b":"))


async def read_head(reader):
    """The next head, or None at the end of the connection."""
    try:
        return Head(await reader.readuntil(b"\r\n\r\n"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def copy_body(head, reader, writer, uplink=None):
    """Passes a body on, as fast as the uplink takes it; without a writer it is dropped."""

    async def pass_on(count):
        while count:
            piece = await reader.read(min(count, UPLINK_BYTES if uplink else COPY_BYTES))
            if not piece:
                raise ConnectionError("the body broke off")
            count -= len(piece)
            if uplink:
                await uplink.take(len(piece))
            if writer:
                writer.write(piece)
                await writer.drain()

    if not head.chunked():
        await pass_on(head.length())
        return
    while True:
        line = await reader.readuntil(b"\r\n")
        if writer:
            writer.write(line)
        size = int(line.split(b";")[0], 16)
        await pass_on(size + 2)
        if size == 0:
            return


class Relay:
    def __init__(self, upstream, rate, latency, retry_after, kib_s=0):
        self.host, _, port = upstream.rpartition(":")
        self.port, self.latency, self.retry_after = int(port), latency, retry_after
        self.uplink = Uplink(kib_s * 1024)
        self.budget, self.counts = Budget(rate), {"relayed": {}, "refused": 0}

    async def serve(self, reader, writer):
        upstream = None
        try:
            while (request := await read_head(reader)) is not None:
                if "expect" in request.fields:
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                if request.first[1] == "/-/counts":
                    self.answer(writer, b"200 OK", json.dumps(self.counts).encode())
                elif not self.budget.take():
                    self.counts["refused"] += 1
                    await copy_body(request, reader, None)
                    self.answer(writer, b"503 Slow Down", REFUSAL, self.retry_after)
                else:
                    method = request.first[0]
                    self.counts["relayed"][method] = self.counts["relayed"].get(method, 0) + 1
                    await asyncio.sleep(self.latency)
                    upstream = upstream or await asyncio.open_connection(self.host, self.port, limit=HEAD_BYTES_MAX)
                    await self.relay(request, reader, writer, upstream)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in (writer, upstream and upstream[1]):
                if end:
                    end.close()

    async def relay(self, request, reader, writer, upstream):
        up_reader, up_writer = upstream
        up_writer.write(request.without("expect"))
        await copy_body(request, reader, up_writer, self.uplink)
        await up_writer.drain()
        answer = await read_head(up_reader)
        if answer is None:
            raise ConnectionError("the server went away")
        writer.write(answer.raw)
        bodiless = request.first[0] == "HEAD" or answer.first[1] in ("204", "304")
        if not bodiless:
            await copy_body(answer, up_reader, writer)

    @staticmethod
    def answer(writer, status, body, retry_after=None):
        after = f"Retry-After: {retry_after}\r\n" if retry_after is not None else ""
        head = f"Content-Type: application/xml\r\n{after}Content-Length: {len(body)}\r\n\r\n"
        writer.write(b"HTTP/1.1 " + status + b"\r\n" + head.encode() + body)


async def run(arguments):
    relay = Relay(arguments.upstream, arguments.rate, arguments.latency_ms / 1000, arguments.retry_after, arguments.kib_s)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upstream", required=True, help="HOST:PORT")
    parser.add_argument("--rate", type=float, default=100, help="requests a second")
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument("--retry-after", type=int, help="seconds that refusals ask for")
    parser.add_argument("--kib-s", type=float, default=0, help="KiB a second that go to the server")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
