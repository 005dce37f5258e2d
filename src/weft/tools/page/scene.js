// What is seen of a view: which groups are open, where everything stands, and its SVG.
const CHARACTER = 7.25, SMALL = 6.1, MARGIN = 14, TITLE = 24, PORT = 8, GAP = 70;
const escaped = text => String(text).replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const shortened = (text, most) => text.length <= most ? text : text.slice(0, most - 1) + "…";

class Scene {
  constructor(view) {
    this.view = view;
    this.count = view.nodes.length;
    this.groups = view.groups.map((g, id) => ({ ...g, id, key: this.count + id, nodes: [], inner: [], size: 0, seconds: 0 }));
    this.groups.forEach(g => { if (g.parent >= 0) this.groups[g.parent].inner.push(g.id); });
    view.nodes.forEach((node, n) => {
      this.groups[node.group].nodes.push(n);
      for (const id of this.chain(node.group)) this.groups[id].size += !["input", "output"].includes(node.kind);
    });
    view.kernels.forEach(kernel => {
      if (kernel.group >= 0 && kernel.seconds)
        for (const id of this.chain(kernel.group)) this.groups[id].seconds += kernel.seconds;
    });
    this.open = new Set();
    this.openFirst();
  }
  chain(group) {
    const found = [];
    for (let id = group; id >= 0; id = this.groups[id].parent) found.unshift(id);
    return found;
  }
  path(id) { return this.chain(id).slice(1).map(i => this.groups[i].name).join("/"); }
  twins(id) {
    // The same module in the other phases: they are opened and closed together.
    if (this.groups[id].kind !== "module") return [id];
    this.paths ??= Map.groupBy ? Map.groupBy(this.groups, g => this.path(g.id)) : groupBy(this.groups, g => this.path(g.id));
    return this.paths.get(this.path(id)).map(g => g.id);
  }
  openFirst(most = 15) {
    // Level by level, as long as it can be taken in at a glance.
    let level = this.groups.filter(g => g.parent < 0).map(g => g.id);
    level.forEach(id => this.open.add(id));
    for (;;) {
      level = level.flatMap(id => this.groups[id].inner);
      const wanted = level.filter(id => this.groups[id].kind === "module");
      if (!wanted.length) return;
      wanted.forEach(id => this.open.add(id));
      if (this.visible().length > most * this.groups.filter(g => g.parent < 0).length) {
        wanted.forEach(id => this.open.delete(id));
        return;
      }
    }
  }
  visible() {
    const found = [];
    const walk = id => {
      if (!this.open.has(id)) { found.push(id + this.count); return; }
      found.push(...this.groups[id].nodes);
      this.groups[id].inner.forEach(walk);
    };
    this.groups.filter(g => g.parent < 0).forEach(g => walk(g.id));
    return found;
  }
  step(change) {
    // One level more, or less.
    const depth = id => this.chain(id).length;
    const closed = this.visible().filter(k => k >= this.count).map(k => k - this.count);
    if (change > 0) closed.forEach(id => this.open.add(id));
    else {
      const deepest = Math.max(2, ...[...this.open].map(depth));
      [...this.open].filter(id => depth(id) >= deepest && this.groups[id].parent >= 0).forEach(id => this.open.delete(id));
    }
  }
  openAll() { this.groups.forEach(g => this.open.add(g.id)); }
  reveal(node) { this.chain(this.view.nodes[node].group).forEach(id => this.open.add(id)); }
  toggle(id) {
    const wasOpen = this.open.has(id);
    for (const twin of this.twins(id)) wasOpen ? this.open.delete(twin) : this.open.add(twin);
  }
  shown(node) {
    // What stands for a node: itself, or the outermost closed group that it is in.
    for (const id of this.chain(this.view.nodes[node].group)) if (!this.open.has(id)) return this.count + id;
    return node;
  }
  home(key) { return key < this.count ? this.view.nodes[key].group : this.groups[key - this.count].parent; }
  phase(key) { return key < this.count ? this.view.nodes[key].phase : this.groups[key - this.count].phase; }

