// Placing items in layers: every edge goes down, neighbours stand near each other. Long edges get
// a place in each layer they cross, so that they run between the items and not through them.
const SWEEPS = 8, BEND = 10;

function orderOf(count, edges) {
  // An order in which edges go from earlier to later ones, but for those that close a cycle.
  const below = Array.from({ length: count }, () => []), fed = new Array(count).fill(0);
  for (const [a, b] of edges) { below[a].push(b); fed[b]++; }
  const order = [], done = new Array(count).fill(false), ready = [];
  let next = 0;
  const take = n => { done[n] = true; order.push(n); for (const b of below[n]) if (--fed[b] === 0 && !done[b]) ready.push(b); };
  for (let n = 0; n < count; n++) if (!fed[n]) ready.push(n);
  while (order.length < count) {
    if (ready.length) {
      let least = 0;
      for (let i = 1; i < ready.length; i++) if (ready[i] < ready[least]) least = i;
      const n = ready.splice(least, 1)[0];
      if (!done[n]) take(n);
    } else {
      while (done[next]) next++;
      take(next);
    }
  }
  return order;
}

function layered(sizes, pairs, { top = 0, bottom = 0, across = 22, down = 44, widest = 1500 } = {}) {
  const count = sizes.length;
  if (!count) return { x: [], y: [], routes: new Map(), width: 0, height: 0 };
  const place = new Array(count);
  orderOf(count, pairs).forEach((n, i) => { place[n] = i; });
  const edges = pairs.map(([a, b]) => place[a] <= place[b] ? [a, b] : [b, a]);
  let layer = layersOf(count, edges, place, top, bottom);
  layer = folded(layer, sizes, top, bottom, across, widest);
  const w = sizes.map(s => s[0]), h = sizes.map(s => s[1]);
  const above = sizes.map(() => []), below = sizes.map(() => []), bends = new Map();
  for (const [a, b] of edges) {
    const chain = [a];
    for (let l = layer[a] + 1; l < layer[b]; l++) {
      chain.push(w.length);
      w.push(BEND); h.push(0); layer.push(l); above.push([]); below.push([]);
    }
    bends.set(a + "," + b, chain.slice(1));
    chain.push(b);
    for (let i = 0; i + 1 < chain.length; i++) { below[chain[i]].push(chain[i + 1]); above[chain[i + 1]].push(chain[i]); }
  }
  const rows = rowsOf(w.length, layer, above, below);
  const x = columnsOf(rows, w, above, below, count, across);
  const y = [];
  let line = 0;
  for (const row of rows) {
    let height = 0;
    for (const n of row) height = Math.max(height, h[n]);
    for (const n of row) y[n] = line + height / 2;
    line += height + (height ? down : down / 2);
  }
  let left = Infinity, right = -Infinity;
  for (let n = 0; n < w.length; n++) { left = Math.min(left, x[n] - w[n] / 2); right = Math.max(right, x[n] + w[n] / 2); }
  const routes = new Map();
  pairs.forEach(([a, b], i) => {
    const [s, t] = edges[i], points = bends.get(s + "," + t).map(n => [x[n] - left, y[n]]);
    routes.set(a + "," + b, straight(s === a ? points : points.reverse()));
  });
  return { x: x.slice(0, count).map(v => v - left), y: y.slice(0, count), routes, width: right - left,
    height: line - (Math.max(...rows[rows.length - 1].map(n => h[n])) ? down : down / 2) };
}

function layersOf(count, edges, place, top, bottom) {
  // Below all that it depends on; what depends on nothing, late.
  const layer = new Array(count).fill(top ? 1 : 0), first = new Map(), fed = new Set();
  for (let n = 0; n < top; n++) layer[n] = 0;
  for (const [a, b] of [...edges].sort((p, q) => place[p[1]] - place[q[1]])) {
    layer[b] = Math.max(layer[b], layer[a] + 1);
    fed.add(b);
  }
  for (const [a, b] of edges) first.set(a, Math.min(first.get(a) ?? Infinity, layer[b]));
  for (let n = top; n < count; n++)
    if (!fed.has(n) && first.has(n)) layer[n] = Math.max(layer[n], first.get(n) - 1);
  const last = Math.max(...layer);
  const inner = layer.slice(top, count - bottom);
  const floor = bottom && inner.length && Math.max(...inner) === last ? last + 1 : last;
  for (let n = count - bottom; n < count; n++) layer[n] = floor;
  return layer;
}

