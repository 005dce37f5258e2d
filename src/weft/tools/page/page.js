// The page: tabs, moving and zooming, search, what is selected, hot kernels and memory.
const element = id => document.getElementById(id);
const drawing = element("drawing"), sceneGroup = element("scene"), tipBox = element("tip");
let touched = false; // whether the user has moved the drawing: then it stays where it is
const state = { view: 0, scenes: [], x: 0, y: 0, scale: 1, colour: "phase", selected: null, matches: [], match: -1 };
const scene = () => state.scenes[state.view] ??= new Scene(DATA.views[state.view]);

// --- colours -----------------------------------------------------------------------------------
const hottest = () => Math.max(1e-12, ...scene().groups.filter(g => g.parent >= 0 && !g.inner.length).map(g => g.seconds));
const COLOURS = {
  phase: (_, phase) => [`var(--${phase}-fill)`, `var(--${phase})`],
  kind: (item, phase) => item.title === undefined ? ["var(--node)", `var(--${phase})`]
    : [`var(--${item.kind}-fill, var(--node))`, `var(--${item.kind}, var(--edge))`],
  time: (item, phase) => {
    const seconds = item.seconds ?? (item.kernel >= 0 ? DATA.views[state.view].kernels[item.kernel].seconds ?? 0 : 0);
    const share = Math.min(1, Math.sqrt(seconds / hottest()));
    return [`color-mix(in srgb, #e03131 ${Math.round(share * 80)}%, var(--node))`, share > .05 ? "#c92a2a" : "var(--edge)"];
  },
};
const LEGENDS = {
  phase: () => [...new Set(scene().groups.filter(g => g.parent < 0).map(g => g.phase))].map(p => [`var(--${p}-fill)`, `var(--${p})`, p]),
  kind: () => [["elementwise", "element by element"], ["reduction", "reduction"], ["product", "product"], ["movement", "movement and others"]]
    .map(([k, words]) => [`var(--${k}-fill)`, `var(--${k})`, words]),
  time: () => [["var(--node)", "var(--edge)", "no time"], ["color-mix(in srgb, #e03131 40%, var(--node))", "#c92a2a", "some"],
    ["color-mix(in srgb, #e03131 80%, var(--node))", "#c92a2a", "the hottest"]],
};

// --- drawing and moving ------------------------------------------------------------------------
function draw() {
  const current = scene();
  current.place();
  sceneGroup.innerHTML = current.svg(COLOURS[state.colour]);
  element("legend").innerHTML = LEGENDS[state.colour]().map(([fill, stroke, words]) =>
    `<span><i style="background:${fill};border-color:${stroke}"></i>${words}</span>`).join("")
    + (current.groups.filter(g => g.parent < 0).length > 1 ? "<span>faint lines: values kept for another phase</span>" : "");
  search(0);
  mark();
}
function move(x, y, scale) {
  [state.x, state.y, state.scale] = [x, y, scale];
  sceneGroup.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
  drawing.classList.toggle("far", scale < 0.42);
  drawing.classList.toggle("distant", scale < 0.16);
}
function zoom(factor, x, y) {
  const scale = Math.min(4, Math.max(0.01, state.scale * factor)), ratio = scale / state.scale;
  move(x - (x - state.x) * ratio, y - (y - state.y) * ratio, scale);
}
function fit(area, most = 1.15) {
  const box = drawing.getBoundingClientRect(), { x, y, w, h } = area ?? { x: 0, y: 0, w: scene().width, h: scene().height };
  const scale = Math.min(most, (box.width - 40) / (w || 1), (box.height - 40) / (h || 1));
  move(box.width / 2 - (x + w / 2) * scale, box.height / 2 - (y + h / 2) * scale, scale);
}
function start() {
  // All of it where it can be read; else the beginning, at a size that can.
  fit();
  if (state.scale < 0.36) {
    const box = drawing.getBoundingClientRect(), scale = Math.min(0.7, Math.max(0.36, (box.width - 40) / scene().width));
    move(20, 20, scale);
  }
}
function centre(key) {
  const at = scene().boxes.get(key), box = drawing.getBoundingClientRect(), scale = Math.max(state.scale, 0.75);
  touched = true;
  if (at) move(box.width / 2 - (at.x + at.w / 2) * scale, box.height / 2 - (at.y + Math.min(at.h, 200) / 2) * scale, scale);
}
function redrawAround(key, change) {
  // Change what is open, and keep what was clicked where it is on the screen.
  const before = scene().boxes.get(key);
  change();
  draw();
  const after = scene().boxes.get(key);
  if (before && after) move(state.x + (before.x - after.x) * state.scale, state.y + (before.y - after.y) * state.scale, state.scale);
}
let from = null, dragged = false;
drawing.addEventListener("wheel", event => {
  event.preventDefault();
  const box = drawing.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * 0.0016), event.clientX - box.left, event.clientY - box.top);
}, { passive: false });
drawing.addEventListener("pointerdown", event => { from = [event.clientX - state.x, event.clientY - state.y]; dragged = false; });
addEventListener("pointermove", event => {
  if (!from) return;
  const x = event.clientX - from[0], y = event.clientY - from[1];
  if (!dragged && Math.hypot(x - state.x, y - state.y) < 4) return;
  dragged = true;
  drawing.classList.add("moving");
  move(x, y, state.scale);
});
addEventListener("pointerup", () => { from = null; drawing.classList.remove("moving"); });
drawing.addEventListener("click", event => {
  if (dragged) return;
  const found = event.target.closest(".node, .group");
  if (!found) return select(null);
  const key = +found.dataset.key, current = scene();
  if (key >= current.count) {
    const group = current.groups[key - current.count];
    if (found.classList.contains("open") && !event.target.closest("text")) return select(null);
    if (group.parent >= 0) redrawAround(key, () => current.toggle(group.id));
  }
  select(key);
});
drawing.addEventListener("mouseover", event => {
  const found = event.target.closest(".node, .group:not(.open)");
  found ? tip(describe(+found.dataset.key), event) : hideTip();
});
drawing.addEventListener("mouseleave", hideTip);

