// Grafana's own code in Node: @grafana/data wants a browser, jsdom is one.
import { Console } from "node:console";
import { createRequire } from "node:module";
import { JSDOM } from "jsdom";

globalThis.console = new Console(process.stderr); // the answer has stdout for itself

const page = new JSDOM("<!doctype html>", { url: "http://localhost" });
globalThis.window = page.window;
for (const name of ["document", "localStorage", "HTMLElement", "Node", "location", "navigator", "getComputedStyle"]) {
  globalThis[name] = page.window[name];
}

const require = createRequire(import.meta.url);

/** @grafana/data of a major version of Grafana, its transformations registered. */
export function load(major) {
  const grafana = require(`grafana-data-${major}`);
  // two names for the same transformation are one entry
  const known = new Map(Object.values(grafana.standardTransformers).map((one) => [one.id, one]));
  grafana.standardTransformersRegistry.setInit(() =>
    [...known.values()].map((one) => ({
      id: one.id,
      name: one.name,
      transformation: major < 13 ? one : async () => one, // 13 loads them when they are needed
      editor: () => null,
    })),
  );
  return grafana;
}
