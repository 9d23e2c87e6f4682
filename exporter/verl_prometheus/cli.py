"""The command `verl-prometheus`: one subcommand a line, each implemented where its idea lives."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

# subcommand -> module with `HELP: str`, `arguments(parser) -> None` and `run(namespace) -> int`
COMMANDS = {
    "demo": "verl_prometheus.demo.command",
    "backfill": "verl_prometheus.backfill.command",
    "metrics": "verl_prometheus.catalog_command",
    "node": "verl_prometheus.node_command",
    "replay": "verl_prometheus.replay_command",
    "settings": "verl_prometheus.settings_command",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status. Bad input is a one-line error on stderr and status 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="verl-prometheus", description="A verl run as a Prometheus target.")
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name in [argv[0]] if argv and argv[0] in COMMANDS else COMMANDS:  # all of them only for the help
        module = importlib.import_module(COMMANDS[name])
        subparser = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
        module.arguments(subparser)
        subparser.set_defaults(run=module.run)
    namespace = parser.parse_args(argv)
    try:
        return int(namespace.run(namespace))
    except (ValueError, OSError) as error:
        print(f"verl-prometheus {namespace.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
