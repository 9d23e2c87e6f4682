"""The landing page: what a person who opens the endpoint in a browser wants to know."""

from __future__ import annotations

import time
from html import escape

from verl_prometheus import __version__
from verl_prometheus.phases import Phases
from verl_prometheus.run import RunIdentity, StepSnapshot

_COLOURS = {"starting": "#8a6d00", "running": "#0b6e4f", "finished": "#1f4e9e", "failed": "#a8201a"}
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><meta http-equiv="refresh" content="5">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 3rem auto; max-width: 44rem; padding: 0 1rem; color: #1b1f23 }}
h1 {{ font-size: 1.4rem; overflow-wrap: anywhere }}
th {{ text-align: left; font-weight: 500; color: #57606a; padding-right: 2rem; white-space: nowrap; vertical-align: top }}
td {{ overflow-wrap: anywhere }}
progress {{ width: 100%; margin: 1rem 0 }}
.state {{ color: #fff; background: {colour}; border-radius: .3rem; padding: .1rem .6rem; font-size: 1rem }}
footer {{ margin-top: 2rem; color: #57606a; font-size: .85rem }}
</style></head><body>
<h1>{title} <span class="state">{state}</span></h1>
{progress}
<table>
{rows}
</table>
<p><a href="/metrics">Metrics</a> · <a href="/-/healthy">Health</a></p>
<footer>verl-prometheus {version}, this page reloads every 5 seconds</footer>
</body></html>
"""


def render(identity: RunIdentity, snapshot: StepSnapshot, phases: Phases, now: float | None = None) -> str:
    """The page as HTML; everything that comes from the run is escaped."""
    now = time.time() if now is None else now
    target = identity.step_target
    rows = {
        "Step": f"{_known(snapshot.step)} of {target}" if target is not None else _known(snapshot.step),
        "Phase": " › ".join(f"{phase} ({now - began:.0f} s)" for phase, began in phases.active.items()) or "–",
        "Last step": f"{now - snapshot.time:.0f} s ago" if snapshot.time is not None else "none yet",
        "Step time": f"{snapshot.step_seconds:.2f} s" if snapshot.step_seconds is not None else "–",
        "Started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(identity.started)),
        "Run": identity.run_id,
        **{name: identity.facts.get(name) or "–" for name in ("trainer", "algorithm", "model", "node")},
    }
    return _PAGE.format(
        title=escape(f"{identity.project} / {identity.experiment}"),
        colour=_COLOURS[snapshot.state],
        state=snapshot.state,
        progress=f'<progress value="{snapshot.step or 0}" max="{target}"></progress>' if target else "",
        rows="\n".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items()),
        version=__version__,
    )


def _known(value: int | None) -> str:
    return "–" if value is None else str(value)
