#!/usr/bin/env bash
# Programs of other people that `make test-deploy` runs: haproxy, nginx, promtool, and iproute2 for networks that break. Root on a
# Debian gets those that are missing; nobody else does, and the tests that need them are skipped.
set -euo pipefail
PATH="$PATH:/usr/sbin"
missing=()
for pair in haproxy:haproxy nginx:nginx-light promtool:prometheus ip:iproute2; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
if [ ${#missing[@]} = 0 ]; then exit; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq
  # Without their services, which would take ports of this machine: policy-rc.d is what a package asks before it starts one.
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  (cd "$folder" && apt-get download -qq "${missing[@]}" 2>/dev/null && for file in *.deb; do dpkg -x "$file" root; done)
  install -d /usr/local/bin
  find "$folder/root" -path '*bin/*' -type f -perm -u+x \( -name promtool -o -name haproxy -o -name nginx -o -name ip \) \
    -exec install {} /usr/local/bin \;
else
  echo "not installed, so the tests that need them are skipped: ${missing[*]}" >&2
fi
