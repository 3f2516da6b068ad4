/* All results of the folder: found, opened, compared, noted; and one configuration over time. */

import { alert, ask, badge, Chart, date, figures, h, moved, table } from "./dom.js";

const GIB = 2 ** 30, EACH = 100;
const page = (paths, save) => `/page?${paths.map((path) => `result=${encodeURIComponent(path)}`).join("&")}${save ? "&save=1" : ""}`;

function rate(row) {
  if (row.value === null) return "–";
  const interval = row.low === null || row.high === null ? "" : ` (${figures(row.low / GIB)} to ${figures(row.high / GIB)})`;
  return figures(row.value / GIB) + interval;
}

function notes(row, again) {
  const why = alert("note-why");
  const label = h("input", { id: "note-label", value: row.label || "", maxlength: 200 });
  const note = h("textarea", { id: "note-text", rows: 5, value: row.note || "" });
  const dialog = h("dialog", { "aria-label": `Note on ${row.path}`, onclose: () => dialog.remove() }, h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      await ask(`/notes/${row.path.split("/").map(encodeURIComponent).join("/")}`, { label: label.value, note: note.value }, "PUT");
      dialog.close();
      again();
    } catch (error) { why.textContent = error.message; }
  } }, h("h3", {}, row.path), h("p", { class: "hint" }, "Written beside the result, which stays as its run sealed it."),
  h("div", { class: "field" }, h("label", { for: "note-label" }, "Label"), label),
  h("div", { class: "field" }, h("label", { for: "note-text" }, "Note"), note), why,
  h("div", { class: "row" }, h("button", { class: "first" }, "Keep"), h("button", { type: "button", onclick: () => dialog.close() }, "Leave"))));
  document.body.append(dialog);
  dialog.showModal();
}

export async function results(place) {
  const wanted = {}, chosen = new Set();
  const list = h("div", {}), count = h("p", { role: "status" }), bar = h("progress", { max: 1, hidden: true, "aria-label": "Files read for the list" });
  const filters = h("div", { class: "row" }), status = alert("why");
  const compare = h("button", { type: "button", id: "compare", disabled: true, onclick: () => { location.href = page([...chosen]); } }, "Compare");
  const share = h("a", { hidden: true, download: "" }, "as one file");
  let timer = null, offset = 0, drawn = "";

  function choose(path, on) {
    if (on) chosen.add(path); else chosen.delete(path);
    compare.disabled = chosen.size < 2 || chosen.size > 6;
    compare.textContent = chosen.size ? `Compare ${chosen.size} (2 to 6)` : "Compare";
    share.hidden = compare.disabled;
    share.href = page([...chosen], true);
  }
  function row(each) {
    return h("tr", {},
      h("td", {}, each.fault ? null : h("input", { type: "checkbox", "aria-label": `choose ${each.path}`, checked: chosen.has(each.path), onchange: (event) => choose(each.path, event.target.checked) })),
      h("th", { scope: "row" }, each.fault ? date(each.started) : h("a", { href: page([each.path]) }, date(each.started))),
      h("td", {}, each.label || "", each.note ? h("span", { class: "small" }, each.note.slice(0, 120)) : null),
      h("td", {}, badge(each.fault ? "unreadable" : each.verdict || each.kind), moved(each)),
      h("td", {}, each.kind), h("td", { class: "n" }, rate(each)), h("td", { class: "text" }, each.fault || each.device || "–"), h("td", { class: "text" }, [each.model, each.preset].filter(Boolean).join(", ")),
      h("td", {}, h("button", { type: "button", onclick: () => notes(each, load), "aria-label": `note on ${each.path}` }, "Note"), " ",
        each.setup && each.value !== null ? h("a", { href: `#/trend/${encodeURIComponent(each.path)}`, "aria-label": `trend of ${each.path}` }, "Trend") : null, " ",
        each.fault ? null : h("a", { href: page([each.path], true), download: "", "aria-label": `${each.path} as one file` }, "File")),
      h("td", { class: "long" }, each.path));
  }
  async function load() {
    clearTimeout(timer);
    const query = new URLSearchParams({ ...wanted, limit: EACH, offset });
    try {
      const answer = await ask(`/results?${query}`);
      status.textContent = "";
      const reading = answer.indexing.done < answer.indexing.total;
      bar.hidden = !reading;
      if (reading) bar.value = answer.indexing.done / answer.indexing.total;
      count.textContent = `${answer.count} results${reading ? `; ${answer.indexing.done} of ${answer.indexing.total} files are read` : ""}`;
      const text = JSON.stringify([answer.results, answer.choices]);
      if (text !== drawn) {
        drawn = text;
        filter(answer.choices);
        list.replaceChildren(table("Results", ["choose", "date, UTC", "label", "verdict", "kind", "storage, GiB/s (95 %)", "device", "what was run", "", "file"], answer.results.map(row)),
          h("div", { class: "row" }, h("button", { type: "button", disabled: !offset, onclick: () => { offset = Math.max(0, offset - EACH); load(); } }, "Newer"),
            h("button", { type: "button", disabled: offset + EACH >= answer.count, onclick: () => { offset += EACH; load(); } }, "Older")));
      }
      timer = setTimeout(load, reading ? 500 : 5000);
    } catch (error) { status.textContent = error.message; }
  }
  function filter(choices) {
    if (filters.contains(document.activeElement)) return;
    const set = (name) => (event) => { if (event.target.value) wanted[name] = event.target.value; else delete wanted[name]; offset = 0; load(); };
    const one = (name, input) => { input.id = `by-${name}`; input.value = wanted[name] || ""; return h("div", { class: "field" }, h("label", { for: input.id }, name), input); };
    filters.replaceChildren(
      one("text", h("input", { type: "search", oninput: set("text") })),
      ...Object.entries(choices).map(([name, words]) => one(name, h("select", { onchange: set(name) }, h("option", { value: "" }, "all"), words.map((word) => h("option", { value: word }, word))))),
      one("since", h("input", { type: "date", onchange: set("since") })), one("until", h("input", { type: "date", onchange: set("until") })));
  }
  filter({});
  place.append(h("h2", {}, "Results"), filters, count, bar, status, h("div", { class: "row" }, compare, share), list);
  await load();
  return () => clearTimeout(timer);
}

