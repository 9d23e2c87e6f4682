"""Panels: one function a kind, with everything that all panels of the kind share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import bargauge, heatmap, statetimeline, table, timeseries, trend, xychart
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    ScaleDistributionConfig,
    StackingConfig,
    TableSortByFieldState,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig as Transformation
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.xychart import SeriesMapping, XYShowMode

from verl_dashboards import links, style
from verl_dashboards.queries import DATASOURCE, Query
from verl_dashboards.style import Property

STEP = "Value #A\\experiment"  # what groupingToMatrix calls the column of the steps
Overrides = Mapping[str, Sequence[Property]]


@dataclass(frozen=True)
class Common:
    """What every panel has.

    question: what the panel answers, and what a reader must know about the answer; its description.
    size: width and height in Grafana's grid, 24 units wide.
    alerts: whose runbooks it links to.
    overrides: name of a series or column, or a regular expression between slashes -> properties.
    no_value: shown where there is nothing to draw.
    """

    title: str
    question: str
    size: tuple[int, int]
    queries: Sequence[Query]
    unit: str = "short"
    alerts: Sequence[str] = ()
    overrides: Overrides = field(default_factory=dict)
    no_value: str = "no data"


def _begin(builder: Any, parts: Common) -> Any:
    width, height = parts.size
    builder.title(parts.title).description(parts.question).datasource(DATASOURCE).span(width).height(height)
    builder.unit(parts.unit).no_value(parts.no_value)
    builder.links([*map(links.runbook, parts.alerts), links.metrics()])
    for ref, query in zip(ascii_uppercase, parts.queries, strict=False):
        builder.with_target(query.build(ref))
    for name, properties in parts.overrides.items():
        override = builder.override_by_regexp if name.startswith("/") else builder.override_by_name
        override(name, list(properties))
    return builder


def _legend(calcs: Sequence[str], right: bool = False) -> VizLegendOptions:
    return (
        VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.TABLE if calcs else common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.RIGHT if right else common.LegendPlacement.BOTTOM)
        .calcs(list(calcs))
    )


def _tooltip(sort: common.SortOrder = common.SortOrder.DESCENDING) -> VizTooltipOptions:
    return VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(sort)


LIMITS, BASELINES = r"/^((upper|lower) )?limit\b|\(limit\)$/", "/^own start/"


def lines(
    parts: Common,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    logarithmic: bool = False,
    stacked: bool = False,
    calcs: Sequence[str] = ("lastNotNull",),
    legend_right: bool = False,
    decimals: int | None = None,
) -> timeseries.Panel:
    """Values over time. Series called "limit" are dashed lines, those called "own start" dotted ones."""
    builder: timeseries.Panel = _begin(timeseries.Panel(), parts)
    builder.legend(_legend(calcs, legend_right)).tooltip(_tooltip()).color_scheme(style.by_name())
    builder.draw_style(common.GraphDrawStyle.LINE).line_width(1 if stacked else 2).fill_opacity(80 if stacked else 0)
    builder.show_points(common.VisibilityMode.AUTO).point_size(4).span_nulls(False).axis_border_show(False)
    if stacked:
        builder.stacking(StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if minimum is not None:
        builder.min(minimum)
    if maximum is not None:
        builder.max(maximum)
    if decimals is not None:
        builder.decimals(decimals)
    if logarithmic:
        builder.scale_distribution(_log_scale())
    legends = " ".join(query.legend for query in parts.queries)
    if "limit" in legends:
        builder.override_by_regexp(LIMITS, style.LIMIT_LINE)
    if "own start" in legends:
        builder.override_by_regexp(BASELINES, style.BASELINE_LINE)
    return builder


def _log_scale() -> ScaleDistributionConfig:
    return ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)


def rows(
    parts: Common,
    transformations: Iterable[Transformation],
    *,
    sort_by: str | None = None,
    descending: bool = False,
) -> table.Panel:
    """A table; overrides name columns."""
    builder: table.Panel = _begin(table.Panel(), parts)
    builder.transformations(list(transformations)).cell_height(common.TableCellHeight.SM).show_header(True)
    builder.filterable(False).thresholds(style.steps("text"))
    if sort_by is not None:
        builder.sort_by([TableSortByFieldState().display_name(sort_by).desc(descending)])
    return builder


def columns(rename: dict[str, str], hidden: tuple[str, ...]) -> list[Transformation]:
    """All queries as one table, its columns renamed and in the order given."""
    return [
        Transformation("merge", options={}),
        Transformation(
            "organize",
            options={
                "renameByName": rename,
                "indexByName": {name: index for index, name in enumerate(rename)},
                "excludeByName": dict.fromkeys(hidden, True),
                "includeByName": {},
            },
        ),
    ]


def background(*properties: Property) -> list[Property]:
    """A column whose cells have the colour of their value."""
    return [Property("custom.cellOptions", {"type": "color-background", "mode": "basic"}), *properties]


def bars(
    parts: Common,
    *,
    minimum: float = 0,
    maximum: float | None = None,
    healthy: ThresholdsConfig | None = None,
    decimals: int | None = None,
) -> bargauge.Panel:
    """One horizontal bar a series, its last value beside it."""
    builder: bargauge.Panel = _begin(bargauge.Panel(), parts)
    builder.orientation(common.VizOrientation.HORIZONTAL).display_mode(common.BarGaugeDisplayMode.BASIC)
    builder.value_mode(common.BarGaugeValueMode.TEXT).show_unfilled(True).min(minimum)
    builder.reduce_options(ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    builder.thresholds(healthy or style.steps(style.GOOD))
    if maximum is not None:
        builder.max(maximum)
    if decimals is not None:
        builder.decimals(decimals)
    return builder


def timeline(parts: Common, values: Mapping[int, tuple[str, str]]) -> statetimeline.Panel:
    """One row a series; equal neighbouring values are one bar."""
    builder: statetimeline.Panel = _begin(statetimeline.Panel(), parts)
    builder.mappings([style.value_map(dict(values))]).merge_values(True).show_value(common.VisibilityMode.NEVER)
    builder.row_height(0.8).fill_opacity(80).line_width(0).thresholds(style.steps(style.NEUTRAL))
    builder.legend(
        VizLegendOptions()
        .show_legend(False)
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .calcs([])
    )
    return builder.tooltip(_tooltip(common.SortOrder.NONE))


def density(
    parts: Common,
    *,
    buckets: bool,
    y_unit: str = "short",
    minimum: float | None = None,
    maximum: float | None = None,
) -> heatmap.Panel:
    """Colour by value. buckets: the query gives a histogram's buckets; else one row a series."""
    builder: heatmap.Panel = _begin(heatmap.Panel(), parts)
    color = (
        heatmap.HeatmapColorOptions()
        .mode(HeatmapColorMode.SCHEME)
        .scheme("Viridis")
        .fill(style.SKY)
        .exponent(0.5)
        .steps(64)
        .reverse(False)
    )
    if minimum is not None:
        color.min(minimum)
    if maximum is not None:
        color.max(maximum)
    builder.calculate(False).color(color).cell_gap(0).show_legend().show_value(common.VisibilityMode.NEVER)
    builder.cell_values(heatmap.CellValues().unit(parts.unit))
    builder.y_axis(heatmap.YAxisConfig().unit(y_unit).axis_placement(common.AxisPlacement.LEFT))
    layout = common.HeatmapCellLayout.LE if buckets else common.HeatmapCellLayout.UNKNOWN
    builder.rows_frame(heatmap.RowsHeatmapOptions().layout(layout).value(parts.title if buckets else "value"))
    builder.tooltip(
        heatmap.HeatmapTooltip().mode(common.TooltipDisplayMode.SINGLE).y_histogram(False).show_color_scale(True)
    )
    return builder.exemplars_color(style.PURPLE)


