import base64
import json
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.prometheus import Prometheus
from helpers.waiting import wait_for
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.protection import admits
from verl_prometheus.settings import BasicAuthSettings, Settings, SettingsError, TlsSettings

PASSWORD = "pä:ss"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A certificate for 127.0.0.1, its key, a password."""
    cert, key, password = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "password"
    subject = "-subj /CN=run -addext subjectAltName=IP:127.0.0.1"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 {subject} -keyout {key} -out {cert}".split()
    subprocess.run(command, check=True, capture_output=True)
    password.write_text(f"{PASSWORD}\n")
    return {"cert": str(cert), "key": str(key), "password": str(password)}


@pytest.fixture
def protected(files: dict[str, str], tmp_path: Path) -> Iterator[PrometheusBackend]:
    settings = Settings(
        port=0,
        address="127.0.0.1",
        targets_dir=str(tmp_path / "targets"),
        linger_seconds=0,
        tls=TlsSettings(files["cert"], files["key"]),
        basic_auth=BasicAuthSettings("prometheus", files["password"]),
    )
    one = PrometheusBackend("project", "experiment", settings)
    yield one
    one.finish()


def fetch(url: str, cert: str, password: str = PASSWORD, user: str = "prometheus") -> str:
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {token}"} if password else {})
    with urllib.request.urlopen(request, timeout=10, context=ssl.create_default_context(cafile=cert)) as response:
        return str(response.read().decode())


def test_https_and_password(protected: PrometheusBackend, files: dict[str, str]) -> None:
    assert protected.url.startswith("https://")
    assert "verl_run_state" in fetch(f"{protected.url}/metrics", files["cert"])
    assert "experiment" in fetch(f"{protected.url}/", files["cert"])
    for path in ("/metrics", "/", "/targets", "/nothing"):
        for wrong in ("", "wrong"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                fetch(f"{protected.url}{path}", files["cert"], wrong)
    assert fetch(f"{protected.url}/-/healthy", files["cert"], "") == "OK\n"


def test_a_client_that_starts_no_handshake_delays_nobody(protected: PrometheusBackend, files: dict[str, str]) -> None:
    port = int(protected.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert fetch(f"{protected.url}/-/healthy", files["cert"]) == "OK\n"


def test_targets_over_http_are_those_of_the_discovery_file(
    protected: PrometheusBackend, files: dict[str, str], tmp_path: Path
) -> None:
    (path,) = (tmp_path / "targets").iterdir()
    targets = json.loads(fetch(f"{protected.url}/targets", files["cert"]))
    assert targets == json.loads(path.read_text())
    assert targets[0]["targets"] == [protected.url.removeprefix("https://")]
    assert targets[0]["labels"]["__scheme__"] == "https"


def test_a_real_prometheus_discovers_and_scrapes_it(
    protected: PrometheusBackend, files: dict[str, str], newest_prometheus_bin: Path, tmp_path: Path
) -> None:
    access: dict[str, Any] = {
        "basic_auth": {"username": "prometheus", "password_file": files["password"]},
        "tls_config": {"ca_file": files["cert"]},
    }
    discoveries = {
        "files": {"file_sd_configs": [{"files": [f"{tmp_path}/targets/*.json"]}]},
        "http": {"http_sd_configs": [{"url": f"{protected.url}/targets", **access}]},
    }
    jobs = {name: {**discovery, **access} for name, discovery in discoveries.items()}
    with Prometheus(newest_prometheus_bin, tmp_path / "prometheus", jobs) as prometheus:
        wait_for(lambda: len(prometheus.query("verl_run_info")) == 2, "both ways to discover the run")
        assert {labels["job"] for labels, _ in prometheus.query("up == 1")} == {"files", "http"}


def test_files_that_are_none_are_an_error_before_training(files: dict[str, str], tmp_path: Path) -> None:
    settings = Settings(port=0, targets_dir=str(tmp_path / "targets"), tls=TlsSettings(files["password"], files["key"]))
    with pytest.raises(SettingsError, match=r"trainer\.prometheus\.tls"):
        PrometheusBackend("project", "experiment", settings)
    with pytest.raises(SettingsError, match=r"trainer\.prometheus\.tls\.cert_file .* need each other"):
        Settings.load({"trainer": {"prometheus": {"tls": {"cert_file": files["cert"]}}}}, {})
    with pytest.raises(
        SettingsError, match=r"trainer\.prometheus\.basic_auth\.password_file is '/no/such': it must be a file"
    ):
        Settings.load({"trainer": {"prometheus": {"basic_auth": {"password_file": "/no/such"}}}}, {})


def test_admission() -> None:
    assert admits(None, "")
    assert admits(b"Basic abc", "Basic abc")
    assert not admits(b"Basic abc", "Basic abd")
    assert not admits(b"Basic abc", "\u4e2d")