// --- what is said of something -----------------------------------------------------------------
function describe(key) {
  const current = scene();
  if (key >= current.count) {
    const group = current.groups[key - current.count], kernel = DATA.views[state.view].kernels.find(k => k.group === group.id);
    const path = current.chain(group.id).slice(1).map(i => current.groups[i].name).join(" / ");
    return { text: kernel ? kernel.text : `${path || group.name}\n${current.subtitle(group)}, ${group.phase}`,
      where: kernel?.seconds ? `measured ${duration(kernel.seconds)}` : "" };
  }
  const node = current.view.nodes[key], [where, source] = DATA.places[node.place] ?? ["", ""];
  const path = current.chain(node.group).slice(1).map(i => current.groups[i].name).join(" / ");
  const kernel = current.view.kernels[node.kernel];
  return { text: node.text, where: [path && `in ${path}`, where, source].filter(Boolean).join("\n"), more: kernel ? kernel.text : "" };
}
function tip({ text, where }, event) {
  tipBox.innerHTML = `<pre>${escaped(text.replace(/(.{1,96})(, |$)/g, "$1$2\n").trimEnd())}</pre>`
    + (where ? `<pre class="where">${escaped(where)}</pre>` : "");
  tipBox.style.display = "block";
  const { width, height } = tipBox.getBoundingClientRect();
  tipBox.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8)) + "px";
  tipBox.style.top = (event.clientY + 18 + height < innerHeight ? event.clientY + 18 : Math.max(4, event.clientY - height - 12)) + "px";
}
function hideTip() { tipBox.style.display = "none"; }
function select(key) {
  state.selected = key;
  const said = key === null ? null : describe(key);
  element("selected").textContent = said ? [said.text, said.where, said.more && "\n" + said.more].filter(Boolean).join("\n")
    : "nothing: click an operation, a module or a kernel";
  mark();
}
function mark() {
  for (const hot of sceneGroup.querySelectorAll(".hot")) hot.classList.remove("hot");
  if (state.selected === null) return;
  sceneGroup.querySelector(`[data-key="${state.selected}"]`)?.classList.add("hot");
  for (const edge of scene().edges.values())
    if (edge.from === state.selected || edge.to === state.selected)
      sceneGroup.querySelector(`[data-edge="${edge.number}"]`)?.classList.add("hot");
}

