"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);

const count = (n) => n.toLocaleString("en");

/* Text in cells is set as text, never as markup. */
function tableRow(texts, classes) {
  const line = document.createElement("tr");
  texts.forEach((text, i) => {
    const cell = line.insertCell();
    cell.className = classes[i];
    cell.textContent = text;
  });
  return line;
}

function formatBytes(size) {
  if (size < 1024) return `${size} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = -1;
  do { size /= 1024; unit += 1; } while (size >= 1024 * 0.9995 && unit + 1 < units.length);
  return `${size.toFixed(2)} ${units[unit]}`;
}

async function drawFigures() {
  const { docs, items } = read("figures-data");
  await Bokeh.embed.embed_items(docs, items);
}

/* What is on the device at one step of one model, largest first. */
function stepInspector() {
  const data = read("steps-data"), shown = 25;
  const at = document.getElementById("step-at"), which = document.getElementById("step-view");
  const body = document.getElementById("step-residents").tBodies[0];
  function show(key, step) {
    const view = data[key], last = view.live_bytes.length - 1;
    step = Math.min(Math.max(Math.floor(step) || 0, 0), last);
    which.value = key;
    at.max = last;
    if (Number(at.value) !== step) at.value = step;
    const here = [];
    for (let i = 0; i < view.bytes.length; i++) {
      if (view.start[i] <= step && step < view.end[i]) here.push(i);
    }
    here.sort((a, b) => view.bytes[b] - view.bytes[a] || a - b);
    const rows = here.slice(0, shown).map((i) => [
      view.tensor[i], formatBytes(view.bytes[i]), view.categories[view.category[i]],
      `[${count(view.start[i])}, ${count(view.end[i])})`,
    ]);
    if (view.persistent_bytes) rows.unshift(["inputs and parameters together", formatBytes(view.persistent_bytes), "", "whole run"]);
    body.replaceChildren(...rows.map((row) => tableRow(row, ["name", "num", "nowrap", "num"])));
    const rest = here.slice(shown);
    document.getElementById("step-rest").textContent = rest.length
      ? `and ${count(rest.length)} smaller, ${formatBytes(rest.reduce((sum, i) => sum + view.bytes[i], 0))} together` : "";
    document.getElementById("step-said").textContent =
      `${formatBytes(view.live_bytes[step])} live while ${view.operation[step]} runs`;
  }
  const keys = Object.keys(data).filter((key) => data[key].live_bytes.length);
  if (!keys.length) return;
  for (const key of keys) {
    for (const figure of ["memory", "ranges"]) {
      const plot = Bokeh.documents[0].get_model_by_name(`${figure}-${key}`);
      plot.on_event("tap", (event) => show(key, event.x));
    }
  }
  at.addEventListener("input", () => { if (at.value !== "") show(which.value, Number(at.value)); });
  which.addEventListener("change", () => show(which.value, Number(at.value)));
  document.getElementById("step").hidden = false;
  const first = keys[keys.length - 1];
  show(first, data[first].peak_step);
}

/* The decisions: sort by a column, search, show more. */
function decisionsTable() {
  const table = document.getElementById("decisions");
  if (!table) return;
  const rows = read("decisions-data"), body = table.tBodies[0];
  const search = document.getElementById("decisions-search");
  const more = document.getElementById("decisions-more");
  const shown = document.getElementById("decisions-shown");
  const page = Number(table.dataset.rows), heads = [...table.tHead.rows[0].cells];
  const classes = heads.map((head) => head.dataset.cell);
  let column = 2, descending = true, limit = page;
  const order = (a, b) => {
    const x = a[column][1], y = b[column][1];
    const sign = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
    return descending ? -sign : sign;
  };
  function draw() {
    const wanted = search.value.trim().toLowerCase();
    const found = rows.filter((row) => !wanted || row.some((cell) => String(cell[0]).toLowerCase().includes(wanted)));
    found.sort(order);
    body.replaceChildren(...found.slice(0, limit).map((row) => tableRow(row.map((cell) => cell[0]), classes)));
    shown.textContent = `${count(Math.min(limit, found.length))} of ${count(found.length)} shown`;
    more.hidden = found.length <= limit;
    heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : descending ? "descending" : "ascending"));
  }
  heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
    descending = i === column ? !descending : head.dataset.cell === "num";
    column = i;
    draw();
  }));
  search.addEventListener("input", () => { limit = page; draw(); });
  more.addEventListener("click", () => { limit *= 5; draw(); });
  draw();
}

function copyButtons() {
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", () => {
      const code = document.getElementById(button.dataset.copies);
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl-C to copy";
    });
  }
}

decisionsTable();
copyButtons();
drawFigures().then(stepInspector).then(() => { document.documentElement.dataset.ready = "true"; });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const root of Object.values(Bokeh.index)) root.request_paint?.();
});
