"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);

const numbers = new Intl.NumberFormat("en");
const count = (n) => numbers.format(n);

const MOST_BINS = 1500;

function formatBytes(size) {
  if (size < 1024) return `${size} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = -1;
  do { size /= 1024; unit += 1; } while (size >= 1024 * 0.9995 && unit + 1 < units.length);
  let hundredths = Math.round(100 * size);
  if ((100 * size) % 1 === 0.5 && hundredths % 2) hundredths -= 1; /* ties to even, as the text of the page has them */
  return `${(hundredths / 100).toFixed(2)} ${units[unit]}`;
}

function formatDuration(us) {
  if (us < 1e3) return `${us.toFixed(1)} µs`;
  return us < 1e6 ? `${(us / 1e3).toFixed(2)} ms` : `${(us / 1e6).toFixed(2)} s`;
}

/* Figures are drawn once, with the columns of their named sources put in before. */
async function drawFigures(data) {
  const { docs, items } = read("figures-data"), sources = {};
  const walk = (node) => {
    if (Array.isArray(node)) { node.forEach(walk); return; }
    if (node === null || typeof node !== "object") return;
    if (node.name === "ColumnDataSource" && node.attributes.name) sources[node.attributes.name] = node.attributes;
    Object.values(node).forEach(walk);
  };
  walk(docs);
  const fill = (name, columns) => {
    if (sources[name]) sources[name].data = { type: "map", entries: Object.entries(columns) };
  };
  for (const [key, view] of Object.entries(data)) {
    if (!view.live_bytes.length) continue;
    fillRanges(key, view, fill);
    const whole = bins(view.live_bytes, 0, view.live_bytes.length);
    fillMemory(key, view, whole, fill);
    if (view.kind) {
      fillLanes(key, view, fill);
      fillClock(key, view, whole, fill);
    }
  }
  await Bokeh.embed.embed_items(docs, items);
}

const model = (name) => Bokeh.documents[0].get_model_by_name(name);

/* One column of values for each name, to be filled row by row and given to a figure at once. */
function columns(...names) { return Object.fromEntries(names.map((name) => [name, []])); }

/* Live ranges and workspaces as rectangles, a source for each fate. */
function fillRanges(key, view, fill) {
  const names = ["left", "right", "bottom", "top", "color", "outline", "name", "size", "what", "span"];
  const sources = view.fates.map(() => columns(...names));
  const add = (fate, start, end, offset, bytes, category, name, what) => {
    const to = sources[fate];
    to.left.push(start); to.right.push(end);
    to.bottom.push(offset); to.top.push(offset + bytes);
    to.color.push(view.colors[category]);
    to.outline.push(100 * bytes > view.peak_bytes ? 0.6 : 0); /* it would hide a thin rectangle */
    to.name.push(name); to.size.push(formatBytes(bytes)); to.what.push(what);
    to.span.push(`[${count(start)}, ${count(end)})`);
  };
  for (let i = 0; i < view.bytes.length; i++) {
    const category = view.category[i], fate = view.fate[i];
    add(fate, view.start[i], view.end[i], view.offset[i], view.bytes[i], category, view.tensor[i],
      `${view.categories[category]}, ${view.fates[fate]}`);
  }
  const workspace = view.categories.indexOf("workspace");
  for (const [step, bytes, offset] of view.workspace) {
    add(0, step, step + 1, offset, bytes, workspace, `workspace of ${view.operation[step]}`, "workspace");
  }
  view.fates.forEach((fate, i) => fill(`ranges-${key}-${fate}`, sources[i]));
}

/* Every step that takes time, in the lane of its kind. */
function fillLanes(key, view, fill) {
  const unit = view.unit_us;
  const sources = view.kinds.map(() => columns("left", "right", "bottom", "top", "name", "what", "time", "live"));
  view.duration_us.forEach((duration, step) => {
    const kind = view.kind[step], to = sources[kind], lane = view.lanes[kind], now = Number(view.start_us[step]);
    if (duration > 0) {
      to.left.push(now / unit); to.right.push((now + duration) / unit);
      to.bottom.push(lane + 0.1); to.top.push(lane + 0.9);
      to.name.push(view.operation[step]); to.what.push(`${view.op_type[step]}, step ${count(step)}`);
      to.time.push(formatDuration(duration)); to.live.push(formatBytes(view.live_bytes[step]));
    }
  });
  view.kinds.forEach((kind, i) => fill(`lanes-${key}-${kind}`, sources[i]));
}

/* Steps [first, end) cut into bins, each shown as its fullest step: every height that is drawn occurs. */
function bins(live, first, end) {
  const n = Math.min(end - first, MOST_BINS), edges = [], steps = [];
  for (let b = 0; b < n; b++) {
    const left = first + Math.floor(b * (end - first) / n);
    const right = first + Math.floor((b + 1) * (end - first) / n);
    let fullest = left;
    for (let s = left + 1; s < right; s++) if (live[s] > live[fullest]) fullest = s;
    edges.push(left);
    steps.push(fullest);
  }
  edges.push(end);
  return { edges, steps };
}

/* Bytes of each category at every step, worked out once. */
function byCategory(view) {
  if (view.parts) return view.parts;
  const steps = view.live_bytes.length;
  view.parts = view.categories.map((_, c) => Float64Array.from({ length: steps + 1 }, (_, s) => (s ? 0 : view.persistent[c])));
  const add = (part, bytes, start, end) => { part[start] += bytes; part[end] -= bytes; };
  view.bytes.forEach((bytes, i) => add(view.parts[view.category[i]], bytes, view.start[i], view.end[i]));
  const workspace = view.parts[view.categories.indexOf("workspace")];
  for (const [step, bytes] of view.workspace) add(workspace, bytes, step, step + 1);
  for (const part of view.parts) for (let s = 1; s < steps; s++) part[s] += part[s - 1];
  return view.parts;
}

const closed = (column) => { column.push(column[column.length - 1]); return column; };

/* The areas of one memory figure, and what its hover says. */
function fillMemory(key, view, { edges, steps }, fill) {
  const areas = { x: edges, y0: new Array(edges.length).fill(0) };
  byCategory(view).forEach((part, i) => {
    const below = areas[`y${i}`];
    areas[`y${i + 1}`] = closed(steps.map((s, b) => below[b] + part[s]));
  });
  if (view.measured) areas.seen = closed(steps.map((s) => view.measured[s]));
  fill(`areas-${key}`, areas);
  fill(`hover-${key}`, {
    left: edges.slice(0, -1),
    right: edges.slice(1),
    top: steps.map((s) => view.live_bytes[s]),
    step: steps.map(count),
    operation: steps.map((s) => `${shortened(view.operation[s])} (${view.op_type[s]})`),
    live: steps.map((s) => formatBytes(view.live_bytes[s])),
    names: steps.map((s) => largest(view, s)),
  });
}

/* The largest tensors at a step, by name. */
function largest(view, step) {
  view.ranked ??= view.bytes.map((_, i) => i).sort((a, b) => view.bytes[b] - view.bytes[a] || a - b);
  const found = [];
  for (const i of view.ranked) {
    if (view.start[i] > step || step >= view.end[i]) continue;
    found.push(`${shortened(view.tensor[i])} ${formatBytes(view.bytes[i])}`);
    if (found.length === 4) break;
  }
  return found.join(", ") || "–";
}

function shortened(text, most = 60) {
  return text.length <= most ? text : `${text.slice(0, most / 2 - 1)}…${text.slice(-most / 2)}`;
}

/* Live bytes as time passes. */
function fillClock(key, view, { edges, steps }, fill) {
  if (!view.ends) {
    let now = 0, last = 0; /* a copy in may start before what stands before it: bytes are those of the schedule */
    const starts = view.start_us.map((us, step) => {
      last = Math.max(last, Number(us) + Number(view.duration_us[step]));
      return (now = Math.max(now, Number(us)));
    });
    view.ends = [...starts, last].map((us) => us / view.unit_us);
  }
  const live = closed(steps.map((s) => view.live_bytes[s]));
  fill(`elapsed-${key}`, { x: edges.map((step) => view.ends[step]), live });
}

/* Where the reader zooms in, the bins are cut anew: down to single steps. */
function zoomAnew(data) {
  const set = (name, columns) => { const source = model(name); if (source) source.data = columns; };
  const anew = (axis, act) => {
    if (!axis) return;
    let waits = 0;
    const later = () => { clearTimeout(waits); waits = setTimeout(() => act(axis.start, axis.end), 60); };
    axis.properties.start.change.connect(later);
    axis.properties.end.change.connect(later);
  };
  for (const [key, view] of Object.entries(data)) {
    const steps = view.live_bytes.length;
    if (steps <= MOST_BINS) continue;
    const window = (first, end) => {
      const margin = end - first; /* so that a little panning shows no edge */
      return bins(view.live_bytes, Math.max(0, Math.floor(first - margin)), Math.min(steps, Math.ceil(end + margin)));
    };
    anew(model(`memory-${key}`)?.x_range, (start, end) => {
      if (start < steps) fillMemory(key, view, window(start, Math.min(end, steps)), set);
    });
    const at = (time) => { /* the step that runs then */
      let low = 0, high = steps;
      while (low < high) { const mid = (low + high) >> 1; if (view.ends[mid + 1] < time) low = mid + 1; else high = mid; }
      return low;
    };
    anew(model(`clock-${key}`)?.x_range, (start, end) => fillClock(key, view, window(at(start), Math.min(at(end) + 1, steps)), set));
  }
}