// --- search ------------------------------------------------------------------------------------
function search(step) {
  const words = element("search").value.toLowerCase().split(/\s+/).filter(Boolean), current = scene();
  drawing.classList.toggle("searching", words.length > 0);
  for (const marked of sceneGroup.querySelectorAll(".match")) marked.classList.remove("match");
  state.matches = [];
  if (words.length) current.view.nodes.forEach((node, n) => {
    node.haystack ??= [node.title, node.text, ...(DATA.places[node.place] ?? []),
      ...current.chain(node.group).map(i => current.groups[i].name)].join(" ").toLowerCase();
    if (words.every(word => node.haystack.includes(word))) state.matches.push(n);
  });
  const count = state.matches.length;
  state.match = count && step ? (state.match + step + count) % count : -1;
  if (state.match >= 0) {
    const node = state.matches[state.match];
    if (current.shown(node) !== node) { current.reveal(node); current.place(); sceneGroup.innerHTML = current.svg(COLOURS[state.colour]); }
    centre(node);
    select(node);
  }
  const keys = new Set(state.matches.map(n => current.shown(n)));
  for (const key of keys) sceneGroup.querySelector(`[data-key="${key}"]`)?.classList.add("match");
  element("found").textContent = words.length ? (state.match >= 0 ? `${state.match + 1} of ${count}` : `${count} found`) : "";
}

// --- kernels and memory ------------------------------------------------------------------------
const kernelView = () => DATA.views.findIndex(view => view.kernels.length);
function goToKernel(number) {
  const view = kernelView();
  if (view !== state.view) openView(view);
  const current = scene(), kernel = current.view.kernels[number];
  if (kernel.group < 0) return;
  current.chain(kernel.group).slice(0, -1).forEach(id => current.open.add(id));
  draw();
  centre(current.groups[kernel.group].key);
  select(current.groups[kernel.group].key);
}
function listKernels() {
  const view = DATA.views[kernelView()], measured = view?.kernels.some(k => k.seconds);
  element("hothead").style.display = view ? "" : "none";
  element("hothead").textContent = measured ? "hot kernels, by measured time" : "kernels, by bytes moved";
  if (!view) return;
  const weight = k => measured ? k.seconds ?? 0 : k.bytes, total = view.kernels.reduce((sum, k) => sum + weight(k), 0) || 1;
  const order = view.kernels.map((_, i) => i).sort((a, b) => weight(view.kernels[b]) - weight(view.kernels[a])).slice(0, 24);
  const most = weight(view.kernels[order[0]]) || 1;
  element("hot").replaceChildren(...order.map(i => {
    const kernel = view.kernels[i], row = document.createElement("button"), share = weight(kernel) / total;
    row.className = "row";
    row.innerHTML = `<b>${escaped(kernel.name)}</b><span>${measured ? duration(weight(kernel)) : bytes(weight(kernel))}  ${(share * 100).toFixed(1)}%</span>
      <span>${escaped(kernel.fused)}</span><span>${escaped(kernel.module)}</span>
      <i style="width:${(weight(kernel) / most * 100).toFixed(1)}%;background:var(--${kernel.phase})"></i>`;
    row.onclick = () => goToKernel(i);
    return row;
  }));
}
function drawMemory() {
  const memory = DATA.memory;
  element("largesthead").style.display = memory?.largest.length ? "" : "none";
  if (!memory || !memory.timeline.length) return;
  element("memory").style.display = "block";
  const kernels = DATA.views[kernelView()].kernels, live = memory.timeline, most = Math.max(1, ...live), width = live.length;
  const head = `<b>memory over time</b>  peak ${bytes(memory.peak)}: inputs ${bytes(memory.inputs)}, outputs ${bytes(memory.outputs)}, values in between up to ${bytes(most)}`;
  const chart = element("chart");
  chart.setAttribute("viewBox", `0 0 ${width} 100`);
  chart.innerHTML = live.map((count, i) => {
    const height = 96 * count / most;
    return `<rect x="${i}" y="${100 - height}" width="1.03" height="${height}" style="fill:var(--${kernels[i]?.phase ?? "forward"});opacity:.6"/>`;
  }).join("") + `<line class="cursor" y1="0" y2="100" x1="-1" x2="-1"/>`;
  const busiest = live.indexOf(Math.max(...live));
  element("memoryhead").innerHTML = head;
  const at = event => Math.min(width - 1, Math.max(0, Math.floor((event.clientX - chart.getBoundingClientRect().left) / chart.clientWidth * width)));
  chart.onmousemove = event => {
    const i = at(event), line = chart.querySelector(".cursor");
    line.setAttribute("x1", i + .5); line.setAttribute("x2", i + .5);
    element("memoryhead").innerHTML = `<b>${bytes(live[i])}</b> live at call ${i + 1} of ${width}: ${escaped(memory.calls[i])}`
      + (kernels[i] ? ` · ${escaped(kernels[i].fused)}${kernels[i].module ? " in " + escaped(kernels[i].module) : ""}` : "") + (i === busiest ? "  (the peak)" : "");
  };
  chart.onmouseleave = () => { element("memoryhead").innerHTML = head; chart.querySelector(".cursor").setAttribute("x1", -1); chart.querySelector(".cursor").setAttribute("x2", -1); };
  chart.onclick = event => goToKernel(at(event));
  element("largest").innerHTML = memory.largest.map(value => `<div class="row"><b>${escaped(value.name)}: ${escaped(value.type)}</b>
    <span>${bytes(value.bytes)}</span><span>${escaped(value.where)}</span></div>`).join("");
}