  // --- where everything stands ---------------------------------------------------------------
  place() {
    this.boxes = new Map(); this.labels = new Map(); this.edges = new Map(); this.inside = new Map();
    for (const [a, b, value] of this.view.edges) this.addEdge(a, b, value);
    const columns = this.groups.filter(g => g.parent < 0);
    let x = 0, tallest = 0;
    const frames = columns.map(g => {
      const frame = this.frame(g.id);
      tallest = Math.max(tallest, frame.size[1]);
      return frame;
    });
    columns.forEach((g, i) => {
      // Forward and backward end at the same height: what was last is first on the way back.
      const y = g.phase === "update" ? 0 : tallest - frames[i].size[1];
      this.put(g.key, frames[i], x, y);
      x += frames[i].size[0] + GAP;
    });
    this.width = Math.max(0, x - GAP);
    this.height = tallest;
  }
  addEdge(a, b, value) {
    const from = this.shown(a), to = this.shown(b);
    if (from === to) return;
    const name = from + "," + to, across = this.phase(from) !== this.phase(to);
    const kind = this.view.nodes[a].values[value]?.[1] ?? "";
    const seen = this.labels.get(from) ?? new Set();
    if (!across || seen.size === 0) this.labels.set(from, seen.add(kind));
    const edge = this.edges.get(name);
    if (edge) { edge.ends.push([a, b]); return; }
    this.edges.set(name, { from, to, across, ends: [[a, b]], legs: across ? [] : this.legs(from, to) });
  }
  legs(from, to) {
    // The parts of an edge's way: out of the groups it starts in, across, and into those it ends in.
    const up = this.chain(this.home(from)), down = this.chain(this.home(to));
    let shared = 0;
    while (up[shared + 1] !== undefined && up[shared + 1] === down[shared + 1]) shared++;
    const inner = (chain, level, key) => chain[level + 1] !== undefined ? this.groups[chain[level + 1]].key : key;
    const legs = [];
    for (let level = up.length - 1; level > shared; level--)
      legs.push([up[level], inner(up, level, from), "o" + from]);
    legs.push([up[shared], inner(up, shared, from), inner(down, shared, to)]);
    for (let level = shared + 1; level < down.length; level++)
      legs.push([down[level], "i" + from, inner(down, level, to)]);
    for (const [group, a, b] of legs) {
      if (!this.inside.has(group)) this.inside.set(group, new Map());
      this.inside.get(group).set(a + "," + b, [a, b]);
    }
    return legs;
  }
  frame(id) {
    // An open group, laid out by itself, with ports for what comes in and goes out.
    const group = this.groups[id], pairs = [...(this.inside.get(id)?.values() ?? [])];
    const ports = letter => [...new Set(pairs.flat().filter(k => typeof k === "string" && k[0] === letter))];
    const entering = ports("i"), leaving = ports("o");
    const keys = [...group.nodes, ...group.inner.map(i => this.groups[i].key)].sort((a, b) => this.first(a) - this.first(b));
    const all = [...entering, ...keys, ...leaving], index = new Map(all.map((k, i) => [k, i]));
    const frames = new Map(), sizes = all.map(key => {
      if (typeof key === "string") return [PORT, 0];
      if (key >= this.count && this.open.has(key - this.count)) frames.set(key, this.frame(key - this.count));
      return frames.get(key)?.size ?? this.size(key);
    });
    const widest = group.phase === "update" ? 560 : 1500;
    const layout = layered(sizes, pairs.map(([a, b]) => [index.get(a), index.get(b)]),
      { top: entering.length, bottom: leaving.length, widest });
    const up = group.phase === "backward", title = group.name.length * CHARACTER + 44;
    const width = Math.max(layout.width + 2 * MARGIN, group.parent < 0 ? 160 : title);
    const left = (width - layout.width) / 2, head = (group.parent < 0 ? 40 : TITLE + MARGIN) + (up ? 14 : 0);
    const point = (x, y) => [left + x, head + (up ? layout.height - y : y)];
    const centres = new Map(all.map((key, i) => [key, point(layout.x[i], layout.y[i])]));
    const routes = new Map(pairs.map(([a, b]) => [a + "," + b,
      layout.routes.get(index.get(a) + "," + index.get(b)).map(([x, y]) => point(x, y))]));
    return { size: [width, layout.height + head + MARGIN + 4], centres, routes, frames, keys };
  }
  first(key) {
    if (key < this.count) return key;
    const group = this.groups[key - this.count];
    group.earliest ??= Math.min(Infinity, ...group.nodes, ...group.inner.map(i => this.first(this.groups[i].key)));
    return group.earliest;
  }
  size(key) {
    if (key >= this.count) {
      const group = this.groups[key - this.count];
      return [Math.max(group.name.length * CHARACTER + 46, this.subtitle(group).length * SMALL + 26, 96), 40];
    }
    const node = this.view.nodes[key];
    return [Math.max(node.title.length * CHARACTER, node.small.length * SMALL) + 22, node.small ? 40 : 27];
  }
  subtitle(group) {
    const time = group.seconds ? ` · ${duration(group.seconds)}` : "";
    return group.size === 1 ? "1 operation" + time : `${group.size} operations` + time;
  }
  put(key, frame, x, y) {
    this.boxes.set(key, { x, y, w: frame.size[0], h: frame.size[1], frame });
    frame.x = x; frame.y = y;
    for (const inner of frame.keys) {
      const [cx, cy] = frame.centres.get(inner), open = frame.frames.get(inner);
      const [w, h] = open?.size ?? this.size(inner);
      if (open) this.put(inner, open, x + cx - w / 2, y + cy - h / 2);
      else this.boxes.set(inner, { x: x + cx - w / 2, y: y + cy - h / 2, w, h });
    }
  }