function folded(layer, sizes, top, bottom, across, widest) {
  // Layers that are too wide become several.
  const rows = [];
  layer.forEach((l, n) => (rows[l] ??= []).push(n));
  const made = new Array(layer.length);
  let line = 0;
  for (const row of rows) {
    let width = 0;
    for (const n of row ?? []) {
      const port = n < top || n >= layer.length - bottom;
      if (width && width + sizes[n][0] > widest && !port) { line++; width = 0; }
      width += sizes[n][0] + across;
      made[n] = line;
    }
    line++;
  }
  return made;
}

function rowsOf(count, layer, above, below) {
  // The items of each layer, in an order that crosses few edges.
  const rows = Array.from({ length: layer.reduce((a, b) => Math.max(a, b), 0) + 1 }, () => []);
  const seen = new Array(count).fill(false), place = new Array(count).fill(0);
  for (let start = 0; start < count; start++) {
    const stack = [start];
    while (stack.length) {
      const n = stack.pop();
      if (seen[n]) continue;
      seen[n] = true;
      rows[layer[n]].push(n);
      for (let i = below[n].length - 1; i >= 0; i--) stack.push(below[n][i]);
    }
  }
  const number = row => row.forEach((n, i) => { place[n] = i; });
  rows.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const near = sweep % 2 ? below : above;
    for (const row of sweep % 2 ? [...rows].reverse() : rows) {
      const wanted = new Map(row.map(n => [n, mean(near[n], place, place[n])]));
      row.sort((a, b) => wanted.get(a) - wanted.get(b));
      number(row);
    }
  }
  return rows;
}

function mean(near, values, otherwise) {
  let sum = 0;
  for (const n of near) sum += values[n];
  return near.length ? sum / near.length : otherwise;
}

function columnsOf(rows, w, above, below, count, across) {
  // Each item near the middle of those it is joined with, without overlaps.
  const x = new Array(w.length).fill(0);
  for (const row of rows) spread(row, x, row.map(() => 0), w, across, count);
  for (let sweep = 0; sweep < SWEEPS + 2; sweep++) {
    const near = sweep % 2 ? below : above;
    for (const row of sweep % 2 ? [...rows].reverse() : rows)
      spread(row, x, row.map(n => {
        const items = near[n].filter(m => m < count);
        return mean(items.length ? items : near[n], x, x[n]);
      }), w, across, count);
  }
  return x;
}

function spread(row, x, wanted, w, across, items) {
  // Items that would overlap are taken together to a block, which goes to its mean place; bends give way.
  const blocks = [];
  row.forEach((n, i) => {
    const weight = n < items ? 1 : 0.02;
    let block = { start: wanted[i] - (w[n] + across) / 2, count: 1, weight, width: w[n] + across };
    while (blocks.length && blocks[blocks.length - 1].start + blocks[blocks.length - 1].width > block.start) {
      const before = blocks.pop(), weight = before.weight + block.weight;
      block = { start: (before.start * before.weight + (block.start - before.width) * block.weight) / weight,
        count: before.count + block.count, weight, width: before.width + block.width };
    }
    blocks.push(block);
  });
  let i = 0;
  for (const block of blocks) {
    let at = block.start;
    for (let k = 0; k < block.count; k++, i++) { x[row[i]] = at + (w[row[i]] + across) / 2; at += w[row[i]] + across; }
  }
}

const straight = points => points.filter((p, i) => i === 0 || i === points.length - 1
  || Math.abs(points[i - 1][0] - p[0]) + Math.abs(points[i + 1][0] - p[0]) > 0.5);