// --- the whole ---------------------------------------------------------------------------------
function openView(index) {
  state.view = index;
  [...element("tabs").children].forEach((tab, i) => tab.setAttribute("aria-pressed", i === index));
  element("notes").textContent = DATA.views[index].notes;
  if (state.colour === "time" && !DATA.views[index].kernels.some(k => k.seconds)) setColour("phase", false);
  element("colours").querySelector("[data-colour=time]").style.display = DATA.views[index].kernels.some(k => k.seconds) ? "" : "none";
  state.selected = null;
  draw();
  select(null);
  start();
}
function setColour(name, redraw = true) {
  state.colour = name;
  for (const button of element("colours").querySelectorAll("button")) button.setAttribute("aria-pressed", button.dataset.colour === name);
  if (redraw) draw();
}
for (const kind of ["wheel", "pointerdown"]) drawing.addEventListener(kind, () => { touched = true; }, { passive: true });
new ResizeObserver(() => { if (!touched && scene().boxes) start(); }).observe(drawing);
function changed(change) { change(); draw(); start(); }
DATA.views.forEach((view, index) => {
  const tab = document.createElement("button");
  tab.textContent = view.title;
  tab.onclick = () => openView(index);
  element("tabs").append(tab);
});
element("colours").innerHTML = "<span>colour</span>" + Object.keys(COLOURS).map(name =>
  `<button data-colour="${name}" aria-pressed="${name === "phase"}">${name}</button>`).join("");
for (const button of element("colours").querySelectorAll("button")) button.onclick = () => setColour(button.dataset.colour);
element("fit").onclick = () => fit();
element("all").onclick = () => changed(() => scene().openAll());
element("more").onclick = () => changed(() => scene().step(1));
element("less").onclick = () => changed(() => scene().step(-1));
element("search").oninput = () => search(0);
element("search").onkeydown = event => {
  if (event.key === "Enter") search(event.shiftKey ? -1 : 1);
  if (event.key === "Escape") { event.target.value = ""; search(0); event.target.blur(); }
};
addEventListener("keydown", event => {
  if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey) return;
  const act = { f: () => fit(), a: element("all").onclick, "+": element("more").onclick, "=": element("more").onclick,
    "-": element("less").onclick, Escape: () => select(null) }[event.key];
  if (act) act();
  if (event.key === "/") { event.preventDefault(); element("search").focus(); }
});
// The address may say what to show first: #1,all,time is the second view, all open, by time.
const asked = decodeURIComponent(location.hash.slice(1)).split(",").filter(Boolean);
const began = performance.now();
listKernels();
drawMemory();
openView(asked.map(Number).find(i => i in DATA.views) ?? 0);
if (asked.includes("all")) changed(() => scene().openAll());
if (asked.includes("more")) changed(() => scene().step(1));
for (const name of asked.filter(name => name in COLOURS)) setColour(name);
for (const words of asked.filter(name => name.startsWith("find="))) { element("search").value = words.slice(5); search(1); }
document.body.dataset.ready = `${scene().boxes.size} boxes, ${scene().edges.size} edges, ${Math.round(performance.now() - began)} ms`;