export async function trend(place, path) {
  const answer = await ask(`/trend?result=${encodeURIComponent(path)}`), { rows, steps, pair } = answer;
  const chart = new Chart("Storage of each run", "GiB/s", ["value", "low", "high", "level"]);
  chart.place = (number) => Number.isInteger(number) ? String(number + 1) : "";
  chart.points = true;
  const scaled = (values) => values.map((value) => value === null ? null : value / GIB);
  chart.set(rows.map((_, index) => index), [...["value", "low", "high"].map((name) => scaled(rows.map((row) => row[name]))), scaled(answer.levels)]);
  const step = (index) => {
    const here = steps.find((each) => each.at === index);
    return here ? `${here.ratio < 1 ? "−" : "+"}${figures(100 * Math.abs(1 - here.ratio), 3)} %` : "";
  };
  place.append(...[h("h2", {}, "Trend"), h("p", { class: "lead", id: "sentence" }, answer.sentence),
    h("p", { class: "hint" }, `The same configuration on ${rows[0].device}, by the order of its runs; each with its 95 % interval within the run. The level is the mean between two steps; invalid runs are in none.`),
    answer.line ? h("pre", { tabindex: "0", role: "region", "aria-label": "Command line" }, answer.line) : null,
    chart.element,
    table("Runs of this configuration on this device", ["run", "date, UTC", "label", "verdict", "storage, GiB/s (95 %)", "step", "file"], rows.map((row, index) => h("tr", {},
      h("td", { class: "n" }, String(index + 1)), h("th", { scope: "row" }, h("a", { href: page([row.path]) }, date(row.started))), h("td", {}, row.label || ""), h("td", {}, badge(row.verdict), moved(row)), h("td", { class: "n" }, rate(row)), h("td", { class: "n" }, step(index)), h("td", { class: "long" }, row.path)))),
    pair.length ? h("p", {}, h("a", { href: page(pair) }, steps.length ? "Before and after the latest step, side by side" : "First and latest side by side"), ", ", h("a", { href: page(pair, true), download: "" }, "as one file")) : null].filter(Boolean));
  chart.draw();
}
