// Points on canvases: drag to move, wheel or pinch to zoom, hover or tap for the picture.
const N = data.files.length;
const rows = numbers(data.rows, Int32Array);
const panels = data.panels.map(panel => ({ title: panel.title, places: numbers(panel.places, Uint16Array) }));
const colourings = data.colourings.map(one => ({ name: one.name, groups: one.groups, of: numbers(one.of, Int32Array) }));
const STEPS = 65535, PICTURE = 44;
let active = 0, chosen = null, hovered = -1;
const view = { x: 0.5, y: 0.5, zoom: 1 };

byId('title').append(named(data.title));
byId('colouring').append(...colourings.map((one, place) => el('option', { value: place }, plain(one.name))));
const shade = group => colour(group, colourings[active].groups.length);

// Sheets, for pictures drawn at their points.
const sheets = new Map();
function sheet(number) {
  if (!sheets.has(number)) {
    const image = new Image();
    image.addEventListener('load', draw);
    image.src = `images/${number}.webp`;
    sheets.set(number, image);
  }
  return sheets.get(number);
}
function paint(context, image, x, y, size) {
  const { cell, side, columns, rows: lines } = data.sheets, perSheet = columns * lines;
  const source = sheet(Math.floor(image / perSheet)), place = image % perSheet;
  if (!source.complete || !source.naturalWidth) return false;
  context.drawImage(source, place % columns * cell, Math.floor(place / columns) * cell, side, side, x, y, size, size);
  return true;
}

for (const panel of panels) {
  panel.canvas = el('canvas', { tabindex: 0, role: 'img', 'aria-label': `${plain(data.algorithm)} map of ${N} images, ${plain(panel.title)}` });
  panel.hint = el('div', { class: 'hint' });
  byId('panels').append(el('div', { class: 'panel' }, panels.length > 1 ? el('h2', {}, named(panel.title)) : '', panel.canvas, panel.hint));
  wire(panel);
}

/** From the plane to the canvas: the square fits, moved and zoomed by the view. */
function frame(panel) {
  const box = panel.canvas.getBoundingClientRect(), size = Math.max(40, Math.min(box.width, box.height) - 70) * view.zoom;
  return { box, size, left: box.width / 2 - view.x * size, top: box.height / 2 - view.y * size };
}
const px = (panel, at, point) => at.left + panel.places[2 * point] / STEPS * at.size;
const py = (panel, at, point) => at.top + (1 - panel.places[2 * point + 1] / STEPS) * at.size;

let queued = false;
function draw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; panels.forEach(render); });
}
function render(panel) {
  const at = frame(panel), ratio = devicePixelRatio || 1, { canvas } = panel, { of } = colourings[active];
  const width = Math.round(at.box.width * ratio), height = Math.round(at.box.height * ratio);
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const context = canvas.getContext('2d'), styles = getComputedStyle(document.documentElement);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, at.box.width, at.box.height);
  const radius = Math.min(7, Math.min(4.2, Math.max(1.1, at.size / view.zoom * 0.36 / Math.sqrt(N))) * Math.sqrt(view.zoom));
  const groups = new Map(), visible = [];
  for (let point = 0; point < N; point++) {
    const x = px(panel, at, point), y = py(panel, at, point);
    if (x < -30 || y < -30 || x > at.box.width + 30 || y > at.box.height + 30) continue;
    visible.push(point);
    const group = chosen !== null && of[point] !== chosen ? -1 : of[point];
    // In eight layers, so that no class lies on top of all others.
    const layer = group < 0 ? -1 : (group + point % 8 * colourings[active].groups.length);
    if (!groups.has(layer)) groups.set(layer, []);
    groups.get(layer).push(x, y);
  }
  const paths = [...groups].sort((a, b) => a[0] - b[0]);
  for (const [layer, places] of paths) {
    const group = layer < 0 ? -1 : layer % colourings[active].groups.length;
    context.fillStyle = group < 0 ? styles.getPropertyValue('--hole') : shade(group);
    context.globalAlpha = group < 0 ? 0.7 : 0.85;
    context.beginPath();
    for (let at = 0; at < places.length; at += 2) { context.moveTo(places[at] + radius, places[at + 1]); context.arc(places[at], places[at + 1], radius, 0, 7); }
    context.fill();
  }
  context.globalAlpha = 1;
  const large = view.zoom > 1.2 && visible.length * PICTURE ** 2 < 0.9 * at.box.width * at.box.height; // there is room for pictures
  if (large) for (const point of visible) {
    if (chosen !== null && of[point] !== chosen) continue;
    const x = px(panel, at, point), y = py(panel, at, point);
    if (paint(context, point, x - PICTURE / 2, y - PICTURE / 2, PICTURE)) {
      context.lineWidth = 2.5;
      context.strokeStyle = shade(of[point]);
      context.strokeRect(x - PICTURE / 2, y - PICTURE / 2, PICTURE, PICTURE);
    }
  }
  if (hovered >= 0) {
    context.lineWidth = 2;
    context.strokeStyle = styles.getPropertyValue('--ink');
    context.beginPath();
    context.arc(px(panel, at, hovered), py(panel, at, hovered), radius + 4, 0, 7);
    context.stroke();
  }
  panel.hint.textContent = large ? '' : 'Zoom in for pictures';
  panel.hint.hidden = large || panel !== panels[0];
}

