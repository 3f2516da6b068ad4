/* What lies beside a result: a time series as lines, an event log as its first lines. */

import { Chart, h } from "./dom.js";

const MOST_BYTES = 4 << 20, MOST_LINES = 200, MOST_POINTS = 600;
const LABELS = ["scenario", "variant", "name", "seed", "run", "at_ns"];

async function begin(address) {
  const answer = await fetch(address, { headers: { Range: `bytes=0-${MOST_BYTES - 1}` } });
  const lines = (await answer.text()).split("\n");
  return { lines, whole: answer.status === 200 || lines[lines.length - 1] === "" };
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

function lines(groups, at, column) {
  const names = Object.keys(groups).slice(0, 6);
  const places = [...new Set(names.flatMap((name) => groups[name].map((row) => Number(row[at.at_ns]) / 1e9)))].sort((a, b) => a - b);
  const each = Math.max(1, Math.ceil(places.length / MOST_POINTS));
  const kept = places.filter((_, index) => index % each === 0);
  const chart = new Chart(column, "over virtual time", names);
  chart.set(kept, names.map((name) => {
    const rows = groups[name];
    let row = 0;
    return kept.map((place) => {
      while (row + 1 < rows.length && Number(rows[row + 1][at.at_ns]) / 1e9 <= place) row += 1;
      return Number(rows[row][at[column]]);
    });
  }));
  return chart;
}

export async function look(address, place, chosen) {
  const { lines: text, whole } = await begin(address);
  const heads = text[0].split(",");
  if (!heads.includes("at_ns")) {
    place.replaceChildren(h("pre", { tabindex: "0", role: "region", "aria-label": "Beginning of the file" }, text.slice(0, MOST_LINES).join("\n")),
      h("p", { class: "hint" }, text.length > MOST_LINES || !whole ? `The first ${MOST_LINES} lines.` : ""));
    return;
  }
  const { at, groups } = variants(text, heads), columns = heads.filter((head) => !LABELS.includes(head));
  const box = h("div", {});
  const pick = h("select", { id: `column-${address}`, onchange: () => draw() }, columns.map((column) => h("option", { value: column }, column)));
  if (chosen) pick.value = chosen;
  function draw() {
    const chart = lines(groups, at, pick.value);
    box.replaceChildren(chart.element);
    chart.draw();
  }
  place.replaceChildren(h("div", { class: "row" }, h("div", { class: "field" }, h("label", { for: pick.id }, "Series"), pick)), box,
    h("p", { class: "hint" }, whole ? "" : "The beginning of the file; the result's page has all of it."));
  draw();
}
