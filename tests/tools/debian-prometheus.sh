#!/usr/bin/env bash
# usage: debian-prometheus.sh DIR SUITE...
# Unpacks the Prometheus, promtool, Alertmanager and VictoriaMetrics of Debian suites into DIR/SUITE/bin: nothing is
# installed, no service started, no root needed. bookworm has 2.42 and 0.25, the oldest that are supported, and
# VictoriaMetrics 1.79; forky has 3.5 and 0.33.
# Start Alertmanager as DIR/SUITE/bin/alertmanager: Debian's looks for its templates where they would be installed, so it
# gets a view of the file system that has them there.
set -euo pipefail
folder=$(mkdir -p "${1:?usage: debian-prometheus.sh DIR SUITE...}" && cd "$1" && pwd)
shift

if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
  echo "The tests need Prometheus and Alertmanager. Install them, for example: brew install prometheus alertmanager" >&2
  echo "and say where they are: make test PROMETHEUS_BIN=/opt/homebrew/bin" >&2
  exit 1
fi

mirror=$(grep -rhE '^(deb|URIs:) ' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
  grep -oE 'https?://[^ ]+/debian/?( |$)' | head -1 | tr -d ' ' || true)
if [ -z "$mirror" ]; then
  echo "The tests need Prometheus and Alertmanager: sudo apt-get install prometheus prometheus-alertmanager" >&2
  echo "and then: make test PROMETHEUS_BIN=/usr/bin" >&2
  exit 1
fi

for suite in "$@"; do
  target="$folder/$suite"
  if [ -e "$target/bin/alertmanager" ]; then continue; fi
  rm -rf "$target"
  work=$(mktemp -d)
  mkdir -p "$work/lists/partial" "$work/root"
  echo "deb $mirror $suite main" >"$work/sources.list"
  options=(-qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::Lists=$work/lists"
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o "APT::Sandbox::User=$(id -un)")
  apt-get "${options[@]}" update
  packages=(prometheus prometheus-alertmanager)
  # newer suites ship promtool in a package of its own
  for package in promtool victoria-metrics; do
    if apt-cache "${options[@]}" show "$package" >/dev/null 2>&1; then packages+=("$package"); fi
  done
  (cd "$work" && apt-get "${options[@]}" download "${packages[@]}")
  for package in "$work"/*.deb; do dpkg -x "$package" "$work/root"; done
  mkdir -p "$target"
  mv "$work/root/usr/bin" "$target/bin"
  mv "$work/root/usr/share/prometheus" "$target/templates"
  install -m 755 /dev/stdin "$target/bin/alertmanager" <<'WRAPPER'
#!/bin/sh
bin=$(dirname "$(readlink -f "$0")")
if [ -e /usr/share/prometheus/alertmanager ]; then exec "$bin/prometheus-alertmanager" "$@"; fi
export bin
exec unshare --map-root-user --mount sh -c '
  mount -t tmpfs none /usr/share && mkdir /usr/share/prometheus &&
  mount --bind "$bin/../templates" /usr/share/prometheus && exec "$bin/prometheus-alertmanager" "$@"' sh "$@"
WRAPPER
  rm -rf "$work"
  "$target/bin/prometheus" --version | head -1
done
