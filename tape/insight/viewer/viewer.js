"use strict";
// The tape as a picture: dagre places the entries of each lane (forward, first sweep, second sweep ...), this draws them.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NS = "http://www.w3.org/2000/svg", W = 7.3, LINE = 15, MANY = 160, FEW = 12;
  const view = document.getElementById("view"), side = document.getElementById("side"), found = document.getElementById("found");
  const groups = new Map(), above = new Map(), open = new Set();
  let picked = null, box = null, boxes = new Map();

  const make = (tag, attributes, parent, text) => {
    const e = document.createElementNS(NS, tag);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    if (text !== undefined) e.textContent = text;
    if (parent) parent.appendChild(e);
    return e;
  };
  const index = (items, parent) => {
    for (const item of items) {
      const key = typeof item === "number" ? item : item.id;
      above.set(key, parent);
      if (typeof item !== "number") { groups.set(item.id, item); index(item.items, item.id); }
    }
  };
  data.lanes.forEach((lane) => index(lane.items, null));
  const count = (items) => items.reduce((n, i) => n + (typeof i === "number" ? 1 : open.has(i.id) ? count(i.items) : 1), 0);
  const size = (item) => (typeof item === "number" ? 1 : item.items.reduce((n, i) => n + size(i), 0));
  const expand = (limit) => {  // the outer ones first, as long as there is room
    open.clear();
    let waiting = data.lanes.flatMap((lane) => lane.items);
    let total = waiting.length;
    while (waiting.length) {
      const next = [];
      for (const item of waiting) {
        if (typeof item === "number" || (item.times && limit !== Infinity && size(item) > FEW)) continue;
        if (total + item.items.length > limit) continue;
        open.add(item.id); total += item.items.length - 1; next.push(...item.items);
      }
      waiting = next;
    }
  };
  const shown = (key) => {  // what stands for an entry: itself, or the outermost closed group around it
    let at = key;
    for (let g = above.get(key); g !== null && g !== undefined; g = above.get(g)) if (!open.has(g)) at = g;
    return at;
  };
  const label = (key) => {
    if (typeof key === "number") {
      const e = data.entries[key];
      return [e.op + (e.args ? "(" + e.args + ")" : ""), e.type + (e.flow === undefined ? "" : "  |g| " + e.flow.toPrecision(3))];
    }
    const g = groups.get(key);
    return [g.label, size(g) + " entries  +"];
  };
  const clip = (s, n) => (s.length > n ? s.slice(0, n - 1) + "…" : s);
  const flowOf = (key) => (typeof key === "number" ? data.entries[key].flow : undefined);
  const flows = data.entries.map((e) => e.flow).filter((f) => f !== undefined && f > 0 && isFinite(f)).map(Math.log10);
  const low = Math.min(...flows), high = Math.max(...flows);
  const share = (f) => (high > low ? (Math.log10(f) - low) / (high - low) : 0.5);
  const colour = (f) => f === 0 ? "#868e96" : !isFinite(f) ? "#e03131" : `hsl(${Math.round(240 - 220 * share(f))} 70% 50%)`;

  function layout(lane) {
    const g = new dagre.graphlib.Graph();
    const list = [];
    const walk = (items) => items.forEach((i) => (typeof i === "number" || !open.has(i.id) ? list.push(typeof i === "number" ? i : i.id) : walk(i.items)));
    walk(lane.items);
    g.setGraph({ rankdir: "TB", nodesep: 16, ranksep: 28, ranker: list.length > 60 ? "longest-path" : "network-simplex" });
    g.setDefaultEdgeLabel(() => ({}));
    for (const key of list) {
      const lines = label(key).map((s) => clip(s, 40));
      g.setNode(String(key), { key, lines, width: Math.max(70, Math.max(...lines.map((s) => s.length)) * W + 16), height: 2 * LINE + 10 });
    }
    return { g, list };
  }
  const first = (key) => (typeof key === "number" ? key : first(typeof groups.get(key).items[0] === "number" ? groups.get(key).items[0] : groups.get(key).items[0].id));
  const last = (key) => { if (typeof key === "number") return key; const items = groups.get(key).items, i = items[items.length - 1]; return last(typeof i === "number" ? i : i.id); };

  function draw(keep) {
    const lanes = data.lanes.map((lane) => ({ lane, ...layout(lane) }));
    const of = new Map();
    lanes.forEach((l, i) => l.list.forEach((key) => of.set(key, i)));
    const inner = new Map(), across = new Map();
    data.entries.forEach((e, n) => {
      const to = shown(n);
      for (const m of e.reads) {
        const from = shown(m);
        if (from === to) continue;
        const kind = of.get(from) === of.get(to) ? inner : across;
        kind.set(from + ">" + to, [from, to, m]);
      }
      if (e.of !== undefined) { const from = shown(e.of); if (of.get(from) !== of.get(to)) across.set("v" + from + ">" + to, [from, to, null]); }
    });
    for (const [from, to] of inner.values()) lanes[of.get(from)].g.setEdge(String(from), String(to));
    for (const { g, list } of lanes) for (let i = 1; i < list.length; i++) {  // what came after another lane stands below what came before it
      if (first(list[i]) > last(list[i - 1]) + 1 && !g.hasEdge(String(list[i - 1]), String(list[i]))) g.setEdge(String(list[i - 1]), String(list[i]), { unseen: true });
    }
    const svg = make("svg", { xmlns: NS });
    const style = make("style", {}, svg, [...document.styleSheets[0].cssRules].map((r) => r.cssText).join("\n"));
    const root = make("g", {}, svg);
    const back = make("g", {}, root), wires = make("g", {}, root), nodes = make("g", {}, root);
    let x = 20, tall = 0;
    boxes = new Map();
    const turned = [];
    for (const { lane, g, list } of lanes) {
      if (list.length) dagre.layout(g);
      const width = list.length ? g.graph().width : 80, height = list.length ? g.graph().height : 40;
      const top = list.length ? g.node(String(list[0])) : { x: 0, width: 0 };
      make("text", { x: x + top.x - top.width / 2, y: 14 }, make("g", { class: "lane" }, back), lane.label);
      for (const name of g.nodes()) {
        const n = g.node(name);
        boxes.set(n.key, { x: x + n.x, y: 70 + n.y, w: n.width, h: n.height, lines: n.lines });
      }
      for (const e of g.edges()) if (!g.edge(e).unseen) turned.push([g.edge(e).points.map((p) => [x + p.x, 70 + p.y]), e]);
      x += width + 90; tall = Math.max(tall, height);
    }
    const path = (points) => "M" + points.map((p) => p[0].toFixed(1) + " " + p[1].toFixed(1)).join("L");
    for (const [points, e] of turned) {
      const line = make("path", { class: "edge", d: path(points), "data-ends": e.v + " " + e.w }, wires);
      const f = flowOf(isNaN(+e.v) ? e.v : +e.v);
      if (f !== undefined) { line.style.stroke = colour(f); line.style.strokeWidth = f > 0 && isFinite(f) ? 1 + 5 * share(f) : 1.5; }
    }
    for (const [from, to] of across.values()) {
      const a = boxes.get(from), b = boxes.get(to);
      if (!a || !b) continue;
      const right = b.x > a.x, x0 = a.x + (right ? a.w : -a.w) / 2, x1 = b.x + (right ? -b.w : b.w) / 2, m = (x0 + x1) / 2;
      make("path", { class: "edge across", d: `M${x0} ${a.y}C${m} ${a.y} ${m} ${b.y} ${x1} ${b.y}`, "data-ends": from + " " + to }, wires);
    }
    for (const [id, group] of groups) {
      if (!open.has(id) || shown(id) !== id && !ancestorsOpen(id)) continue;
      const inside = [];
      const walk = (items) => items.forEach((i) => { const k = typeof i === "number" ? i : i.id; if (boxes.has(k)) inside.push(boxes.get(k)); else if (typeof i !== "number") walk(i.items); });
      walk(group.items);
      if (!inside.length) continue;
      const n = level(group);
      const x0 = Math.min(...inside.map((b) => b.x - b.w / 2)) - 5 * n, x1 = Math.max(...inside.map((b) => b.x + b.w / 2)) + 5 * n;
      const y0 = Math.min(...inside.map((b) => b.y - b.h / 2)) - 12 * n, y1 = Math.max(...inside.map((b) => b.y + b.h / 2)) + 4 * n;
      const g = make("g", { class: "group", "data-key": id }, back);
      make("rect", { x: x0, y: y0, width: x1 - x0, height: y1 - y0, rx: 6 }, g);
      make("text", { x: x0 + 4, y: y0 + 9 }, g, "− " + group.label);
      g.addEventListener("click", () => { if (!moved) { open.delete(id); draw(true); } });
    }
    for (const [key, b] of boxes) {
      const e = typeof key === "number" ? data.entries[key] : null;
      const g = make("g", { class: "node" + (e ? (e.sweep ? " sweep" : "") + (e.constant ? " constant" : "") : " block"), "data-key": key }, nodes);
      const rect = make("rect", { x: b.x - b.w / 2, y: b.y - b.h / 2, width: b.w, height: b.h, rx: 5 }, g);
      if (e && e.flow !== undefined) { rect.style.stroke = colour(e.flow); rect.style.strokeWidth = 2; }
      make("text", { x: b.x, y: b.y - 3, "text-anchor": "middle" }, g, b.lines[0]);
      make("text", { x: b.x, y: b.y + 12, "text-anchor": "middle", class: "small" }, g, b.lines[1]);
      make("title", {}, g, e ? "%" + key + "  " + (e.where || "") : label(key).join("\n"));
      g.addEventListener("click", () => { if (!moved) e ? pick(key) : (open.add(key), draw(true)); });
    }
    view.replaceChildren(svg);
    const whole = { x: 0, y: 0, w: x, h: tall + 100 };
    if (!keep || !box) {
      const r = view.getBoundingClientRect(), fit = Math.min(r.width / whole.w, r.height / whole.h), least = keep === null ? 0.01 : 0.5;
      const scale = Math.max(Math.min(fit, 1.2), least);
      box = { x: fit < least ? 0 : (whole.w - r.width / scale) / 2, y: fit < least ? 0 : Math.min(0, (whole.h - r.height / scale) / 2), w: r.width / scale, h: r.height / scale };
    }
    aim(); mark(); search();
    document.documentElement.dataset.nodes = String(boxes.size);
  }
  const level = (group) => 1 + Math.max(0, ...group.items.map((i) => (typeof i !== "number" && open.has(i.id) ? level(i) : 0)));
  const ancestorsOpen = (id) => { for (let g = above.get(id); g !== null && g !== undefined; g = above.get(g)) if (!open.has(g)) return false; return true; };
  const aim = () => view.firstChild.setAttribute("viewBox", `${box.x} ${box.y} ${box.w} ${box.h}`);

  function mark() {
    view.querySelectorAll(".picked").forEach((e) => e.classList.remove("picked"));
    if (picked === null) return;
    const key = String(shown(picked));
    view.querySelectorAll(`.node[data-key="${key}"]`).forEach((e) => e.classList.add("picked"));
    view.querySelectorAll(".edge").forEach((e) => { if (e.dataset.ends.split(" ").includes(key)) e.classList.add("picked"); });
  }
  function pick(n) {
    picked = n;
    const e = data.entries[n], dl = document.createElement("dl");
    const row = (name, value, tag) => {
      if (value === undefined || value === "" || value === null) return;
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name;
      if (tag) { const p = document.createElement(tag); p.textContent = value; dd.appendChild(p); } else dd.textContent = value;
      dl.append(dt, dd);
    };
    row("entry", "%" + n + " = " + e.op); row("inputs", e.inputs); row("result", e.type); row("bytes", e.bytes); row("line", e.where);
    row("source", e.source, "pre"); row("scope", e.scope); row("parameters", e.params); row("sweep", e.sweep || undefined);
    row("derivative of", e.of === undefined ? undefined : "%" + e.of + " " + data.entries[e.of].op); row("norm of the gradient", e.flow === undefined ? undefined : String(e.flow));
    row("state", e.state);
    side.replaceChildren(dl); mark();
  }
  function search() {
    const text = document.getElementById("search").value.trim().toLowerCase();
    view.querySelectorAll(".found").forEach((e) => e.classList.remove("found"));
    if (!text) { found.textContent = ""; return; }
    const hits = [];
    data.entries.forEach((e, n) => { if (("%" + n + " " + e.op + " " + e.inputs + " " + (e.where || "") + " " + (e.scope || "") + " " + (e.group || "")).toLowerCase().includes(text)) hits.push(n); });
    new Set(hits.map(shown)).forEach((key) => view.querySelectorAll(`.node[data-key="${key}"]`).forEach((e) => e.classList.add("found")));
    found.textContent = hits.length + " found";
    return hits;
  }
  function reveal(n) {
    for (let g = above.get(n); g !== null && g !== undefined; g = above.get(g)) open.add(g);
    draw(true);
    const b = boxes.get(n);
    box.x = b.x - box.w / 2; box.y = b.y - box.h / 2; aim(); pick(n);
  }
  let moved = false, from = null, hit = -1;
  const unit = () => box.w / view.getBoundingClientRect().width;
  view.addEventListener("pointerdown", (e) => { from = [e.clientX, e.clientY]; moved = false; });
  window.addEventListener("pointermove", (e) => {
    if (!from) return;
    const dx = e.clientX - from[0], dy = e.clientY - from[1];
    if (!moved && Math.abs(dx) + Math.abs(dy) < 4) return;
    moved = true; box.x -= dx * unit(); box.y -= dy * unit(); from = [e.clientX, e.clientY]; aim();
  });
  window.addEventListener("pointerup", () => { from = null; });
  view.addEventListener("wheel", (e) => {
    e.preventDefault();
    const r = view.getBoundingClientRect(), k = Math.exp(e.deltaY * 0.0015), px = (e.clientX - r.left) / r.width, py = (e.clientY - r.top) / r.height;
    box.x += box.w * px * (1 - k); box.y += box.h * py * (1 - k); box.w *= k; box.h *= k; aim();
  }, { passive: false });
  document.getElementById("search").addEventListener("input", () => { hit = -1; search(); });
  document.getElementById("search").addEventListener("keydown", (e) => {
    if (e.key !== "Enter") return;
    const hits = search();
    if (hits && hits.length) { hit = (hit + 1) % hits.length; reveal(hits[hit]); }
  });
  document.getElementById("open").addEventListener("click", () => { expand(Infinity); draw(false); });
  document.getElementById("close").addEventListener("click", () => { open.clear(); draw(false); });
  document.getElementById("fit").addEventListener("click", () => { box = null; draw(null); });
  document.getElementById("save").addEventListener("click", () => {
    const a = document.createElement("a");
    a.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(view.firstChild)], { type: "image/svg+xml" }));
    a.download = "tape.svg"; a.click();
  });
  document.getElementById("key").textContent = flows.length ? `gradient norms ${(10 ** low).toPrecision(2)} (blue) to ${(10 ** high).toPrecision(2)} (red), grey: zero` : "";
  const began = performance.now();
  expand(MANY); draw(false);
  const asked = new URLSearchParams(location.hash.slice(1));
  if (asked.has("open")) { expand(Infinity); draw(false); }
  if (asked.has("search")) { document.getElementById("search").value = asked.get("search"); search(); }
  if (asked.has("fit")) { box = null; draw(null); }
  if (asked.has("pick")) reveal(+asked.get("pick"));
  document.documentElement.dataset.ready = String(Math.round(performance.now() - began));
})();
