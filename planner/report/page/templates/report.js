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

/* A tensor chosen in a table stands out among the live ranges; choosing it again lets go of it. */
function highlighter(data) {
  let chosen = null;
  return (name) => {
    chosen = name === chosen ? null : name;
    for (const key of Object.keys(data)) {
      for (const fate of data[key].fates) {
        const source = model(`ranges-${key}-${fate}`);
        if (!source) continue;
        const found = [];
        source.data.name.forEach((other, i) => { if (other === chosen) found.push(i); });
        /* where nothing is chosen in a figure, a row past the end keeps the others pale */
        source.selected.indices = chosen === null ? [] : found.length ? found : [source.data.name.length];
      }
    }
    for (const row of document.querySelectorAll("tr[data-tensor]")) {
      row.classList.toggle("chosen", row.dataset.tensor === chosen);
    }
  };
}

/* What is on the device at one step of one model, largest first. */
function stepInspector(data) {
  const shown = 25;
  const at = document.getElementById("step-at"), which = document.getElementById("step-view");
  const body = document.getElementById("step-residents").tBodies[0];
  function show(key, step) {
    const view = data[key], end = view.live_bytes.length - 1;
    step = Math.min(Math.max(Math.floor(step) || 0, 0), end);
    which.value = key;
    at.max = end;
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
    here.slice(0, shown).forEach((i, row) => {
      body.rows[row + rows.length - Math.min(here.length, shown)].dataset.tensor = view.tensor[i];
    });
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
      const plot = model(`${figure}-${key}`);
      plot.on_event("tap", (event) => show(key, event.x));
    }
  }
  const last = keys[keys.length - 1];
  for (const button of document.querySelectorAll("button[data-step]")) {
    button.addEventListener("click", () => {
      show(last, Number(button.dataset.step));
      document.getElementById("step").scrollIntoView({ block: "center" });
    });
  }
  at.addEventListener("input", () => { if (at.value !== "") show(which.value, Number(at.value)); });
  which.addEventListener("change", () => show(which.value, Number(at.value)));
  document.getElementById("step").hidden = false;
  show(last, data[last].peak_step);
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
    body.replaceChildren(...found.slice(0, limit).map((row) => {
      const line = tableRow(row.map((cell) => cell[0]), classes);
      line.dataset.tensor = row[1][0];
      return line;
    }));
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

/* A click on a row of a tensor, but not one that ends a selection of text. */
function chooseRows(highlight) {
  document.addEventListener("click", (event) => {
    const row = event.target.closest?.("tr[data-tensor]");
    if (row && !String(getSelection())) highlight(row.dataset.tensor);
  });
}

async function main() {
  decisionsTable();
  copyButtons();
  const data = read("steps-data");
  await drawFigures(data);
  zoomAnew(data);
  stepInspector(data);
  chooseRows(highlighter(data));
  document.documentElement.dataset.ready = "true";
}

main();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const root of Object.values(Bokeh.index)) root.request_paint?.();
});