def _matrix() -> list[Transformation]:
    """Queries A and B of the same runs as one row a value of A, one column a run; ascending in A."""
    return [
        Transformation("merge", options={}),
        Transformation(
            "groupingToMatrix",
            options={
                "columnField": "experiment",
                "rowField": "Value #A",
                "valueField": "Value #B",
                "emptyValue": "null",
            },
        ),
        Transformation("sortBy", options={"fields": {}, "sort": [{"field": STEP, "desc": False}]}),
    ]


def by_step(parts: Common, *, logarithmic: bool = False) -> trend.Panel:
    """One line a run over its steps. Takes queries A, the step, and B, the value, both "table_range"."""
    builder: trend.Panel = _begin(trend.Panel(), parts)
    builder.transformations(_matrix()).x_field(STEP)
    builder.override_by_name(STEP, [Property("displayName", "step"), Property("unit", "none"), Property("decimals", 0)])
    builder.legend(_legend(("lastNotNull",))).tooltip(_tooltip()).color_scheme(style.by_name())
    builder.line_width(2).fill_opacity(0).show_points(common.VisibilityMode.AUTO).point_size(4).span_nulls(True)
    if logarithmic:
        builder.scale_distribution(_log_scale())
    return builder


def frontier(parts: Common, x_name: str, x_unit: str) -> xychart.Panel:
    """Points of B against A, one colour a run. Both queries are "table_range"."""
    builder: xychart.Panel = _begin(xychart.Panel(), parts)
    matcher = xychart.MatcherConfig().id("byName").options(STEP)
    series = xychart.XYSeriesConfig().x(xychart.XychartXYSeriesConfigX().matcher(matcher))
    builder.transformations(_matrix()).mapping(SeriesMapping.MANUAL).series([series]).color_scheme(style.by_name())
    builder.override_by_name(
        STEP, [Property("displayName", x_name), Property("unit", x_unit), Property("custom.axisLabel", x_name)]
    )
    builder.show(XYShowMode.POINTS).point_size(xychart.XychartFieldConfigPointSize().fixed(6)).fill_opacity(50)
    tooltip = VizTooltipOptions().mode(common.TooltipDisplayMode.SINGLE).sort(common.SortOrder.NONE)
    return builder.legend(_legend(())).tooltip(tooltip)
