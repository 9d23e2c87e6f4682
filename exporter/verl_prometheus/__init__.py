"""A verl run as a Prometheus target. Nothing happens at import; see `verl_prometheus.plugin`."""

__version__ = "0.1.0"
