#!/usr/bin/env bash
# Installs the clients that the black-box tests run: from apt what is a program, from pip what is Python (into
# target/clients). Fails if one cannot be had. Does nothing where all are there.
set -euo pipefail
cd "$(dirname "$0")/../.."

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

missing=()
for program in rclone restic valgrind haproxy nginx openssl prometheus; do
    command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || missing+=("$program")
done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
command -v mkfs.ext4 >/dev/null || [ -x /usr/sbin/mkfs.ext4 ] || missing+=(e2fsprogs)
if [ "${#missing[@]}" -gt 0 ]; then
    as_root apt-get update -q
    # Some are services, which the tests run by themselves: nothing is to start where this is installed.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        trap 'as_root rm -f "$policy"' EXIT
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

place=target/clients
wanted=tests/clients/requirements.txt
if ! cmp -s "$wanted" "$place/installed.txt"; then
    python3 -m venv --clear "$place"
    "$place/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
    cp "$wanted" "$place/installed.txt"
fi