  // --- what is drawn -------------------------------------------------------------------------
  svg(colour) {
    const parts = [], edges = [], closed = [];
    for (const [key, box] of this.boxes) {
      if (key < this.count) closed.push(this.nodeSvg(key, box, colour));
      else if (box.frame) parts.push(this.openSvg(key, box));
      else closed.push(this.closedSvg(key, box, colour));
    }
    let number = 0;
    for (const edge of this.edges.values()) {
      edge.number = number++;
      edges.push(this.edgeSvg(edge));
    }
    return parts.join("") + edges.join("") + closed.join("");
  }
  nodeSvg(key, { x, y, w, h }, colour) {
    const node = this.view.nodes[key], put = node.kind === "input" || node.kind === "output";
    const [fill, stroke] = colour(node, node.phase);
    const cx = x + w / 2, middle = y + h / 2;
    return `<g class="node ${node.kind}" data-key="${key}"><rect x="${x}" y="${y}" width="${w}" height="${h}"
      rx="${put ? h / 2 : 5}" style="fill:${put ? "var(--node)" : fill};stroke:${stroke}"/>
      <text x="${cx}" y="${middle + (node.small ? -3 : 4)}">${escaped(node.title)}</text>${node.small
        ? `<text class="small" x="${cx}" y="${middle + 12}">${escaped(node.small)}</text>` : ""}</g>${this.labelSvg(key, { x, y, w, h })}`;
  }
  labelSvg(key, { x, y, w, h }) {
    const kinds = [...(this.labels.get(key) ?? [])].filter(Boolean);
    if (!kinds.length) return "";
    const text = shortened(kinds[0], 30) + (kinds.length > 1 ? `  +${kinds.length - 1}` : "");
    const up = this.phase(key) === "backward";
    return `<text class="type" x="${x + w / 2}" y="${up ? y - 6 : y + h + 13}">${escaped(text)}</text>`;
  }
  closedSvg(key, { x, y, w, h }, colour) {
    const group = this.groups[key - this.count], [fill, stroke] = colour(group, group.phase);
    const style = `style="fill:${fill};stroke:${stroke}"`, size = `width="${w}" height="${h}" rx="7"`;
    return `<g class="group ${group.kind}" data-key="${key}"><rect class="under" x="${x + 3}" y="${y + 3}" ${size} ${style}/>
      <rect class="body" x="${x}" y="${y}" ${size} ${style}/>
      <text class="name" x="${x + w / 2 + 5}" y="${y + 17}">${escaped(group.name)}</text>
      <text class="small" x="${x + w / 2}" y="${y + 31}">${escaped(this.subtitle(group))}</text>
      <text class="small" x="${x + 12}" y="${y + 17}" style="font-size:13px">+</text></g>${this.labelSvg(key, { x, y, w, h })}`;
  }
  openSvg(key, { x, y, w, h }) {
    const group = this.groups[key - this.count], phase = `var(--${group.phase}`;
    const whole = group.parent < 0, time = group.seconds ? `  ${duration(group.seconds)}` : "";
    return `<g class="group open ${whole ? "phase" : group.kind}" data-key="${key}">
      <rect class="body" x="${x}" y="${y}" width="${w}" height="${h}" rx="${whole ? 14 : 9}"
        style="fill:${phase}-panel);stroke:${phase})" ${whole ? "" : 'stroke-opacity=".45"'}/>
      <text class="name" x="${x + 12}" y="${y + (whole ? 27 : 18)}" style="${whole ? `fill:${phase})` : ""}">${
        whole ? "" : "− "}${escaped(group.name)}<tspan class="small" style="font-weight:400">${time}</tspan></text></g>`;
  }
  edgeSvg(edge) {
    const a = this.boxes.get(edge.from), b = this.boxes.get(edge.to);
    if (edge.across) {
      const right = a.x < b.x, x1 = right ? a.x + a.w : a.x, x2 = right ? b.x : b.x + b.w;
      const y1 = a.y + a.h / 2, y2 = b.y + b.h / 2, middle = (x1 + x2) / 2;
      return `<path class="edge across" data-edge="${edge.number}" style="stroke:var(--${this.phase(edge.to)})"
        d="M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}"/>`;
    }
    const up = this.phase(edge.from) === "backward", rising = (up ? a.y < b.y : a.y > b.y);
    const start = [a.x + a.w / 2, up ? a.y - (this.labels.get(edge.from)?.size ? 17 : 0) : a.y + a.h + (this.labels.get(edge.from)?.size ? 17 : 0)];
    const points = [start, ...this.way(edge), [b.x + b.w / 2, up ? b.y + b.h : b.y]];
    let path = `M${start[0]} ${start[1]}`;
    for (let i = 1; i < points.length; i++) {
      const [[x1, y1], [x2, y2]] = [points[i - 1], points[i]], middle = (y1 + y2) / 2;
      path += `C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`;
    }
    return `<path class="edge${rising ? " rising" : ""}" data-edge="${edge.number}" d="${path}"/>`;
  }
  way({ legs }) {
    const points = [];
    for (const [id, a, b] of legs) {
      const frame = this.boxes.get(this.groups[id].key).frame, moved = ([x, y]) => [x + frame.x, y + frame.y];
      if (typeof a === "string") points.push(moved(frame.centres.get(a)));
      points.push(...frame.routes.get(a + "," + b).map(moved));
      if (typeof b === "string") points.push(moved(frame.centres.get(b)));
    }
    return points;
  }
}

function groupBy(list, key) {
  const found = new Map();
  for (const each of list) found.set(key(each), [...(found.get(key(each)) ?? []), each]);
  return found;
}

function duration(seconds) {
  return seconds >= 1 ? seconds.toFixed(2) + " s" : seconds >= 1e-3 ? (seconds * 1e3).toFixed(seconds >= 1e-2 ? 1 : 2) + " ms"
    : (seconds * 1e6).toFixed(seconds >= 1e-5 ? 0 : 1) + " µs";
}

function bytes(count) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 1000) return (unit === "B" ? count : count.toFixed(1)) + " " + unit;
    count /= 1000;
  }
  return count.toFixed(1) + " TB";
}
