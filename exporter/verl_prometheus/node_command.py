"""`verl-prometheus node`: the GPU agent of one node as a process of its own, for systemd, Slurm or a DaemonSet."""

from __future__ import annotations

import argparse
import platform
import signal
import threading

from verl_prometheus import gpu
from verl_prometheus.settings import Settings

HELP = "Serve the GPUs of this node until stopped; push them, too, if VERL_PROMETHEUS_REMOTE_WRITE_URL says where."
DEFAULT_PORT = 9401  # the trainer's default, 9400, may be in use on the same node


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="port; if taken, the next free one (%(default)s)"
    )
    parser.add_argument("--address", default="", help="address to listen on; default: all")
    parser.add_argument("--interval", type=_interval, default=1.0, help="seconds between samples (%(default)s)")
    parser.add_argument("--backend", choices=gpu.BACKENDS, default="nvml", help="who is asked (%(default)s)")
    parser.add_argument("--gpus", type=int, default=8, help="how many GPUs to simulate (%(default)s)")
    parser.add_argument("--targets-dir", default="", help="announce this node in a file_sd file in this folder")
    parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE", help="label of every series; may be repeated"
    )


def run(namespace: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Raises ValueError for a bad label, OSError if it cannot listen or announce."""
    from verl_prometheus.discovery import TargetsFile
    from verl_prometheus.gpu.agent import AgentConfig, GpuAgent

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    config = AgentConfig(
        backend=namespace.backend,
        interval=namespace.interval,
        labels=Settings.load({"trainer": {"prometheus": {"labels": ",".join(namespace.label)}}}, {}).labels,
        address=namespace.address,
        port=namespace.port,
        simulated=namespace.gpus,
        only_visible=False,
        remote_write=Settings.load(None).remote_write,
    )
    agent = GpuAgent(config)
    targets = TargetsFile(namespace.targets_dir, platform.node(), "node") if namespace.targets_dir else None
    try:
        if targets:
            targets.write([{"targets": [agent.target], "labels": {}}])
        print(f"verl-prometheus: serving http://{agent.target}/metrics", flush=True)
        stopping.wait()
    finally:
        if targets:
            targets.remove()
        agent.close()
    return 0


def _interval(text: str) -> float:
    seconds = float(text)
    if not seconds >= gpu.MIN_INTERVAL:
        raise argparse.ArgumentTypeError(f"must be at least {gpu.MIN_INTERVAL} seconds")
    return seconds
