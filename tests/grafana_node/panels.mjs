// usage: node panels.mjs MAJOR < panels.json > results.json
// Takes panels with the answers of Prometheus to their queries: [{panel, answers: {refId: [series, ...]}}, ...].
// Gives, for each panel, what Grafana would draw: after the transformations, field overrides and links applied.
import { readFileSync } from "node:fs";
import { load } from "./grafana.mjs";

const grafana = load(Number(process.argv[2]));
const { FieldType } = grafana;

const number = (text) => (text === "NaN" ? null : Number(text.replace("Inf", "Infinity")));
const field = (name, type, values, extra = {}) => ({ name, type, config: {}, values, ...extra });
const samples = (series) => series.values ?? [series.value];

function legend(target, labels) {
  if (target.legendFormat === "__auto") {
    return undefined;
  }
  return target.legendFormat.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, name) => labels[name] ?? "");
}

/** One frame a series, as Grafana's Prometheus data source gives them. */
function timeSeries(target, result) {
  return result.map((series) => ({
    refId: target.refId,
    fields: [
      field("Time", FieldType.time, samples(series).map(([at]) => at * 1000)),
      field("Value", FieldType.number, samples(series).map(([, text]) => number(text)), {
        labels: series.metric,
        config: { displayNameFromDS: legend(target, series.metric) },
      }),
    ],
    length: samples(series).length,
  }));
}

/** One frame with a column a label, as the data source gives for the format `table`. */
function table(target, result, several) {
  const labels = [...new Set(result.flatMap((series) => Object.keys(series.metric)))].sort();
  const rows = result.flatMap((series) => samples(series).map(([at, text]) => ({ at: at * 1000, text, metric: series.metric })));
  if (target.range) {
    rows.sort((one, other) => one.at - other.at);
  }
  return [
    {
      refId: target.refId,
      fields: [
        field("Time", FieldType.time, rows.map(({ at }) => at)),
        ...labels.map((name) => field(name, FieldType.string, rows.map(({ metric }) => metric[name] ?? ""))),
        field(several ? `Value #${target.refId}` : "Value", FieldType.number, rows.map(({ text }) => number(text))),
      ],
      length: rows.length,
    },
  ];
}

function frames(panel, answers) {
  const targets = panel.targets;
  const several = targets.filter(({ format }) => format === "table").length > 1;
  return targets.flatMap((target) => {
    const result = answers[target.refId];
    if (result.length === 0) {
      return [];
    }
    return target.format === "table" ? table(target, result, several) : timeSeries(target, result);
  });
}

/** What a link says of its row, as Grafana replaces it; other variables stay. */
const interpolate = (text, scoped) =>
  text.replace(/\$\{__data\.fields\.([^}]+)\}/g, (whole, path) => {
    const context = scoped?.__dataContext?.value;
    if (!context) {
      return whole;
    }
    const row = grafana.getFieldDisplayValuesProxy({ frame: context.frame, rowIndex: context.rowIndex });
    return String(path.split(".").reduce((value, name) => value?.[name], row));
  });

function described(frame, series) {
  return frame.fields.map((one) => ({
    name: grafana.getFieldDisplayName(one, frame, series),
    original: one.name,
    type: one.type,
    unit: one.config.unit,
    values: one.values,
    shown: one.values.slice(0, 20).map((value) => (one.display ? grafana.formattedValueToString(one.display(value)) : null)),
    links: one.getLinks && frame.length ? one.getLinks({ valueRowIndex: 0 }).map(({ href, title }) => ({ href, title })) : [],
  }));
}

function matched(matcher, series) {
  const matches = grafana.getFieldMatcher(matcher);
  return series.flatMap((frame) => frame.fields.filter((one) => matches(one, frame, series)).map(({ name }) => name));
}

async function drawn({ panel, answers }) {
  const before = frames(panel, answers);
  const transformed = await new Promise((resolve, reject) =>
    grafana
      .transformDataFrame(panel.transformations ?? [], before, { interpolate: (text) => text })
      .subscribe({ next: resolve, error: reject }),
  );
  const series = grafana.applyFieldOverrides({
    data: transformed,
    fieldConfig: structuredClone(panel.fieldConfig),
    replaceVariables: interpolate,
    theme: grafana.createTheme(),
    fieldConfigRegistry: registry(),
    timeZone: "utc",
  });
  return {
    title: panel.title,
    before: before.map((frame) => frame.fields.map(({ name }) => name)),
    frames: series.map((frame) => described(frame, series)),
    overrides: panel.fieldConfig.overrides.map(({ matcher }) => ({ matcher, fields: matched(matcher, series) })),
    series: (panel.options?.series ?? []).map(({ x }) => (x ? matched(x.matcher, series) : [])),
  };
}

/** Enough of a panel's options for units, names, mappings and links. */
function registry() {
  return new grafana.Registry(() =>
    ["unit", "displayName", "mappings", "links", "decimals", "min", "max", "color", "thresholds", "noValue"].map((path) => ({
      id: path,
      path,
      name: path,
      process: (value) => value,
      shouldApply: () => true,
      override: () => null,
      editor: () => null,
    })),
  );
}

const panels = JSON.parse(readFileSync(0, "utf8"));
const results = [];
for (const one of panels) {
  results.push(await drawn(one));
}
process.stdout.write(JSON.stringify(results));
