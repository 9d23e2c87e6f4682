// usage: node schema.mjs MAJOR BOARD.json...
// Checks dashboards against the types that Grafana generates from its schema: those of the dashboard, and those of each
// panel's options and field configuration. Unknown properties, wrong types and values of no enumeration are errors.
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const [major, ...boards] = process.argv.slice(2);
const here = dirname(fileURLToPath(import.meta.url));
const types = join(here, "node_modules", `grafana-schema-${major}`, "dist", "types");
const SOURCE = join(here, "check.ts"); // only in memory

/** Where the types of a panel are; their file is named differently from version to version. */
function panelTypes(kind) {
  const folder = join(types, "raw", "composable", kind, "panelcfg", "x");
  return join(folder, readdirSync(folder)[0].replace(/\.d\.ts$/, ""));
}

const PRELUDE = `
import type { AnnotationQuery, Dashboard, FieldConfig, FieldConfigSource, Panel, RowPanel } from "@grafana/schema";

/** As the type looks in JSON: a member of an enumeration is its value. */
type Json<T> = unknown extends T ? unknown
  : T extends string ? \`\${T}\`
  : T extends boolean | null | undefined ? T
  : T extends number ? (number extends T ? number : \`\${T}\` extends \`\${infer N extends number}\` ? N : never)
  : T extends Array<infer U> ? Array<Json<U>>
  : T extends object ? { [K in keyof T]: Json<T[K]> }
  : never;
/** What is missing, the panel fills with its defaults. */
type Filled<T> = T extends Array<infer U> ? Array<Filled<U>> : T extends object ? { [K in keyof T]?: Filled<T[K]> } : T;

type Board = Json<Omit<Dashboard, "panels" | "annotations">>;
/** The data source has properties of its own in an annotation. */
type Annotation = Json<Omit<AnnotationQuery, "target">> &
  { target: Record<string, unknown>; titleFormat: string; textFormat: string; useValueForTime?: boolean };
type Row = Json<Omit<RowPanel, "panels">> & { panels: [] };
type Override<Custom> = Filled<Json<Omit<FieldConfig, "custom"> & { custom?: Custom }>>;
type Typed<Options, Custom> = Json<
  Omit<Panel, "options" | "fieldConfig" | "targets"> & {
    targets: unknown[];
    options: Filled<Options>;
    fieldConfig: {
      defaults: Omit<FieldConfig, "custom"> & { custom?: Filled<Custom> };
      overrides: FieldConfigSource["overrides"];
    };
  }
>;
`;

/** The properties of an override as the field configuration that they make: custom.lineStyle is lineStyle of custom. */
function overridden(properties) {
  const config = {};
  for (const { id, value } of properties) {
    const path = id.split(".");
    const last = path.pop();
    path.reduce((inner, name) => (inner[name] ??= {}), config)[last] = value;
  }
  return config;
}

function source(board) {
  const { panels, annotations, ...rest } = board;
  const all = panels.flatMap((one) => (one.type === "row" ? [{ ...one, panels: [] }, ...one.panels] : [one]));
  const kinds = [...new Set(all.map(({ type }) => type.replace("-", "")))].filter((kind) => kind !== "row");
  const literal = (value) => JSON.stringify(value, null, 1);
  return [
    PRELUDE,
    ...kinds.map((kind) => `import type * as ${kind} from ${literal(panelTypes(kind))};`),
    `export const board: Board = ${literal(rest)};`,
    ...annotations.list.map((one, index) => `export const annotation${index}: Annotation = ${literal(one)};`),
    ...all.flatMap((one) => {
      const kind = one.type.replace("-", "");
      if (kind === "row") {
        return [`export const row${one.id}: Row = ${literal(one)};`];
      }
      const custom = kind === "bargauge" ? "{}" : `${kind}.FieldConfig`;
      return [
        `export const panel${one.id}: Typed<${kind}.Options, ${custom}> = ${literal(one)};`,
        ...one.fieldConfig.overrides.map(
          ({ properties }, index) =>
            `export const override${one.id}_${index}: Override<${custom}> = ${literal(overridden(properties))};`,
        ),
      ];
    }),
  ].join("\n");
}

function errors(text) {
  const options = {
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.ESNext,
    moduleResolution: ts.ModuleResolutionKind.Bundler,
    types: [],
    baseUrl: here,
    paths: { "@grafana/schema": [join(types, "index.d.ts")] },
  };
  const host = ts.createCompilerHost(options);
  const { getSourceFile, fileExists } = host;
  host.getSourceFile = (name, ...more) =>
    name === SOURCE ? ts.createSourceFile(name, text, options.target) : getSourceFile.call(host, name, ...more);
  host.fileExists = (name) => name === SOURCE || fileExists.call(host, name);
  const program = ts.createProgram([SOURCE], options, host);
  return ts.getPreEmitDiagnostics(program).map((one) => {
    const line = one.start === undefined ? "" : text.slice(0, one.start).split("\n").length;
    return `line ${line}: ${ts.flattenDiagnosticMessageText(one.messageText, "\n")}\n    ${text.split("\n")[line - 1] ?? ""}`;
  });
}

let failed = false;
for (const path of boards) {
  const found = errors(source(JSON.parse(readFileSync(path, "utf8"))));
  failed ||= found.length > 0;
  for (const message of found) {
    console.error(`${path}: ${message}`);
  }
}
process.exitCode = failed ? 1 : 0;
