#!/usr/bin/env bash
# usage: stack.sh DATA
# What docker-compose.yml starts, without containers: Prometheus, Alertmanager and, where installed, Grafana with the same
# files of configuration. PROMETHEUS_BIN: folders with the programs, colons between them; else they must be in PATH.
# PROMETHEUS_PORT, ALERTMANAGER_PORT, GRAFANA_PORT: other ports than those that the files name. Stop with ctrl-C.
set -euo pipefail
data=$(mkdir -p "${1:?usage: stack.sh DATA}" && cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
export PATH="${PROMETHEUS_BIN:-}${PROMETHEUS_BIN:+:}$PATH"
prometheus_port=${PROMETHEUS_PORT:-9090} alertmanager_port=${ALERTMANAGER_PORT:-9093} grafana_port=${GRAFANA_PORT:-3000}
trap 'trap - EXIT; kill $(jobs -p) 2>/dev/null; wait' EXIT INT TERM

program() { # the first of the names that is installed
  command -v "$@" | head -1 || true
}

start() { # start NAME URL COMMAND...: in the background, its output in DATA/NAME.log, until URL answers
  local name=$1 url=$2
  shift 2
  "$@" >"$data/$name.log" 2>&1 &
  local pid=$!
  for _ in $(seq 150); do
    if python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)' "$url" 2>/dev/null; then
      echo "$name: ${url%/-/ready}"
      return
    fi
    if ! kill -0 "$pid" 2>/dev/null; then break; fi
    sleep 0.2
  done
  echo "$name does not start. The end of $data/$name.log:" >&2
  tail -3 "$data/$name.log" >&2
  return 1
}

prometheus=$(program prometheus)
alertmanager=$(program alertmanager prometheus-alertmanager)
if [ -z "$prometheus" ] || [ -z "$alertmanager" ]; then
  echo "Prometheus and Alertmanager are needed: apt-get install prometheus prometheus-alertmanager" >&2
  echo "or set PROMETHEUS_BIN to the folders that have them." >&2
  exit 1
fi

start Prometheus "http://127.0.0.1:$prometheus_port/-/ready" "$prometheus" \
  --config.file="$root/prometheus/prometheus.yml" --storage.tsdb.path="$data/prometheus" \
  --web.listen-address="127.0.0.1:$prometheus_port"
start Alertmanager "http://127.0.0.1:$alertmanager_port/-/ready" "$alertmanager" \
  --config.file="$root/prometheus/alertmanager.yml" --storage.path="$data/alertmanager" \
  --web.listen-address="127.0.0.1:$alertmanager_port" --cluster.listen-address=

grafana=$(program grafana)
if [ -n "$grafana" ]; then
  : "${GRAFANA_ADMIN_PASSWORD:?choose the password of Grafana\'s user admin}"
  home=${GRAFANA_HOME:-/usr/share/grafana}
  export VERL_DASHBOARDS=$root/grafana/dashboards GF_SECURITY_ADMIN_PASSWORD=$GRAFANA_ADMIN_PASSWORD
  export GF_PATHS_PROVISIONING=$root/grafana/provisioning GF_PATHS_DATA=$data/grafana GF_PATHS_LOGS=$data/grafana
  export GF_SERVER_HTTP_ADDR=127.0.0.1 GF_SERVER_HTTP_PORT=$grafana_port GF_ANALYTICS_REPORTING_ENABLED=false
  export GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH=$VERL_DASHBOARDS/verl-overview.json
  start Grafana "http://127.0.0.1:$grafana_port/api/health" "$grafana" server --homepath="$home"
else
  echo "Grafana is not installed: the boards are in $root/grafana/dashboards"
fi
echo "Stop with ctrl-C."
wait
