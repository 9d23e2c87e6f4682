"""Settings from `trainer.prometheus.*` and VERL_PROMETHEUS_*: the config wins over the environment, that over the default."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from verl_prometheus import gpu, parse

CONFIG_PREFIX = "trainer.prometheus."
ENVIRONMENT_PREFIX = "VERL_PROMETHEUS_"
DEFAULT_TARGETS_DIR = "/tmp/verl-prometheus/targets"


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it and says what to do."""


def _how(parser: Callable[[Any], Any], what: str) -> dict[str, Any]:
    return {"parse": parser, "what": what}


def _need_each_other(section: str, **values: str) -> None:
    if any(values.values()) and not all(values.values()):
        names = " and ".join(f"{CONFIG_PREFIX}{section}.{name}" for name in values)
        raise SettingsError(f"{names} need each other: set both or none.")


@dataclass(frozen=True)
class GpuSettings:
    """How the GPUs are watched: `+trainer.prometheus.gpu.<field>`."""

    enabled: str = field(
        default=parse.AUTO,
        metadata=_how(
            parse.one_of(parse.AUTO, "true", "false"), "Watch GPUs: true, false, or auto: where there are any."
        ),
    )
    interval: float = field(
        default=1.0, metadata=_how(parse.at_least(gpu.MIN_INTERVAL), "Seconds between two samples, at least 0.1.")
    )
    backend: str = field(
        default=gpu.BACKENDS[0],
        metadata=_how(
            parse.one_of(*gpu.BACKENDS), "nvml, or simulated: made-up GPUs, labelled so, for machines without."
        ),
    )


@dataclass(frozen=True)
class TlsSettings:
    """HTTPS: `+trainer.prometheus.tls.<field>`; on every node that serves."""

    cert_file: str = field(default="", metadata=_how(parse.readable_file, "Certificate to serve HTTPS with, PEM."))
    key_file: str = field(default="", metadata=_how(parse.readable_file, "Key of that certificate, PEM."))

    def __post_init__(self) -> None:
        """Raises `SettingsError` if one is missing."""
        _need_each_other("tls", cert_file=self.cert_file, key_file=self.key_file)


@dataclass(frozen=True)
class BasicAuthSettings:
    """Who may scrape: `+trainer.prometheus.basic_auth.<field>`."""

    username: str = field(default="", metadata=_how(parse.text, "User name that scrapers must give."))
    password_file: str = field(default="", metadata=_how(parse.readable_file, "File with their password."))

    def __post_init__(self) -> None:
        """Raises `SettingsError` if one is missing."""
        _need_each_other("basic_auth", username=self.username, password_file=self.password_file)


@dataclass(frozen=True)
class RemoteWriteSettings:
    """Where every step is pushed to, and how: `+trainer.prometheus.remote_write.<field>`."""

    url: str = field(
        default="",
        metadata=_how(parse.url, "Remote write endpoint that gets every step, e.g. http://host:9090/api/v1/write."),
    )
    headers: dict[str, str] = field(
        default_factory=dict,
        metadata=_how(parse.headers, "Headers of every push: {X-Scope-OrgID: rl}, or X-Scope-OrgID=rl."),
    )
    username: str = field(default="", metadata=_how(parse.text, "User name for basic authentication."))
    password_file: str = field(
        default="", metadata=_how(parse.readable_file, "File with the password, read at every push.")
    )
    bearer_token_file: str = field(
        default="", metadata=_how(parse.readable_file, "File with a bearer token, read at every push.")
    )
    tls_ca_file: str = field(
        default="", metadata=_how(parse.readable_file, "Certificate authorities to trust instead of the system's, PEM.")
    )
    tls_cert_file: str = field(default="", metadata=_how(parse.readable_file, "Client certificate, PEM."))
    tls_key_file: str = field(default="", metadata=_how(parse.readable_file, "Key of the client certificate, PEM."))
    tls_insecure_skip_verify: bool = field(
        default=False, metadata=_how(parse.yes_or_no, "Do not check the server's certificate.")
    )
    timeout_seconds: float = field(default=30.0, metadata=_how(parse.timeout, "How long a push may take."))

    def __post_init__(self) -> None:
        """Raises `SettingsError` if the fields contradict each other."""
        name = f"{CONFIG_PREFIX}remote_write"
        _need_each_other("remote_write", username=self.username, password_file=self.password_file)
        if self.username and self.bearer_token_file:
            raise SettingsError(f"{name}.username and {name}.bearer_token_file exclude each other: set one of them.")
        _need_each_other("remote_write", tls_cert_file=self.tls_cert_file, tls_key_file=self.tls_key_file)


