"""docker-compose.yml and the Dockerfile without a Docker engine, and the same configuration started by hand."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.prometheus import free_port, get
from helpers.waiting import wait_for
from verl_prometheus import node_command

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "docker-compose.yml"
TOOLS = Path(sysconfig.get_path("scripts"))
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
LASTING = {name: service for name, service in SERVICES.items() if name != "targets-folder"}
PROVISIONING = ROOT / "grafana" / "provisioning"
PORTS = {"9090": "PROMETHEUS_PORT", "9093": "ALERTMANAGER_PORT"}


def test_compose_file_is_of_the_specification() -> None:
    command = [str(TOOLS / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout


def test_dockerfile_has_no_bad_habits() -> None:
    answer = subprocess.run([str(TOOLS / "hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout


def test_dockerfile_copies_what_is_there_and_sent() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for name in line.split()]
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert sent[0] == "*"
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in sent


def test_images_are_pinned() -> None:
    images = {service["image"] for service in SERVICES.values() if "build" not in service}
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", image) for image in images), images


def test_only_this_machine_is_served_by_default() -> None:
    for service in LASTING.values():
        assert service["network_mode"] == "host"
        assert "ports" not in service
    flags = "\n".join(SERVICES["prometheus"]["command"] + SERVICES["alertmanager"]["command"])
    assert set(re.findall(r"--web.listen-address=(.*):\d+", flags)) == {"${VERL_LISTEN:-127.0.0.1}"}
    assert "--cluster.listen-address=" in flags.splitlines(), "else Alertmanager opens a port to everybody"
    assert SERVICES["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "${VERL_LISTEN:-127.0.0.1}"
    assert "--address=${VERL_LISTEN:-127.0.0.1}" in SERVICES["node"]["command"]


def test_no_default_password() -> None:
    password = SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"]
    assert password.startswith("${GRAFANA_ADMIN_PASSWORD:?")


def test_services_are_watched_and_have_few_rights() -> None:
    for name, service in LASTING.items():
        assert service["restart"] == "unless-stopped"
        assert service["cap_drop"] == ["ALL"]
        if "build" not in service or "healthcheck" in service:
            assert service["healthcheck"]["test"][0] == "CMD", name
    assert "HEALTHCHECK" in (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER [1-9]\d*$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_mounted_files_are_in_the_repository() -> None:
    mounts = [mount for service in SERVICES.values() for mount in service["volumes"] if mount.startswith("./")]
    assert mounts
    for mount in mounts:
        source, _, mode = mount.split(":")
        assert (ROOT / source).exists()
        assert mode == "ro"


def test_profiles_say_which_services_are_extra() -> None:
    extra = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert extra == {"demo": ["demo"], "node": ["gpu"]}


def test_the_agent_takes_these_arguments() -> None:
    parser = argparse.ArgumentParser()
    node_command.arguments(parser)
    command = [one.replace("${VERL_LISTEN:-127.0.0.1}", "127.0.0.1") for one in SERVICES["node"]["command"]]
    assert command[0] == "node"
    assert parser.parse_args(command[1:]).targets_dir == "/targets"


def test_provisioning_names_what_is_there() -> None:
    sources = yaml.safe_load((PROVISIONING / "datasources" / "verl.yml").read_text())["datasources"]
    assert {one["type"]: one["url"] for one in sources} == {
        "prometheus": "http://127.0.0.1:9090",
        "alertmanager": "http://127.0.0.1:9093",
    }
    by_type = {one["type"]: one for one in sources}
    assert by_type["prometheus"]["jsonData"]["alertmanagerUid"] == by_type["alertmanager"]["uid"]
    interval = yaml.safe_load((ROOT / "prometheus" / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert by_type["prometheus"]["jsonData"]["timeInterval"] == interval
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "verl.yml").read_text())["providers"]
    assert provider["options"]["path"] == "${VERL_DASHBOARDS}"
    assert provider["allowUiUpdates"] is False
    environment = SERVICES["grafana"]["environment"]
    assert f"./grafana/dashboards:{environment['VERL_DASHBOARDS']}:ro" in SERVICES["grafana"]["volumes"]
    home = Path(environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (ROOT / "grafana" / "dashboards" / home.name).exists()


@pytest.fixture(scope="module")
def stack(newest_prometheus_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Prometheus and Alertmanager as `make stack` starts them; the port of each by the port that the files name."""
    folder = tmp_path_factory.mktemp("stack")
    ports = {port: str(free_port()) for port in PORTS}
    environment = os.environ | {PORTS[port]: taken for port, taken in ports.items()}
    environment["PROMETHEUS_BIN"] = str(newest_prometheus_bin)
    command = [str(ROOT / "deploy" / "compose" / "stack.sh"), str(folder / "data")]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        wait_for(lambda: "Stop with" in (folder / "output").read_text(), "the stack to start", seconds=90)
        assert "does not start" not in (folder / "output").read_text()
        yield ports
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def test_the_stack_evaluates_the_rules(stack: dict[str, str]) -> None:
    groups = json.loads(get(f"http://127.0.0.1:{stack['9090']}/api/v1/rules"))["data"]["groups"]
    files = {path.name for path in (ROOT / "prometheus" / "rules").glob("*.yml")}
    assert {Path(group["file"]).name for group in groups} == files


def test_the_stack_routes_alerts_as_configured(stack: dict[str, str]) -> None:
    status = json.loads(get(f"http://127.0.0.1:{stack['9093']}/api/v2/status"))
    assert yaml.safe_load(status["config"]["original"])["route"]["receiver"] == "chat"


@pytest.mark.parametrize("service", ["prometheus", "alertmanager"])
def test_health_checks_tell_well_from_ill(stack: dict[str, str], newest_prometheus_bin: Path, service: str) -> None:
    program, *arguments = SERVICES[service]["healthcheck"]["test"][1:]
    binary = shutil.which(program, path=str(newest_prometheus_bin))
    assert binary is not None

    def healthy(ports: dict[str, str]) -> bool:
        asked = [re.sub(r":(9090|9093)$", lambda match: f":{ports[match[1]]}", one) for one in arguments]
        return subprocess.run([binary, *asked], capture_output=True).returncode == 0

    assert healthy(stack)
    assert not healthy({port: str(free_port()) for port in stack})
