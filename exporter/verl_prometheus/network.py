"""Addresses: where other machines find this one."""

from __future__ import annotations

import socket
import sys

ALL_ADDRESSES = ("", "0.0.0.0", "::")


def node_address() -> str:
    """The node's address as other nodes know it: Ray's, in a Ray process; else that of the route to the outside."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return str(ray.util.get_node_ip_address())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # TEST-NET-2: picks a route, sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def announced_address(listening: str) -> str:
    """What others connect to where a server listens on that address: all of them means the node's own."""
    return node_address() if listening in ALL_ADDRESSES else listening


def host_and_port(host: str, port: int) -> str:
    """host:port as Prometheus and URLs write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
