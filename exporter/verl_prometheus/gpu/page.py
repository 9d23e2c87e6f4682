"""The landing page of a node's agent: its GPUs at a glance."""

from __future__ import annotations

from html import escape

from verl_prometheus import __version__
from verl_prometheus.gpu.reading import GpuReading
from verl_prometheus.gpu.sampler import GpuSnapshot

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>GPUs of {node}</title><meta http-equiv="refresh" content="5">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 3rem auto; max-width: 60rem; padding: 0 1rem; color: #1b1f23 }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: right; padding: .2rem .8rem; border-bottom: 1px solid #d8dee4 }}
th:nth-child(-n+2), td:nth-child(-n+2) {{ text-align: left }}
.down, .error {{ color: #a8201a }}
footer {{ margin-top: 2rem; color: #57606a; font-size: .85rem }}
</style></head><body>
<h1>GPUs of {node}</h1>
{error}
<table><tr><th>GPU</th><th>Name</th><th>Utilisation</th><th>Memory</th><th>Power</th><th>Temperature</th></tr>
{rows}
</table>
<p>Driver: {driver} · <a href="/metrics">Metrics</a> · <a href="/-/healthy">Health</a></p>
<footer>verl-prometheus {version}, this page reloads every 5 seconds</footer>
</body></html>
"""
_GIB = 2**30


def render(node: str, snapshot: GpuSnapshot | None) -> str:
    """The page as HTML; None: no sample yet."""
    reading = snapshot.reading if snapshot else None
    error = reading.error if reading else "No sample yet."
    return _PAGE.format(
        node=escape(node),
        error=f'<p class="error">{escape(error)}</p>' if error else "",
        rows="\n".join(map(_row, reading.gpus)) if reading else "",
        driver=escape((reading and reading.driver) or "unknown"),
        version=__version__,
    )


def _row(gpu: GpuReading) -> str:
    if not gpu.up:
        cells = ['<span class="down">down</span>', "", "", ""]
    else:
        cells = [
            _number(gpu.utilization_ratio, "{:.0%}"),
            _memory(gpu),
            _number(gpu.power_watts, "{:.0f} W"),
            _number(gpu.temperature_celsius, "{:.0f} °C"),
        ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in (gpu.index, escape(gpu.name or "–"), *cells)) + "</tr>"


def _memory(gpu: GpuReading) -> str:
    if gpu.memory_used_bytes is None or gpu.memory_total_bytes is None:
        return "–"
    return f"{gpu.memory_used_bytes / _GIB:.1f} of {gpu.memory_total_bytes / _GIB:.0f} GiB"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
