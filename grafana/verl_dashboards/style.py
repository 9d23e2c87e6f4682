"""How the boards look: colours that colour-blind people tell apart, on dark and on light.

The hues are those of Okabe and Ito (https://jfly.uni-koeln.de/color/). Good and bad differ in brightness, line style or
text as well, never in hue alone. Runs have no fixed colours: Grafana derives them from a run's name, so that a run keeps
its colour from panel to panel.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.dashboard import FieldColorModeId, Threshold

SKY, BLUE, GREEN, YELLOW, ORANGE, VERMILLION, PURPLE, GREY = (
    "#56B4E9",
    "#0072B2",
    "#009E73",
    "#F0E442",
    "#E69F00",
    "#D55E00",
    "#CC79A7",
    "#8E8E8E",
)
GOOD, WARNING, BAD, NEUTRAL = SKY, ORANGE, VERMILLION, GREY

# verl's phases and what is left of a step, with the colour that each has on every board
PHASES = {
    "gen": SKY,
    "reward": GREEN,
    "old_log_prob": BLUE,
    "ref": PURPLE,
    "values": YELLOW,
    "adv": "#A6761D",
    "update_critic": VERMILLION,
    "update_actor": ORANGE,
    "update_weights": "#B3B3B3",
    "testing": "#7570B3",
    "save_checkpoint": "#666666",
    "rest of the step": "#404040",
}

# value of the state queries -> text and colour
STATES = {
    0: ("vanished", BAD),
    1: ("starting", NEUTRAL),
    2: ("running", GOOD),
    3: ("finished", NEUTRAL),
    4: ("failed", BAD),
}

Property = dashboard.DynamicConfigValue


def steps(base: str, *limits: tuple[float, str]) -> builders.ThresholdsConfig:
    """Thresholds: `base` colour below the first limit, then each limit's colour from there on."""
    first = Threshold(value=None, color=base)
    rest = [Threshold(value=value, color=color) for value, color in limits]
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps([first, *rest])


def fixed(color: str) -> builders.FieldColor:
    return builders.FieldColor().mode(FieldColorModeId.FIXED).fixed_color(color)


def by_name() -> builders.FieldColor:
    return builders.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME)


def colored(color: str) -> Property:
    return Property(id_val="color", value={"mode": "fixed", "fixedColor": color})


def value_map(texts: dict[int, tuple[str, str]]) -> dashboard.ValueMap:
    """Numbers shown as texts in colours."""
    return dashboard.ValueMap(
        options={
            str(value): dashboard.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(texts.items())
        }
    )


# A limit is a dashed line, a baseline a dotted one, both without points.
LIMIT_LINE = [
    colored(BAD),
    Property(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 6]}),
    Property(id_val="custom.lineWidth", value=1),
    Property(id_val="custom.fillOpacity", value=0),
]
BASELINE_LINE = [
    colored(NEUTRAL),
    Property(id_val="custom.lineStyle", value={"fill": "dot", "dash": [2, 6]}),
    Property(id_val="custom.lineWidth", value=1),
    Property(id_val="custom.fillOpacity", value=0),
]


def text_map(colors: dict[str, str], texts: dict[str, str] | None = None) -> dashboard.ValueMap:
    """Texts in colours, or shown as other texts."""
    results = {text: dashboard.ValueMappingResult(text=text, color=color) for text, color in colors.items()}
    results |= {text: dashboard.ValueMappingResult(text=shown) for text, shown in (texts or {}).items()}
    return dashboard.ValueMap(options=results)
