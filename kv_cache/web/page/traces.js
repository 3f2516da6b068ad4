/* Traces: uploaded or picked, looked at, replayed. */

import { alert, ask, h, table } from "./dom.js";

export async function traces(place) {
  const known = await ask("/commands");
  const why = alert("why"), status = h("p", { role: "status" });
  const file = h("input", { type: "file", id: "trace" });
  const mib = known.most_upload_bytes / 2 ** 20;
  async function upload(event) {
    event.preventDefault();
    why.textContent = "";
    const [picked] = file.files;
    if (!picked) { why.textContent = "No file is picked; pick a trace."; return; }
    if (picked.size > known.most_upload_bytes) {
      why.textContent = `${picked.name} has more than ${mib} MiB; copy it into ${known.folders[0]} and name it there.`;
      return;
    }
    status.textContent = "Uploading …";
    try {
      const kept = await ask(`/traces?name=${encodeURIComponent(picked.name)}`, picked);
      await statistics(kept.path);
    } catch (error) { why.textContent = error.message; }
    status.textContent = "";
  }
  async function statistics(path) {
    try { location.hash = `#/run/${(await ask("/runs", { command: "trace stats", values: { path } })).id}`; }
    catch (error) { why.textContent = error.message; }
  }
  place.append(h("h2", {}, "Traces"), h("form", { onsubmit: upload },
    h("div", { class: "row" }, h("div", { class: "field" }, h("label", { for: "trace" }, `Upload a trace, at most ${mib} MiB`), file), h("button", { class: "first", id: "upload" }, "Upload and look at it"))),
    status, why,
    table("Traces that can be picked", ["trace", "look", "use"], known.traces.map((path) => h("tr", {},
      h("th", { scope: "row", class: "long" }, path),
      h("td", {}, h("button", { type: "button", "aria-label": `statistics of ${path}`, onclick: () => statistics(path) }, "Statistics")),
      h("td", {}, h("a", { href: `#/start/run/${encodeURIComponent(`workload.trace=${path}`)}`, "aria-label": `replay ${path}` }, "Replay"))))));
}
