#!/usr/bin/env bash
# Prints the path of a Chromium for `make test-console`: $CHROMIUM, or one on the path. Where there is none, root on a Debian gets
# the distribution's; everybody else is told what to do.
set -euo pipefail
if [ -n "${CHROMIUM:-}" ]; then
  echo "$CHROMIUM"
  exit
fi
find_one() {
  for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name"; then return; fi
  done
  return 1
}
if find_one; then exit; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  { apt-get update && apt-get install --yes --no-install-recommends chromium fonts-dejavu-core; } >&2
  if find_one; then exit; fi
fi
echo "make test-console needs a Chromium: install the package chromium, or set CHROMIUM to the path of one" >&2
exit 1
