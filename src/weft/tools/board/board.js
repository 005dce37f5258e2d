"use strict";
// Everything a run says is put in as text, never as markup.
const COLOURS = ["#3b7dd8", "#d9612b", "#2f9e44", "#9c5fc1", "#c92a3a", "#8a6d3b", "#0c8599", "#e0a100"];
const SIZE = { width: 340, height: 190, left: 46, right: 8, top: 8, bottom: 20 };
const hidden = new Set();
const stepOf = {};
let runs = [];

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made[key] = value;
  made.append(...inside.filter((each) => each !== null && each !== undefined));
  return made;
}

function drawing(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const colourOf = (run) => COLOURS[runs.indexOf(run) % COLOURS.length];
const shown = () => runs.filter((run) => !hidden.has(run.name));

function written(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4));
}

function smoothed(points, weight) {
  let last = null;
  return points.map(([x, y]) => {
    if (y === null) return [x, null];
    last = last === null ? y : weight * last + (1 - weight) * y;
    return [x, last];
  });
}

function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12) + 1e-12; i++) found.push(i * step);
  return found;
}

function limits(values) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (low === high) {
    const spare = Math.abs(low) / 2 || 0.5;
    low -= spare;
    high += spare;
  }
  return [low, high];
}

function chart(title, lines) {
  const weight = Number(byId("smooth").value);
  const toScale = byId("log").checked ? (y) => (y !== null && y > 0 ? Math.log10(y) : null) : (y) => y;
  const curves = lines.map(([run, points]) =>
    [run, smoothed(points, weight).map(([x, y]) => [x, toScale(y), y])]);
  const all = curves.flatMap(([, points]) => points.filter(([, y]) => y !== null));
  const figure = element("figure", {}, element("figcaption", {}, title));
  if (!all.length) { figure.append("no number that can be drawn"); return figure; }
  const [left, right] = limits(all.map(([x]) => x));
  const [low, high] = limits(all.map(([, y]) => y));
  const { width, height } = SIZE;
  const across = (x) => SIZE.left + (x - left) / (right - left) * (width - SIZE.left - SIZE.right);
  const up = (y) => height - SIZE.bottom - (y - low) / (high - low) * (height - SIZE.top - SIZE.bottom);
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  for (const tick of ticks(low, high, 4)) {
    svg.append(drawing("line", { x1: SIZE.left, x2: width - SIZE.right, y1: up(tick), y2: up(tick), stroke: "var(--line)" }));
    const text = drawing("text", { x: SIZE.left - 4, y: up(tick) + 3, "text-anchor": "end" });
    text.textContent = written(byId("log").checked ? 10 ** tick : tick);
    svg.append(text);
  }
  for (const tick of ticks(left, right, 4)) {
    const text = drawing("text", { x: across(tick), y: height - 5, "text-anchor": "middle" });
    text.textContent = written(tick);
    svg.append(text);
  }
  for (const [run, points] of curves) {
    let path = "";
    let pen = "M";
    for (const [x, y] of points) {
      if (y === null) { pen = "M"; continue; }
      path += `${pen}${across(x).toFixed(1)},${up(y).toFixed(1)}`;
      pen = "L";
    }
    svg.append(drawing("path", { d: path, fill: "none", stroke: colourOf(run), "stroke-width": 1.5 }));
    if (points.length === 1 && points[0][1] !== null) {
      svg.append(drawing("circle", { cx: across(points[0][0]), cy: up(points[0][1]), r: 2.5, fill: colourOf(run) }));
    }
  }
  svg.addEventListener("mousemove", (event) => tell(event, svg, curves, left, right));
  svg.addEventListener("mouseleave", () => { byId("tip").hidden = true; });
  figure.append(svg);
  return figure;
}

function tell(event, svg, curves, left, right) {
  const box = svg.getBoundingClientRect();
  const place = (event.clientX - box.left) / box.width * SIZE.width;
  const x = left + (place - SIZE.left) / (SIZE.width - SIZE.left - SIZE.right) * (right - left);
  const tip = byId("tip");
  const rows = curves.map(([run, points]) => {
    const nearest = points.reduce((best, each) => Math.abs(each[0] - x) < Math.abs(best[0] - x) ? each : best);
    const number = nearest[2] === null ? "not finite" : written(nearest[2]);
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = colourOf(run);
    return element("div", {}, swatch, ` ${run.name}: ${number} at ${written(nearest[0])}`);
  });
  tip.replaceChildren(...rows);
  tip.hidden = false;
  tip.style.left = `${Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY + 12}px`;
}

