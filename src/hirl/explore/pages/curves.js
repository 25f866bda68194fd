// Curves over epochs, drawn as SVG; the pointer reads all of them at one epoch.
const SVG = 'http://www.w3.org/2000/svg', WIDTH = 360, HEIGHT = 170, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 22;
function shape(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const written = (value, share) => share ? `${(100 * value).toFixed(Math.abs(value) < 0.1 ? 2 : 1)} %` : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : String(Number(value.toPrecision(4)));

/** Round steps between two values, about four of them. */
function ticks(low, high) {
  const rough = (high - low) / 5 || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(one => one * power).find(one => one >= rough), found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Number(at.toPrecision(8)));
  return found;
}

function chart(one, place) {
  const names = Object.keys(one.curves), every = names.flatMap(name => one.curves[name][1]);
  const first = 0, last = data.epochs || 1;
  let low = Math.min(...every), high = Math.max(...every);
  if (one.zero || (one.share && low < 0.25)) low = Math.min(0, low);
  if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
  const x = epoch => LEFT + (epoch - first) / (last - first || 1) * (WIDTH - LEFT - RIGHT);
  const y = value => TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM);
  const svg = shape('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': `${plain(one.title)} over ${written(last)} epochs` });
  for (const value of ticks(low, high)) svg.append(shape('line', { class: 'grid', x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }), shape('text', { class: 'scale', x: LEFT - 6, y: y(value) + 4, 'text-anchor': 'end' }, one.share ? `${Number((100 * value).toPrecision(3))} %` : written(value)));
  for (const epoch of ticks(first, last)) svg.append(shape('text', { class: 'scale', x: x(epoch), y: HEIGHT - 5, 'text-anchor': 'middle' }, written(epoch)));
  names.forEach((name, index) => {
    const [epochs, values] = one.curves[name];
    const line = epochs.length > 1 ? shape('path', { class: 'line', d: epochs.map((epoch, at) => `${at ? 'L' : 'M'}${x(epoch).toFixed(2)} ${y(values[at]).toFixed(2)}`).join('') }) : shape('circle', { cx: x(epochs[0]), cy: y(values[0]), r: 3 });
    line.style[epochs.length > 1 ? 'stroke' : 'fill'] = colour(index, 10);
    svg.append(line);
  });
  const pointer = shape('line', { class: 'pointer', y1: TOP, y2: HEIGHT - BOTTOM, visibility: 'hidden' });
  svg.append(pointer);
  const key = el('ul', { class: 'key' });
  const read = epoch => {
    key.replaceChildren(...names.map((name, index) => {
      const [epochs, values] = one.curves[name];
      let at = epochs.length - 1;
      if (epoch !== null) at = epochs.reduce((best, candidate, here) => Math.abs(candidate - epoch) < Math.abs(epochs[best] - epoch) ? here : best, 0);
      return el('li', {}, dot(colour(index, 10)), plain(name.replaceAll('_', ' ')), el('b', {}, written(values[at], one.share)));
    }), ...(epoch === null ? [] : [el('li', {}, `epoch ${written(epoch)}`)]));
    pointer.setAttribute('visibility', epoch === null ? 'hidden' : 'visible');
    if (epoch !== null) { pointer.setAttribute('x1', x(epoch)); pointer.setAttribute('x2', x(epoch)); }
  };
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    const epoch = Math.round((first + Math.min(1, Math.max(0, at)) * (last - first)) * 100) / 100;
    readers.forEach(other => other(epoch));
  });
  svg.addEventListener('pointerleave', () => readers.forEach(other => other(null)));
  readers.push(read);
  read(null);
  return el('section', { class: 'chart', id: `chart-${place}` }, el('h2', {}, plain(one.title)), el('p', { class: 'about' }, plain(one.about)), svg, key);
}

const readers = [];
byId('title').append(named(data.title));
byId('main').append(el('h1', {}, named(data.title)), el('p', { class: 'state' }, plain(data.state)), el('p', { class: 'state' }, plain(data.start)));
if (data.warnings.length) byId('main').append(el('ul', { class: 'warnings', 'aria-label': 'Warnings' }, data.warnings.map(one => el('li', {}, plain(one.text), el('span', { class: 'muted small' }, one.count > 1 ? ` (${one.count} times, last ${plain(one.when)})` : ` (${plain(one.when)})`)))));
byId('main').append(data.charts.length ? el('div', { class: 'charts' }, data.charts.map(chart)) : el('p', { class: 'state' }, 'The run has not reported anything yet.'));
const sides = Object.entries(data.adaptation);
if (sides.length) byId('main').append(el('h2', { class: 'part' }, 'The start and the adapted encoder'), comparison(sides, { id: 'adaptation' }));
const results = Object.entries(data.results);
if (results.length) byId('main').append(el('h2', { class: 'part' }, 'Results'), el('table', {}, el('tbody', {}, results.flatMap(([name, figures]) => Object.entries(figures).map(([figure, value], at) => el('tr', {}, el('th', {}, at ? '' : named(name)), el('td', {}, named(figure)), el('td', { class: 'number' }, plain(value))))))));
byId('main').append(el('h2', { class: 'part' }, 'Configuration'), el('pre', {}, data.config));
