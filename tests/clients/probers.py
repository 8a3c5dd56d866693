"""Keys of every placement group, put and got again and again by a thread each: for how long did one not work?"""

import threading
import time

from workload import Failed

BUCKET = "probes"
KEYS = 48
PAUSE_SECONDS = 0.5
BODY_BYTES = 3000
ANSWER_SECONDS = 10


class Probers:
    """Begin with the first `start`; each key goes through one of the proxies. What does not work is tried again at once."""

    def __init__(self, proxies, seed):
        clients = [proxy.boto3(connect_timeout=1, read_timeout=ANSWER_SECONDS) for proxy in proxies]
        self._stopping, self._lock = threading.Event(), threading.Lock()
        self._done, self._open, self._wrong = [], {}, []
        self._threads = [threading.Thread(target=self._run, args=(clients[number % len(clients)], number, seed))
                         for number in range(KEYS)]

    def start(self):
        for thread in self._threads:
            thread.start()
        return self

    def stop(self):
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self.check()

    def check(self):
        """Fails if a key ever had another value than it was just given, or an error that is not for a while."""
        with self._lock:
            if self._wrong:
                raise Failed(self._wrong[0])

    def wait_for_all(self, since, seconds):
        """Until every key has worked in a try that began after `since`."""
        while time.monotonic() < since + seconds:
            self.check()
            with self._lock:
                worked = {key for key, began, _, _ in self._done if began >= since}
            if len(worked) == KEYS:
                return
            time.sleep(0.05)
        with self._lock:
            left = {key: self._open.get(key, (since, "not tried"))[1] for key in range(KEYS) if key not in worked}
        raise Failed(f"{len(left)} of {KEYS} keys do not work again within {seconds} s: {list(left.items())[:3]}")

    def longest(self, since, until):
        """The longest time within which a key did not work, of what there was of it after `since`, and why."""
        with self._lock:
            within = [(ended - max(began, since), why) for _, began, ended, why in self._done
                      if ended > since and began < until]
        return max(within, key=lambda it: it[0], default=(0, None))

    def _run(self, s3, number, seed):
        from botocore.exceptions import BotoCoreError, ClientError

        # They do not all come in the same moment.
        self._stopping.wait(PAUSE_SECONDS * number / KEYS)
        turn = 0
        while not self._stopping.is_set():
            turn += 1
            body, began, why = f"{seed}/{number}/{turn}".encode().ljust(BODY_BYTES, b"."), time.monotonic(), None
            while not self._stopping.is_set():
                with self._lock:
                    self._open[number] = (began, why)
                try:
                    key = f"probe/{number}"
                    s3.put_object(Bucket=BUCKET, Key=key, Body=body)
                    if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != body:
                        self._fault(f"{key} reads otherwise than it was just put")
                    break
                except ClientError as error:
                    why = str(error)
                    if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
                        self._fault(f"probe/{number}: {error}")
                        break
                except BotoCoreError as error:
                    why = str(error)
            with self._lock:
                if not self._stopping.is_set():
                    self._done.append((number, began, time.monotonic(), why))
            self._stopping.wait(PAUSE_SECONDS)

    def _fault(self, what):
        with self._lock:
            self._wrong.append(what)
