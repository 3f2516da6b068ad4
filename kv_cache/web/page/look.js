/* What lies beside a result: a time series as lines, an event log as its lines. A file that is still
   written is looked at again and again: of a log the latest lines, of a series all of it. */

import { Chart, h } from "./dom.js";

const MOST_BYTES = 4 << 20, LOG_BYTES = 64 << 10, MOST_LINES = 200, MOST_POINTS = 600;
const LABELS = ["scenario", "variant", "name", "seed", "run", "at_ns"];

/* Whole lines of a part of a file, and whether that is all of it; null where nothing is there yet. */
async function part(address, range) {
  const answer = await fetch(address, { headers: { Range: `bytes=${range}` } });
  if (!answer.ok || answer.status === 204) return null;
  const lines = (await answer.text()).split("\n");
  lines.pop(); // what follows the last line's end: nothing, or a line that is not whole
  const [, begin, end, size] = /bytes (\d+)-(\d+)\/(\d+)/.exec(answer.headers.get("Content-Range") || "") || [];
  if (Number(begin) > 0) lines.shift();
  return { lines, whole: answer.status === 200 || (begin === "0" && Number(end) + 1 === Number(size)) };
}

/* Rows of a series by the name of their variant; of several seeds the first one. */
function variants(lines, heads) {
  const at = Object.fromEntries(heads.map((head, index) => [head, index])), seeds = {}, groups = {};
  for (const line of lines.slice(1)) {
    const cells = line.split(",");
    if (cells.length !== heads.length) continue;
    const name = cells[at.name] || cells[at.variant];
    if ((seeds[name] ??= cells[at.seed]) !== cells[at.seed]) continue;
    (groups[name] ??= []).push(cells);
  }
  return { at, groups };
}

/* Instants, and of each variant its value at each. */
function columns(groups, at, column, names) {
  const places = [...new Set(names.flatMap((name) => groups[name].map((row) => Number(row[at.at_ns]) / 1e9)))].sort((a, b) => a - b);
  const each = Math.max(1, Math.ceil(places.length / MOST_POINTS));
  const kept = places.filter((_, index) => index % each === 0);
  return [kept, names.map((name) => {
    const rows = groups[name];
    let row = 0;
    return kept.map((place) => {
      while (row + 1 < rows.length && Number(rows[row + 1][at.at_ns]) / 1e9 <= place) row += 1;
      return Number(rows[row][at[column]]);
    });
  })];
}

/* Returns what looks at a file, now and whenever it is called, and says what the file is. `going`:
   it is still written. */
export function look(address, place, going) {
  const box = h("div", {}), hint = h("p", { class: "hint" });
  let pick = null, chart = null, shown = "", series = null;

  function draw() {
    const { at, groups } = series, names = Object.keys(groups).slice(0, 6), now = JSON.stringify([pick.value, names]);
    if (now !== shown) {
      if (chart && chart.plot) chart.plot.destroy();
      chart = new Chart(pick.value, "over virtual time", names);
      box.replaceChildren(chart.element);
      shown = now;
    }
    chart.set(...columns(groups, at, pick.value, names));
    chart.draw();
  }
  async function lines() {
    const read = await part(address, going ? `-${LOG_BYTES}` : `0-${LOG_BYTES - 1}`);
    if (read === null || !read.lines.length) return "";
    const some = going ? read.lines.slice(-MOST_LINES) : read.lines.slice(0, MOST_LINES);
    const all = read.whole && some.length === read.lines.length;
    const text = h("pre", { tabindex: "0", role: "region", "aria-label": going ? "End of the file" : "Beginning of the file" }, some.join("\n"));
    place.replaceChildren(text, h("p", { class: "hint" }, all ? "" : `The ${going ? "latest" : "first"} ${some.length} lines.`));
    if (going) text.scrollTop = text.scrollHeight;
    return some[0].startsWith("{") ? "Event log" : "Table";
  }
  return async function again() {
    const first = await part(address, `0-${LOG_BYTES - 1}`);
    if (first === null || !first.lines.length) {
      if (!place.childElementCount) place.replaceChildren(h("p", { class: "hint" }, "Nothing was written yet."));
      return "";
    }
    const heads = first.lines[0].split(",");
    if (!heads.includes("at_ns")) return lines();
    const read = await part(address, `0-${MOST_BYTES - 1}`);
    if (read === null) return "";
    series = variants(read.lines, heads);
    if (pick === null) {
      pick = h("select", { id: `column-${address}`, onchange: () => draw() }, heads.filter((head) => !LABELS.includes(head)).map((column) => h("option", { value: column }, column)));
      place.replaceChildren(h("div", { class: "row" }, h("div", { class: "field" }, h("label", { for: pick.id }, "Series"), pick)), box, hint);
    }
    hint.textContent = read.whole ? "" : "The beginning of the file; the result's page has all of it.";
    draw();
    return "Series";
  };
}
