"""Settings from `trainer.prometheus.*` and VERL_PROMETHEUS_*: the config wins over the environment, that over the default."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verl_prometheus import catalog
from verl_prometheus.alerts import ALERTS
from verl_prometheus.catalog import printable

CONFIG_PREFIX = "trainer.prometheus."
ENVIRONMENT_PREFIX = "VERL_PROMETHEUS_"
DEFAULT_TARGETS_DIR = "/tmp/verl-prometheus/targets"
AUTO = "auto"
RESERVED_LABELS = ("project", "experiment", "job", "instance", "le", "quantile")


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it and says what to do."""


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?\d+", str(value).strip()):
            raise ValueError(f"must be a whole number from {low} to {high}")
        if not low <= int(value) <= high:
            raise ValueError(f"must be from {low} to {high}")
        return int(value)

    return parse


def _seconds(value: Any) -> float:
    try:
        seconds = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise ValueError("must be a number of seconds, 0 or more")
    return seconds


def _timeout(value: Any) -> float:
    seconds = _seconds(value)
    if seconds == 0:
        raise ValueError("must be more than 0 seconds")
    return seconds


def _text(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("must be text")
    return os.fspath(value)


def _yes_or_no(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text == "true"


def _readable_file(value: Any) -> str:
    path = _text(value)
    if path:
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise ValueError(f"must be a file that can be read ({error.strerror})") from None
    return path


def _url(value: Any) -> str:
    url = _text(value)
    if url:
        try:
            parts = urlsplit(url)
            port_is_wrong = parts.port == 0
        except ValueError:
            port_is_wrong = True
        if port_is_wrong or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http or https URL, such as http://prometheus:9090/api/v1/write")
        if parts.username is not None:
            raise ValueError("must not hold credentials: they belong into username and password_file")
    return url


def _headers(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        value = _pairs(value, "X-Scope-OrgID=rl")
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of header names to values, such as {X-Scope-OrgID: rl}")
    headers = {str(name): str(text) for name, text in value.items()}
    for name, text in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[^\r\n\0]*", text):
            raise ValueError(f"cannot hold the header {name!r}")
    return headers


def _journal(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else _text(value)
    return {"true": AUTO, "false": ""}.get(text.lower(), text)


def _labels(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        value = _pairs(value, "team=rl,cluster=a")
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of label names to values, such as {team: rl}")
    labels = {str(name): printable(str(text)) for name, text in value.items()}
    for name in labels:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__"):
            raise ValueError(f"{name!r} is no label name: use letters, digits and underscores")
        if name in catalog.load().labels or name in RESERVED_LABELS:
            raise ValueError(f"the label {name!r} is the exporter's own: choose another name")
    return labels


def _thresholds(value: Any) -> dict[str, float]:
    if isinstance(value, str):
        value = _pairs(value, "VerlKLExplosion=0.5,VerlEntropyCollapse=0.1")
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of alerts to numbers, such as {VerlKLExplosion: 0.5}")
    thresholds = {}
    for alert, limit in value.items():
        if alert not in ALERTS:
            raise ValueError(f"{alert!r} is no alert: did you mean {nearest(str(alert), ALERTS)}?")
        try:
            thresholds[str(alert)] = math.nan if isinstance(limit, bool) else float(limit)
        except (TypeError, ValueError):
            thresholds[str(alert)] = math.nan
        if not math.isfinite(thresholds[str(alert)]):
            raise ValueError(f"{alert} must be a number, not {limit!r}")
    return thresholds


def _pairs(text: str, example: str) -> dict[str, str]:
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError(f"must be name=value pairs separated by commas, such as {example}")
    return {name.strip(): value.strip() for name, _, value in pairs}


def nearest(name: str, names: Iterable[str]) -> str:
    """Which of `names` somebody who wrote `name` may have meant."""
    return difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)[0]


def _how(parse: Callable[[Any], Any], what: str) -> dict[str, Any]:
    return {"parse": parse, "what": what}


@dataclass(frozen=True)
class RemoteWriteSettings:
    """Where every step is pushed to, and how: `+trainer.prometheus.remote_write.<field>`."""

    url: str = field(
        default="",
        metadata=_how(_url, "Remote write endpoint that gets every step, e.g. http://host:9090/api/v1/write."),
    )
    headers: dict[str, str] = field(
        default_factory=dict,
        metadata=_how(_headers, "Headers of every push: {X-Scope-OrgID: rl}, or X-Scope-OrgID=rl."),
    )
    username: str = field(default="", metadata=_how(_text, "User name for basic authentication."))
    password_file: str = field(default="", metadata=_how(_readable_file, "File with the password, read at every push."))
    bearer_token_file: str = field(
        default="", metadata=_how(_readable_file, "File with a bearer token, read at every push.")
    )
    tls_ca_file: str = field(
        default="", metadata=_how(_readable_file, "Certificate authorities to trust instead of the system's, PEM.")
    )
    tls_cert_file: str = field(default="", metadata=_how(_readable_file, "Client certificate, PEM."))
    tls_key_file: str = field(default="", metadata=_how(_readable_file, "Key of the client certificate, PEM."))
    tls_insecure_skip_verify: bool = field(
        default=False, metadata=_how(_yes_or_no, "Do not check the server's certificate.")
    )
    timeout_seconds: float = field(default=30.0, metadata=_how(_timeout, "How long a push may take."))

    def __post_init__(self) -> None:
        """Raises `SettingsError` if the fields contradict each other."""
        name = f"{CONFIG_PREFIX}remote_write"
        if bool(self.username) != bool(self.password_file):
            raise SettingsError(f"{name}.username and {name}.password_file need each other: set both or none.")
        if self.username and self.bearer_token_file:
            raise SettingsError(f"{name}.username and {name}.bearer_token_file exclude each other: set one of them.")
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise SettingsError(f"{name}.tls_cert_file and {name}.tls_key_file need each other: set both or none.")


@dataclass(frozen=True)
class Settings:
    """Each field is a setting: `+trainer.prometheus.<field>` or VERL_PROMETHEUS_<FIELD>; so is each of a section's."""

    port: int = field(
        default=9400, metadata=_how(_integer(0, 65535), "Port of the endpoint; if taken, the next free one. 0: any.")
    )
    address: str = field(
        default="",
        metadata=_how(_text, "Address to listen on and announce. Default: listen on all, announce the node's."),
    )
    targets_dir: str = field(
        default=DEFAULT_TARGETS_DIR, metadata=_how(_text, "Folder for the file_sd discovery file. Empty: none.")
    )
    labels: dict[str, str] = field(
        default_factory=dict, metadata=_how(_labels, "Labels for every series: {team: rl}, or team=rl,cluster=a.")
    )
    linger_seconds: float = field(
        default=30.0,
        metadata=_how(_seconds, "At the end, wait at most this long for a last scrape, if anybody has been scraping."),
    )
    window: int = field(
        default=20, metadata=_how(_integer(2, 10_000), "Steps in the rolling window of the health signals.")
    )
    baseline_steps: int = field(
        default=20, metadata=_how(_integer(2, 10_000), "Steps after warm-up that make the frozen baseline of a signal.")
    )
    warmup_steps: int = field(
        default=5, metadata=_how(_integer(0, 10_000), "Steps at the start that no baseline looks at.")
    )
    thresholds: dict[str, float] = field(
        default_factory=dict,
        metadata=_how(_thresholds, "The run's own alert thresholds: {VerlKLExplosion: 0.5}, or VerlKLExplosion=0.5."),
    )
    max_series: int = field(
        default=20_000, metadata=_how(_integer(1, 10_000_000), "Most series made from verl keys in one scrape.")
    )
    journal: str = field(
        default=AUTO,
        metadata=_how(_journal, "File that keeps every step; auto: beside the checkpoints, if possible; false: none."),
    )
    remote_write: RemoteWriteSettings = field(
        default_factory=RemoteWriteSettings, metadata={"section": RemoteWriteSettings}
    )

    @classmethod
    def load(cls, config: Mapping[str, Any] | None, environment: Mapping[str, str] = os.environ) -> Settings:
        """Settings of a run with verl's `config` (nested mappings, or None). Raises `SettingsError`."""
        known = known_settings(cls)
        variables = {name.replace(".", "_").upper(): name for name in known}
        given: dict[str, Any] = {}
        for variable in sorted(environment):
            if variable.startswith(ENVIRONMENT_PREFIX):
                short = variable.removeprefix(ENVIRONMENT_PREFIX).upper()
                name = variables[_existing(short, variables, ENVIRONMENT_PREFIX)]
                given[name] = _parse(known[name], variable, environment[variable])
        for name, value in _flat(cls, _section(config)).items():
            given[name] = _parse(known[_existing(name, known, CONFIG_PREFIX)], CONFIG_PREFIX + name, value)
        return cls(**_grouped(cls, given))


def known_settings(cls: Any, prefix: str = "") -> dict[str, Field[Any]]:
    """Every setting by its name; those of a section as `section.name`."""
    known: dict[str, Field[Any]] = {}
    for one in fields(cls):
        section = one.metadata.get("section")
        known |= known_settings(section, f"{prefix}{one.name}.") if section else {prefix + one.name: one}
    return known


def _sections(cls: Any) -> dict[str, Any]:
    """The classes of the sections, by name."""
    return {one.name: one.metadata["section"] for one in fields(cls) if "section" in one.metadata}


def _flat(cls: Any, section: Mapping[str, Any]) -> dict[str, Any]:
    """What the config gives, the contents of sections as `section.name`."""
    sections = _sections(cls)
    flat: dict[str, Any] = {}
    for name, value in section.items():
        if name not in sections:
            flat[str(name)] = value
        elif isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        elif value is not None:
            example = next(iter(known_settings(sections[name])))
            raise SettingsError(
                f"{CONFIG_PREFIX}{name} is {value!r}: it must hold settings, such as {CONFIG_PREFIX}{name}.{example}"
            )
    return flat


def _grouped(cls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's arguments: `section.name` goes into an object of the section's class."""
    arguments = {name: value for name, value in given.items() if "." not in name}
    for section, section_class in _sections(cls).items():
        prefix = f"{section}."
        inner = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
        arguments[section] = section_class(**inner)
    return arguments


def _section(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    trainer = config.get("trainer") if isinstance(config, Mapping) else None
    section = trainer.get("prometheus") if isinstance(trainer, Mapping) else None
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise SettingsError(
            f"trainer.prometheus is {section!r}: it must hold settings, such as trainer.prometheus.port=9400"
        )
    return section


def _existing(name: str, names: Iterable[str], prefix: str) -> str:
    """`name`, if it is one of `names`."""
    names = list(names)
    if name not in names:
        raise SettingsError(
            f"{prefix}{name} is no setting: did you mean {prefix}{nearest(name, names)}? (There are: {', '.join(names)}.)"
        )
    return name


def _parse(setting: Field[Any], full_name: str, value: Any) -> Any:
    try:
        return setting.metadata["parse"](value)
    except ValueError as error:
        raise SettingsError(f"{full_name} is {value!r}: it {error}.") from None