@dataclass(frozen=True)
class Settings:
    """Each field is a setting: `+trainer.prometheus.<field>` or VERL_PROMETHEUS_<FIELD>; so is each of a section's."""

    port: int = field(
        default=9400,
        metadata=_how(parse.integer(0, 65535), "Port of the endpoint; if taken, the next free one. 0: any."),
    )
    address: str = field(
        default="",
        metadata=_how(parse.text, "Address to listen on and announce. Default: listen on all, announce the node's."),
    )
    targets_dir: str = field(
        default=DEFAULT_TARGETS_DIR, metadata=_how(parse.text, "Folder for the file_sd discovery file. Empty: none.")
    )
    labels: dict[str, str] = field(
        default_factory=dict, metadata=_how(parse.labels, "Labels for every series: {team: rl}, or team=rl,cluster=a.")
    )
    linger_seconds: float = field(
        default=30.0,
        metadata=_how(
            parse.seconds, "At the end, wait at most this long for push and for a last scrape, as far as they are used."
        ),
    )
    window: int = field(
        default=20, metadata=_how(parse.integer(2, 10_000), "Steps in the rolling window of the health signals.")
    )
    baseline_steps: int = field(
        default=20,
        metadata=_how(parse.integer(2, 10_000), "Steps after warm-up that make the frozen baseline of a signal."),
    )
    warmup_steps: int = field(
        default=5, metadata=_how(parse.integer(0, 10_000), "Steps at the start that no baseline looks at.")
    )
    thresholds: dict[str, float] = field(
        default_factory=dict,
        metadata=_how(
            parse.thresholds, "The run's own alert thresholds: {VerlKLExplosion: 0.5}, or VerlKLExplosion=0.5."
        ),
    )
    max_series: int = field(
        default=20_000, metadata=_how(parse.integer(1, 10_000_000), "Most series made from verl keys in one scrape.")
    )
    journal: str = field(
        default=parse.AUTO,
        metadata=_how(
            parse.journal, "File that keeps every step; auto: beside the checkpoints, if possible; false: none."
        ),
    )
    remote_write: RemoteWriteSettings = field(
        default_factory=RemoteWriteSettings, metadata={"section": RemoteWriteSettings}
    )

    cluster: str = field(
        default=parse.AUTO,
        metadata=_how(
            parse.one_of(parse.AUTO, "off"),
            "auto: on a Ray cluster an agent on every GPU node; off: this node's GPUs only.",
        ),
    )
    gpu: GpuSettings = field(default_factory=GpuSettings, metadata={"section": GpuSettings})
    tls: TlsSettings = field(default_factory=TlsSettings, metadata={"section": TlsSettings})
    basic_auth: BasicAuthSettings = field(default_factory=BasicAuthSettings, metadata={"section": BasicAuthSettings})

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
                given[name] = _value(known[name], variable, environment[variable])
        for name, value in _flat(cls, _section(config)).items():
            given[name] = _value(known[_existing(name, known, CONFIG_PREFIX)], CONFIG_PREFIX + name, value)
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
            f"{prefix}{name} is no setting: did you mean {prefix}{parse.nearest(name, names)}? (There are: {', '.join(names)}.)"
        )
    return name


def _value(setting: Field[Any], full_name: str, value: Any) -> Any:
    try:
        return setting.metadata["parse"](value)
    except ValueError as error:
        raise SettingsError(f"{full_name} is {value!r}: it {error}.") from None