/** The point nearest to a place on a canvas, within reach; -1 where there is none. */
function nearest(panel, x, y) {
  const at = frame(panel), { of } = colourings[active];
  let best = -1, least = 18 ** 2;
  for (let point = 0; point < N; point++) {
    if (chosen !== null && of[point] !== chosen) continue;
    const away = (px(panel, at, point) - x) ** 2 + (py(panel, at, point) - y) ** 2;
    if (away < least) { least = away; best = point; }
  }
  return best;
}

function zoomAt(panel, x, y, factor) {
  const before = frame(panel), u = (x - before.left) / before.size, v = (y - before.top) / before.size;
  view.zoom = Math.min(400, Math.max(1, view.zoom * factor));
  const after = frame(panel);
  view.x = u - (x - after.box.width / 2) / after.size;
  view.y = v - (y - after.box.height / 2) / after.size;
  if (view.zoom === 1) { view.x = view.y = 0.5; }
  draw();
}

function wire(panel) {
  const { canvas } = panel, touches = new Map();
  let moved = 0;
  const place = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener('wheel', event => { event.preventDefault(); zoomAt(panel, ...place(event), Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0018))); }, { passive: false });
  canvas.addEventListener('pointerdown', event => { canvas.setPointerCapture(event.pointerId); touches.set(event.pointerId, place(event)); moved = 0; });
  canvas.addEventListener('pointermove', event => {
    const now = place(event), before = touches.get(event.pointerId);
    if (!before) { if (event.pointerType === 'mouse') tip(panel, event, nearest(panel, ...now)); return; }
    const dx = now[0] - before[0], dy = now[1] - before[1];
    moved += Math.abs(dx) + Math.abs(dy);
    if (touches.size === 2) {
      const other = [...touches].find(([id]) => id !== event.pointerId)[1];
      const was = Math.hypot(before[0] - other[0], before[1] - other[1]), is = Math.hypot(now[0] - other[0], now[1] - other[1]);
      zoomAt(panel, (now[0] + other[0]) / 2, (now[1] + other[1]) / 2, is / Math.max(1, was));
    } else { const at = frame(panel); view.x -= dx / at.size; view.y -= dy / at.size; draw(); }
    touches.set(event.pointerId, now);
    tip(panel, event, -1);
  });
  const up = event => {
    touches.delete(event.pointerId);
    if (event.type === 'pointerup' && moved < 6) {
      const point = nearest(panel, ...place(event));
      if (point >= 0) show(point);
    }
  };
  canvas.addEventListener('pointerup', up);
  canvas.addEventListener('pointercancel', up);
  canvas.addEventListener('pointerleave', event => { if (!touches.size) tip(panel, event, -1); });
  canvas.addEventListener('keydown', event => {
    const step = 0.12 / view.zoom, box = canvas.getBoundingClientRect();
    const keys = {
      ArrowLeft: () => { view.x -= step; }, ArrowRight: () => { view.x += step; }, ArrowUp: () => { view.y -= step; }, ArrowDown: () => { view.y += step; },
      '+': () => zoomAt(panel, box.width / 2, box.height / 2, 1.4), '=': () => zoomAt(panel, box.width / 2, box.height / 2, 1.4), '-': () => zoomAt(panel, box.width / 2, box.height / 2, 1 / 1.4), 0: reset,
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
    draw();
  });
}

function lines(point) {
  return colourings.filter(one => one.name.startsWith('label')).map(one => [one.name, one.groups[one.of[point]]]);
}
function tip(panel, event, point) {
  if (point !== hovered) { hovered = point; draw(); }
  const box = byId('tip');
  box.hidden = point < 0;
  if (point < 0) return;
  if (box.dataset.point !== String(point)) {
    box.dataset.point = point;
    const one = colourings[active], group = one.of[point];
    box.replaceChildren(thumb(point, 'div'), el('div', { class: 'line' }, dot(shade(group)), named(one.groups[group])), el('div', { class: 'muted' }, named(data.files[point])));
  }
  const width = 172, height = 220;
  box.style.left = `${event.clientX + 18 + width > innerWidth ? event.clientX - width - 6 : event.clientX + 18}px`;
  box.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height))}px`;
}
function show(point) {
  byId('tip').hidden = true;
  showLarge(point, el('dl', { class: 'facts-list' }, colourings.flatMap(one => [el('dt', {}, plain(one.name)), el('dd', {}, named(one.groups[one.of[point]]))])));
}

function legend() {
  const { groups, of } = colourings[active], sizes = new Array(groups.length).fill(0);
  for (const group of of) sizes[group]++;
  byId('legend').replaceChildren(...groups.map((name, group) => el('button',
    { type: 'button', 'aria-pressed': String(chosen === group), title: plain(name), onclick: () => { chosen = chosen === group ? null : group; legend(); draw(); } },
    dot(shade(group)), el('span', { class: 'name' }, named(name)), el('span', { class: 'number' }, sizes[group].toLocaleString('en')))));
}
byId('colouring').addEventListener('change', event => { active = Number(event.target.value); chosen = null; legend(); draw(); });
const reset = () => { Object.assign(view, { x: 0.5, y: 0.5, zoom: 1 }); draw(); };
byId('reset').addEventListener('click', reset);
new ResizeObserver(draw).observe(byId('panels'));
document.addEventListener('theme', draw);
legend();
draw();