function drawCharts(place, key) {
  const names = [...new Set(shown().flatMap((run) => Object.keys(run[key] || {})))].sort();
  byId(place).replaceChildren(...names.map((name) =>
    chart(name, shown().filter((run) => run[key][name]).map((run) => [run, run[key][name]]))));
}

function drawRuns() {
  byId("runs").replaceChildren(...runs.map((run) => {
    const box = element("input", { type: "checkbox", checked: !hidden.has(run.name) });
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(run.name); else hidden.add(run.name);
      draw();
    });
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = colourOf(run);
    const when = run.started ? run.started.replace("T", " ").replace("+00:00", "") : "";
    return element("label", { className: "run" }, box, swatch,
      element("span", {}, run.name, element("br"), element("small", {}, `${run.status || ""} ${when}`)));
  }));
  if (!runs.length) byId("runs").textContent = "No runs here yet: give a trainer callbacks=[wf.train.RunLog(\"runs/first\")].";
}

function drawSettings() {
  const rows = { optimizer: (run) => run.optimizer, parameters: (run) => run.parameters, command: (run) => run.command, machine: (run) => run.machine };
  const names = [...new Set(shown().flatMap((run) => Object.keys(run.settings || {})))].sort();
  for (const name of names) rows[name] = (run) => (run.settings || {})[name];
  const head = element("tr", {}, element("th", {}, ""), ...shown().map((run) => element("th", {}, run.name)));
  const body = Object.entries(rows).map(([name, read]) => {
    const values = shown().map((run) => { const v = read(run); return v === undefined || v === null ? "" : String(v); });
    return element("tr", { className: new Set(values).size > 1 ? "differs" : "" },
      element("th", {}, name), ...values.map((value) => element("td", {}, value)));
  });
  byId("settings").replaceChildren(element("table", {}, head, ...body));
}

function drawSamples() {
  const groups = shown().flatMap((run) => [...new Set(run.samples.map((s) => s.sample))].map((name) => [run, name]));
  byId("samples").replaceChildren(...groups.map(([run, name]) => {
    const all = run.samples.filter((sample) => sample.sample === name);
    const key = `${run.name}\n${name}`;
    const at = Math.min(stepOf[key] ?? all.length - 1, all.length - 1);
    const sample = all[at];
    const slider = element("input", { type: "range", min: 0, max: all.length - 1, value: at });
    slider.hidden = all.length < 2;  // one sample has no earlier ones
    slider.addEventListener("input", () => { stepOf[key] = Number(slider.value); drawSamples(); });
    const address = (file) => file && file.startsWith("data:") ? file : `sample/${encodeURIComponent(run.name).replaceAll("%2F", "/")}/${encodeURIComponent(file)}`;
    let inside = element("pre", {}, sample.text || "");
    if (sample.image) inside = element("img", { src: address(sample.image), alt: name });
    if (sample.audio) inside = element("audio", { src: address(sample.audio), controls: true });
    return element("div", { className: "sample" }, element("div", {}, `${run.name}: ${name}, step ${sample.step}`), inside, slider);
  }));
  if (!groups.length) byId("samples").textContent = "None: log.text(name, text), log.image(name, pixels) and log.audio(name, samples) add some.";
}

function draw() {
  drawRuns();
  drawCharts("curves", "curves");
  drawSettings();
  drawSamples();
  drawCharts("machine", "use");
  byId("messages").textContent = shown().flatMap((run) => run.messages.map((m) => `${m.time || ""}  ${run.name}, step ${m.step}: ${m.message}`)).sort().join("\n");
  byId("models").replaceChildren(...shown().map((run) => element("details", {}, element("summary", {}, run.name), element("pre", {}, run.model || ""))));
}

let before = "";
async function ask() {
  try {
    const text = await (await fetch("runs")).text();
    byId("state").textContent = "";
    if (text !== before) { before = text; runs = JSON.parse(text); draw(); }
  } catch (error) {
    byId("state").textContent = "the server does not answer";
  }
  setTimeout(ask, 2000);
}

for (const id of ["smooth", "log"]) byId(id).addEventListener("input", draw);
const given = JSON.parse(byId("data").textContent);
if (given === null) ask(); else { runs = given; draw(); }
