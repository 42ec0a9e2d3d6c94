"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);

function drawFigures() {
  const { docs, items } = read("figures-data");
  Bokeh.embed.embed_items(docs, items);
}

/* The decisions: sort by a column, search, show more. Cells are set as text, never as markup. */
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
      const line = document.createElement("tr");
      row.forEach((cell, i) => {
        const item = line.insertCell();
        item.className = classes[i];
        item.textContent = cell[0];
      });
      return line;
    }));
    shown.textContent = `${Math.min(limit, found.length).toLocaleString("en")} of ${found.length.toLocaleString("en")} shown`;
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

drawFigures();
decisionsTable();
copyButtons();
document.documentElement.dataset.ready = "true";
