// The tree page. A node is [level, number], level 0 the finest; its key is "level-number", as in the address.
const L = data.levels.length, N = data.files.length;
const leaves = numbers(data.leaves, Int32Array);
const parents = data.parents.map(text => numbers(text, Int32Array));
const typical = data.typical.map(text => numbers(text, Uint16Array));
const margins = data.margins.map(text => numbers(text, Uint16Array));
const rows = numbers(data.rows, Int32Array);
const labels = data.labels.map(level => ({ names: level.names, of: numbers(level.of, Int32Array) }));

// For every level the node of each image, and for every node its images, the most typical first.
const nodeOf = [leaves];
for (let level = 1; level < L; level++) nodeOf.push(leaves.map((_, image) => parents[level - 1][nodeOf[level - 1][image]]));
const members = data.levels.map((size, level) => {
  const found = Array.from({ length: size }, () => []);
  nodeOf[level].forEach((node, image) => found[node].push(image));
  return found;
});
const ordered = data.levels.map(() => new Map());
const all = Array.from({ length: N }, (_, image) => image);
function imagesOf(level, node) {
  if (level === L) return all;
  if (!ordered[level].has(node)) ordered[level].set(node, members[level][node].sort((a, b) => typical[level][b] - typical[level][a] || a - b));
  return ordered[level].get(node);
}
const sizeOf = (level, node) => level === L ? N : members[level][node].length;
const bySize = level => (a, b) => sizeOf(level, b) - sizeOf(level, a) || a - b;
const below = data.levels.map((_, level) => level === 0 ? null : (() => {
  const found = Array.from({ length: data.levels[level] }, () => []);
  parents[level - 1].forEach((parent, child) => { if (sizeOf(level - 1, child)) found[parent].push(child); });
  found.forEach(children => children.sort(bySize(level - 1)));
  return found;
})());
const tops = Array.from({ length: data.levels[L - 1] }, (_, node) => node).filter(node => sizeOf(L - 1, node)).sort(bySize(L - 1));
const childrenOf = (level, node) => level === L ? tops : level === 0 ? [] : below[level][node];
const parentOf = (level, node) => level >= L - 1 ? [L, 0] : [level + 1, parents[level][node]];
const pathOf = (level, node) => level === L ? [] : [...pathOf(...parentOf(level, node)), [level, node]];
const covers = (level, node) => imagesOf(level, node).slice(0, data.covers);
const key = (level, node) => `${level}-${node}`;
const link = (level, node) => level === L ? '#' : `#node=${key(level, node)}`;

// Names that people give to nodes.
const STORE = `hirl.names.${data.tree}`;
const names = new Map(Object.entries(data.names));
try { for (const [node, name] of Object.entries(JSON.parse(storage.get(STORE) || '{}'))) name ? names.set(node, name) : names.delete(node); } catch { /* not ours: begin anew */ }
function keepNames() {
  const kept = Object.fromEntries(names);
  for (const node of Object.keys(data.names)) if (!names.has(node)) kept[node] = ''; // taken away again
  if (!storage.set(STORE, JSON.stringify(kept))) notice('This browser does not let the page keep names: export them before you close it.');
}
function rename(level, node, name) {
  const trimmed = name.trim();
  trimmed ? names.set(key(level, node), trimmed) : names.delete(key(level, node));
  keepNames();
  for (const item of document.querySelectorAll(`li[data-node="${key(level, node)}"] > .branch .name`)) item.replaceChildren(title(level, node));
}

// What a node holds, by label.
// At first the finest level that has few classes, for many colours tell little.
let labelLevel = Math.max(0, labels.findIndex(level => level.names.length <= 12));
const counted = new Map();
function composition(level, node) {
  const place = `${labelLevel}/${key(level, node)}`;
  if (!counted.has(place)) {
    const counts = new Map();
    for (const image of level === L ? all : members[level][node]) {
      const label = labels[labelLevel].of[image];
      counts.set(label, (counts.get(label) || 0) + 1);
    }
    counted.set(place, [...counts].sort((a, b) => b[1] - a[1] || a[0] - b[0]));
  }
  return counted.get(place);
}
const colourOf = label => colour(label, labels[labelLevel].names.length);
function classItem(label, number, total) {
  return el('li', {}, dot(colourOf(label)), el('span', {}, named(labels[labelLevel].names[label]), ` ${percent(number / total)}`));
}

/** The name people gave a node, or a suggestion, or its number. */
function title(level, node) {
  if (level === L) return document.createTextNode('All images');
  const name = names.get(key(level, node)), suggestion = suggested(level, node);
  if (name) return named(name);
  return suggestion ? el('em', { title: `${plain(suggestion.name)}, suggested from ${suggestion.origin}` }, named(suggestion.name)) : el('span', { class: 'unnamed' }, `Node ${key(level, node)}`);
}
const suggestions = new Map(Object.entries(data.suggested).map(([node, [name, origin]]) => [node, { name, origin }]));
function suggested(level, node) { return suggestions.get(key(level, node)); }
const calledOf = (level, node) => names.get(key(level, node)) || suggested(level, node)?.name || '';

// The tree at the left: branches are made when they are opened.
const items = new Map();
function branch(level, node) {
  const children = childrenOf(level, node);
  const arrow = el('span', { class: 'arrow', 'aria-hidden': true }, children.length ? icon('right') : '');
  const label = el('a', { class: 'branch', href: link(level, node), tabindex: -1 }, arrow, thumb(imagesOf(level, node)[0]),
    el('span', { class: 'name' }, title(level, node)), el('span', { class: 'number' }, sizeOf(level, node).toLocaleString('en')));
  const item = el('li', { role: 'treeitem', tabindex: -1, 'aria-level': L - level, 'aria-selected': 'false', 'aria-expanded': children.length ? 'false' : null, 'data-node': key(level, node) }, label);
  arrow.addEventListener('click', event => { event.preventDefault(); event.stopPropagation(); expand(level, node, item.getAttribute('aria-expanded') !== 'true'); });
  items.set(key(level, node), item);
  return item;
}
function expand(level, node, open) {
  const item = items.get(key(level, node)), children = childrenOf(level, node);
  if (!item || !children.length) return;
  item.setAttribute('aria-expanded', open);
  let group = item.querySelector(':scope > ul');
  if (open && !group) item.append(group = el('ul', { role: 'group' }, children.map(child => branch(level - 1, child))));
  if (group) group.hidden = !open;
}
function select(level, node, focus) {
  for (const step of pathOf(level, node).slice(0, -1)) expand(...step, true);
  const item = items.get(key(level, node));
  for (const other of document.querySelectorAll('#tree [aria-selected="true"]')) other.setAttribute('aria-selected', 'false');
  for (const other of document.querySelectorAll('#tree [tabindex="0"]')) other.tabIndex = -1;
  const stop = item || items.get(key(L - 1, tops[0]));
  stop.tabIndex = 0;
  if (!item) return;
  item.setAttribute('aria-selected', 'true');
  const box = byId('outline'), line = item.firstElementChild.getBoundingClientRect(), frame = box.getBoundingClientRect();
  if (line.top < frame.top + 8 || line.bottom > frame.bottom - 8) box.scrollTop += line.top - frame.top - frame.height / 3;
  if (focus) item.focus({ preventScroll: true });
}
const parse = text => /^\d+-\d+$/.test(text) ? text.split('-').map(Number) : [-1, -1];
byId('tree').addEventListener('keydown', event => {
  const item = event.target.closest('[role="treeitem"]');
  if (!item || typing(event)) return;
  const shown = [...document.querySelectorAll('#tree [role="treeitem"]')].filter(one => !one.closest('ul[hidden]'));
  const at = shown.indexOf(item), [level, node] = parse(item.dataset.node), open = item.getAttribute('aria-expanded') === 'true';
  let to = null;
  if (event.key === 'ArrowDown') to = shown[at + 1];
  else if (event.key === 'ArrowUp') to = shown[at - 1];
  else if (event.key === 'Home') to = shown[0];
  else if (event.key === 'End') to = shown.at(-1);
  else if (event.key === 'ArrowRight') { if (!open) expand(level, node, true); else to = shown[at + 1]; }
  else if (event.key === 'ArrowLeft') { if (open) expand(level, node, false); else if (level < L - 1) to = items.get(key(...parentOf(level, node))); }
  else if (event.key === 'Enter' || event.key === ' ') to = item;
  else return;
  event.preventDefault();
  event.stopPropagation();
  if (to) { go(...parse(to.dataset.node)); to.focus({ preventScroll: true }); to.scrollIntoView({ block: 'nearest' }); }
});

// The node on the right.
let here = [L, 0], order = 'most', list = all, listName = 'all images', shownNow = [];
const ORDERS = { most: 'Most typical', least: 'Least typical', unsure: 'Unsure', name: 'By name' };
const ordersAt = level => Object.keys(ORDERS).filter(name => level < L || name === 'name' || name === 'unsure');
const orderAt = level => ordersAt(level).includes(order) ? order : 'name';
function go(level, node) { // at once, so that the next key finds the new place
  if ((location.hash || '#') !== link(level, node)) history.pushState(null, '', link(level, node));
  route();
  scrollTo(0, 0);
}

function sorted(level, node) {
  const images = imagesOf(level, node);
  const by = orderAt(level), margin = margins[Math.min(level, L - 1)];
  if (by === 'least') return [...images].reverse();
  if (by === 'unsure') return [...images].sort((a, b) => margin[a] - margin[b] || a - b);
  if (by === 'name') return [...images].sort((a, b) => rows[a] - rows[b]);
  return images;
}

function showNode(level, node) {
  here = [level, node];
  list = sorted(level, node);
  listName = level === L ? 'all images' : calledOf(level, node) || `node ${key(level, node)}`;
  const children = childrenOf(level, node), size = sizeOf(level, node), main = byId('main');
  main.replaceChildren();
  if (level < L) {
    const way = [[L, 0], ...pathOf(level, node)];
    main.append(el('nav', { 'aria-label': 'Path' }, el('ol', { class: 'crumbs' }, way.slice(0, -1).map(step => el('li', {}, el('a', { href: link(...step) }, title(...step)))))));
  }
  main.append(heading(level, node));
  const facts = [count(size, 'image')];
  if (level < L) facts.push(`${percent(size / N)} of all`);
  if (children.length) facts.push(level === L ? `${data.levels.map(nodes => nodes.toLocaleString('en')).reverse().join(' › ')} nodes, coarse to fine` : count(children.length, level === 1 ? 'leaf' : 'child', level === 1 ? 'leaves' : 'children'));
  if (level < L) facts.push(level === 0 ? 'leaf' : `level ${level}`);
  main.append(el('p', { class: 'facts' }, facts.map(fact => el('span', {}, fact))));
  if (level === L) for (const note of notes()) main.append(el('p', { class: 'note' }, note));
  if (labels.length) main.append(labelSection(level, node));
  if (children.length) main.append(childSection(level, children));
  main.append(imageSection(level, node));
}
function notes() {
  const found = [];
  for (const text of [data.note, data.origin]) if (text) found.push(plain(text[0].toUpperCase() + text.slice(1)));
  if (data.unreadable.length) found.push(el('details', {}, el('summary', {}, `${count(data.unreadable.length, 'image')} could not be read and ${data.unreadable.length === 1 ? 'is' : 'are'} left out`), el('ul', {}, data.unreadable.slice(0, 200).map(path => el('li', {}, named(path))))));
  return found;
}

function heading(level, node) {
  const row = el('div', { class: 'heading-row' }), text = el('h1', { id: 'name' }, title(level, node));
  if (level === L) text.replaceChildren(named(data.title));
  row.append(text);
  if (level === L) return row;
  const edit = el('button', { class: 'button plain', type: 'button', id: 'rename', onclick: begin }, icon('pen'), names.has(key(level, node)) ? 'Rename' : 'Name');
  row.append(edit);
  const suggestion = names.has(key(level, node)) ? null : suggested(level, node);
  if (suggestion) row.append(el('button', { class: 'button plain', type: 'button', id: 'accept', onclick: () => { rename(level, node, suggestion.name); showNode(level, node); byId('rename').focus(); } }, icon('check'), 'Keep'),
    el('span', { class: 'small muted' }, `suggested from ${suggestion.origin}`));
  function begin() {
    const field = el('input', { class: 'field', id: 'name-field', 'aria-label': 'Name of this node', maxlength: 200, placeholder: calledOf(level, node) || `Node ${key(level, node)}`, autocomplete: 'off', value: names.get(key(level, node)) || '' });
    const end = keep => {
      field.onblur = null;
      if (keep) rename(level, node, field.value);
      showNode(level, node);
      byId('rename').focus();
    };
    field.addEventListener('keydown', event => {
      event.stopPropagation();
      if (event.key !== 'Enter' && event.key !== 'Escape') return;
      event.preventDefault(); // or the key would press the button that gets the focus
      end(event.key === 'Enter');
    });
    field.onblur = () => end(true);
    row.replaceChildren(field);
    field.select();
    field.focus();
  }
  return row;
}

function labelSection(level, node) {
  const found = composition(level, node), total = sizeOf(level, node), most = found.slice(0, 8);
  const bar = el('div', { class: 'composition', role: 'img', 'aria-label': most.map(([label, number]) => `${plain(labels[labelLevel].names[label])} ${percent(number / total)}`).join(', ') });
  for (const [label, number] of found.slice(0, 40)) {
    const part = el('span', { title: `${plain(labels[labelLevel].names[label])}: ${number}` });
    part.style.flex = number;
    part.style.background = colourOf(label);
    bar.append(part);
  }
  const shown = found.slice(0, 40).reduce((sum, [, number]) => sum + number, 0);
  if (shown < total) { const rest = el('span', { class: 'rest', title: 'other classes' }); rest.style.flex = total - shown; bar.append(rest); }
  const choice = labels.length < 2 ? '' : el('select', { class: 'field small', 'aria-label': 'Level of the labels', onchange: event => { labelLevel = Number(event.target.value); showNode(level, node); } },
    labels.map((one, place) => el('option', { value: place, selected: place === labelLevel }, count(one.names.length, 'class', 'classes'))));
  return el('section', { id: 'labels' }, el('div', { class: 'section-bar' }, el('h2', {}, 'Labels'), choice), bar,
    el('ul', { class: 'classes' }, most.map(([label, number]) => classItem(label, number, total)), found.length > most.length ? el('li', {}, `and ${count(found.length - most.length, 'other class', 'other classes')}`) : ''));
}

/** As long as the node is large, in the colours of its classes. */
function sizeBar(level, node, share) {
  const bar = el('div', {}), total = sizeOf(level, node);
  bar.style.width = `${100 * share}%`;
  if (labels.length) {
    const most = composition(level, node).slice(0, 12);
    for (const [label, number] of [...most, [null, total - most.reduce((sum, [, number]) => sum + number, 0)]]) if (number) {
      const part = el('span', { class: label === null ? 'rest' : null });
      part.style.flex = number;
      if (label !== null) part.style.background = colourOf(label);
      bar.append(part);
    }
  } else bar.append(el('span', { class: 'all' }));
  return el('div', { class: 'share', 'aria-hidden': true }, bar);
}

function childSection(level, children) {
  const largest = sizeOf(level - 1, children[0]);
  const cards = children.map(child => {
    const total = sizeOf(level - 1, child), most = labels.length ? composition(level - 1, child).slice(0, 2) : [];
    return el('li', {}, el('a', { class: 'card', href: link(level - 1, child), 'data-node': key(level - 1, child) },
      el('div', { class: 'covers' }, covers(level - 1, child).map(image => thumb(image))),
      el('div', { class: 'text' }, el('div', { class: 'line' }, el('span', { class: 'name' }, title(level - 1, child)), el('span', { class: 'number' }, total.toLocaleString('en'))),
        most.length ? el('div', { class: 'mostly' }, most.flatMap(([label, number], place) => [place ? ' · ' : '', named(labels[labelLevel].names[label]), ` ${percent(number / total)}`])) : ''),
      sizeBar(level - 1, child, total / largest)));
  });
  const what = level === 1 ? 'Leaves' : 'Children';
  return el('section', { id: 'children' }, el('div', { class: 'section-bar' }, el('h2', {}, level === L ? 'Coarsest nodes' : what), el('span', { class: 'muted small' }, `${children.length.toLocaleString('en')}, largest first`)), el('ul', { class: 'cards' }, cards));
}

function imageSection(level, node) {
  const tabs = el('div', { class: 'tabs', role: 'tablist', 'aria-label': 'Order of the images' }, ordersAt(level).map(name =>
    el('button', { class: 'button', role: 'tab', type: 'button', 'aria-selected': String(orderAt(level) === name), 'data-order': name, title: name === 'unsure' ? 'Those nearest to another node first' : null, onclick: () => setOrder(name) }, ORDERS[name])));
  return el('section', { id: 'images' }, el('div', { class: 'section-bar' }, el('h2', {}, 'Images'), tabs), grid(list));
}
function setOrder(name) {
  order = name;
  const [level, node] = here;
  list = sorted(level, node);
  byId('images').replaceWith(imageSection(level, node));
}

/** Tiles of a list, more of them as one scrolls. */
function grid(images, captions = false) {
  const box = el('ul', { class: 'tiles' }), end = el('div', { class: 'more' });
  let made = 0;
  const extend = () => {
    const next = images.slice(made, made + 60);
    box.append(...next.map((image, place) => { const at = made + place; return el('li', {}, tile(image, () => view(at), captions ? named(data.files[image]) : undefined)); }));
    made += next.length;
    if (made >= images.length) { watch.disconnect(); end.remove(); }
  };
  const watch = new IntersectionObserver(entries => { if (entries.some(entry => entry.isIntersecting)) extend(); }, { rootMargin: '800px' });
  extend();
  if (made < images.length) watch.observe(end);
  return el('div', {}, box, end);
}

// One image, large, with its path.
function view(at) {
  shownNow = list;
  const query = location.hash.replace(/[#&]?image=\d+/, '').replace(/^#?&?/, '');
  history.replaceState(null, '', `#${query ? query + '&' : ''}image=${rows[list[at]]}`);
  show(at);
}
let viewed = 0;
/** By how much the path is nearer than the best one through another node of the level. */
function marginText(level, image) {
  return data.levels[level] === 1 ? 'none: the only node' : (margins[level][image] / 65535 * 4 - 2).toFixed(3);
}
function show(at) {
  viewed = at;
  const image = shownNow[at];
  const facts = el('dl', { class: 'facts-list' });
  labels.forEach((level, place) => facts.append(el('dt', {}, labels.length > 1 ? `Label, ${count(level.names.length, 'class', 'classes')}` : 'Label'), el('dd', {}, named(level.names[level.of[image]]))));
  const path = pathOf(0, leaves[image]).map(([level, node]) => {
    const place = imagesOf(level, node).indexOf(image) + 1;
    return el('li', {}, el('a', { href: link(level, node), onclick: () => byId('viewer').close() },
      el('span', { class: 'thumbs' }, covers(level, node).slice(0, 3).map(one => thumb(one))),
      el('span', {}, el('span', { class: 'name' }, title(level, node)), el('br'), el('span', { class: 'small muted' }, `typicality rank ${place.toLocaleString('en')} of ${sizeOf(level, node).toLocaleString('en')}, margin ${marginText(level, image)}`))));
  });
  byId('previous').disabled = at === 0;
  byId('next').disabled = at === shownNow.length - 1;
  showLarge(image, el('div', {}, facts, el('h2', {}, 'Path, coarse to fine'), el('ol', { class: 'path' }, path),
    el('p', { class: 'small muted margin-note' }, 'Margin: how much nearer the image is to this path than to the best one through another node of the level (mean cosine). Near 0 it is unsure.')));
}
whenTurned(step => {
  const to = viewed + step;
  if (to < 0 || to >= shownNow.length) return;
  show(to);
  history.replaceState(null, '', location.hash.replace(/image=\d+/, `image=${rows[shownNow[to]]}`));
});
byId('viewer').addEventListener('close', () => {
  const query = location.hash.replace(/[#&]?image=\d+/, '').replace(/^#?&?/, '');
  history.replaceState(null, '', query ? `#${query}` : '#');
});

// Search.
const fold = text => text.normalize('NFKC').toLocaleLowerCase();
let folded = null;
function showSearch(text) {
  folded = folded || data.files.map((_, image) => fold(shortPath(image)));
  const wanted = fold(text), main = byId('main');
  list = all.filter(image => folded[image].includes(wanted)).sort((a, b) => rows[a] - rows[b]);
  listName = 'search';
  here = [L, 0];
  const called = new Map([...[...suggestions].map(([node, one]) => [node, one.name]), ...names]);
  const nodes = [...called].filter(([node, name]) => fold(name).includes(wanted) || node === text.trim()).map(([node]) => parse(node));
  const direct = /^\s*\d+-\d+\s*$/.test(text) ? parse(text.trim()) : null;
  if (direct && exists(...direct) && !nodes.some(([level, node]) => level === direct[0] && node === direct[1])) nodes.push(direct);
  const usable = nodes.filter(([level, node]) => exists(level, node));
  main.replaceChildren(el('h1', {}, 'Search'), el('p', { class: 'facts', id: 'found' }, el('span', {}, count(list.length, 'file')), usable.length ? el('span', {}, count(usable.length, 'node')) : ''));
  if (usable.length) main.append(el('section', {}, el('ul', { class: 'cards' }, usable.map(([level, node]) => el('li', {}, el('a', { class: 'card', href: link(level, node) }, el('div', { class: 'covers' }, covers(level, node).map(image => thumb(image))), el('div', { class: 'text' }, el('div', { class: 'line' }, el('span', { class: 'name' }, title(level, node)), el('span', { class: 'number' }, sizeOf(level, node).toLocaleString('en'))))))))));
  if (list.length) main.append(el('section', { id: 'images' }, grid(list, true)));
  if (!list.length && !usable.length) main.append(el('p', { class: 'empty' }, 'Nothing has this in its name.'));
}
const field = byId('search');
let before = '#';
field.addEventListener('input', () => {
  const text = field.value;
  if (!/^#search=/.test(location.hash)) before = location.hash || '#';
  history.replaceState(null, '', text.trim() ? `#search=${encodeURIComponent(text)}` : before);
  route();
});
field.addEventListener('keydown', event => {
  if (event.key === 'Escape') { field.value = ''; field.dispatchEvent(new Event('input')); field.blur(); event.preventDefault(); }
  if (event.key === 'Enter') document.querySelector('#main .card, #main .tile')?.focus();
});

// The address says what is shown: #node=2-17, #search=cat, and &image=123 (a row of the data set).
const exists = (level, node) => Number.isInteger(level) && Number.isInteger(node) && level >= 0 && level < L && node >= 0 && node < data.levels[level] && sizeOf(level, node) > 0;
let rowAt = null;
function route() {
  const query = new URLSearchParams(location.hash.slice(1));
  const search = query.get('search'), wanted = query.get('node'), image = query.get('image');
  if (search !== null) { if (document.activeElement !== field) field.value = search; }
  else if (document.activeElement !== field || !field.value.trim()) field.value = '';
  let [level, node] = wanted === null ? [L, 0] : parse(wanted);
  if (wanted !== null && !exists(level, node)) { notice(`There is no node ${plain(wanted)} with images in this tree.`); [level, node] = [L, 0]; }
  if (search !== null && search.trim()) showSearch(search); else showNode(level, node);
  select(level, node, byId('tree').contains(document.activeElement));
  document.title = level < L && calledOf(level, node) ? `${plain(calledOf(level, node))} · ${plain(data.title)}` : `${plain(data.title)} · tree`;
  if (image !== null) {
    rowAt = rowAt || new Map(Array.from(rows, (row, place) => [row, place]));
    const place = rowAt.get(Number(image));
    if (place === undefined) notice(`There is no readable image ${plain(image)} here.`);
    else { const at = list.indexOf(place); shownNow = at < 0 ? [place] : list; show(at < 0 ? 0 : at); }
  } else if (byId('viewer').open) byId('viewer').close();
  outline(false);
}
addEventListener('hashchange', () => { route(); scrollTo(0, 0); });
byId('title').addEventListener('click', event => { event.preventDefault(); field.value = ''; go(L, 0); });

// Keys for the whole page.
addEventListener('keydown', event => {
  if (typing(event) || document.querySelector('dialog[open]')) return;
  const [level, node] = here, beside = level === L ? [] : childrenOf(...parentOf(level, node));
  const step = by => { const to = beside[beside.indexOf(node) + by]; if (to !== undefined) go(level, to); };
  const keys = {
    ArrowLeft: () => level < L && go(...parentOf(level, node)),
    ArrowRight: () => childrenOf(level, node).length && go(level - 1, childrenOf(level, node)[0]),
    j: () => step(1), k: () => step(-1), h: () => go(L, 0), n: () => byId('rename')?.click(), '?': () => byId('keys').showModal(),
    t: () => { const ways = ordersAt(level); setOrder(ways[(ways.indexOf(orderAt(level)) + 1) % ways.length]); },
    '/': () => field.focus(), Escape: () => outline(false),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
byId('help').addEventListener('click', () => byId('keys').showModal());
function outline(open) {
  byId('outline').classList.toggle('open', open);
  byId('outline-toggle').setAttribute('aria-expanded', open);
  byId('veil').hidden = !open;
}
byId('outline-toggle').addEventListener('click', () => outline(!byId('outline').classList.contains('open')));
byId('veil').addEventListener('click', () => outline(false));

// Export and import.
const safe = text => text.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || 'files';
const exact = text => text.isWellFormed && !text.isWellFormed() ? plain(text) : text;
const nameOf = (level, node) => names.get(key(level, node)) || '';
const assigned = () => [...all].sort((a, b) => rows[a] - rows[b]).map(image => {
  const row = { row: rows[image], file: exact(longPath(image)) };
  labels.forEach((level, place) => { row[`label_${place}`] = level.names[level.of[image]]; });
  for (let level = 0; level < L; level++) { row[`level_${level}`] = nodeOf[level][image]; Object.assign(row, { [`name_${level}`]: nameOf(level, nodeOf[level][image]), [`suggested_${level}`]: suggested(level, nodeOf[level][image])?.name || '' }); }
  return row;
});
const table = rows => csv(rows.length ? [Object.keys(rows[0]), ...rows.map(Object.values)] : []);
const namesNow = () => Object.fromEntries([...names].sort());
const GIVEN = 'given'; // the origin of names that people gave
const allNames = () => [...new Map([...suggestions, ...[...names].map(([node, name]) => [node, { name, origin: GIVEN }])])].sort();
const filesNow = () => list.map(image => exact(longPath(image)));
const EXPORTS = {
  'names-json': () => ['names.json', JSON.stringify({ format: 'hirl names 1', tree: data.tree, names: namesNow(), suggested: data.suggested }, null, 1), 'application/json'],
  'names-csv': () => ['names.csv', table(allNames().map(([node, { name, origin }]) => ({ level: parse(node)[0], node: parse(node)[1], images: exists(...parse(node)) ? sizeOf(...parse(node)) : 0, name, origin }))), 'text/csv'],
  'assignments-csv': () => ['assignments.csv', table(assigned()), 'text/csv'],
  'assignments-json': () => ['assignments.json', JSON.stringify({ tree: data.tree, names: namesNow(), images: assigned() }), 'application/json'],
  'files-txt': () => [`${safe(listName)}.txt`, filesNow().map(file => /[\r\n]/.test(file) ? plain(file) : file).join('\n') + '\n', 'text/plain'],
  'files-csv': () => [`${safe(listName)}.csv`, table(list.map(image => ({ row: rows[image], file: exact(longPath(image)) }))), 'text/csv'],
  'files-json': () => [`${safe(listName)}.json`, JSON.stringify(filesNow(), null, 1), 'application/json'],
};
for (const button of document.querySelectorAll('[data-export]')) button.addEventListener('click', () => {
  if (button.dataset.export.startsWith('names') && !names.size && !suggestions.size) notice('No node has a name yet: open one and press n.');
  else download(...EXPORTS[button.dataset.export]());
});
byId('import').addEventListener('click', () => byId('import-file').click());
byId('import-file').addEventListener('change', async event => {
  const file = event.target.files[0];
  event.target.value = '';
  if (!file) return;
  const text = await file.text();
  let found;
  try { found = file.name.toLowerCase().endsWith('.csv') ? { names: namesOfCsv(text) } : JSON.parse(text); } catch { found = null; }
  const entries = found && found.names && typeof found.names === 'object' ? Object.entries(found.names).filter(([node, name]) => typeof name === 'string' && name.trim() && exists(...parse(node))) : [];
  if (found && found.tree && found.tree !== data.tree) notice('These names belong to another tree; nothing was imported.');
  else if (!entries.length) notice('There are no names of nodes of this tree in the file.');
  else {
    for (const [node, name] of entries) names.set(node, name.trim());
    keepNames();
    for (const [node] of entries) for (const item of document.querySelectorAll(`li[data-node="${node}"] > .branch .name`)) item.replaceChildren(title(...parse(node)));
    route();
    notice(`${count(entries.length, 'name')} imported.`);
  }
});
function namesOfCsv(text) {
  const cells = [];
  let row = [], cell = '', quoted = false;
  for (let at = 0; at < text.length; at++) {
    const c = text[at];
    if (quoted) { if (c !== '"') cell += c; else if (text[at + 1] === '"') { cell += '"'; at++; } else quoted = false; }
    else if (c === '"') quoted = true;
    else if (c === ',' || c === '\n') { row.push(cell.replace(/\r$/, '')); cell = ''; if (c === '\n') { cells.push(row); row = []; } }
    else cell += c;
  }
  if (cell || row.length) cells.push([...row, cell]);
  const head = cells.shift(), [level, node, name, origin] = ['level', 'node', 'name', 'origin'].map(column => head.indexOf(column));
  if (level < 0 || node < 0 || name < 0) throw new Error('other columns');
  return Object.fromEntries(cells.filter(one => one.length > name && (origin < 0 || one[origin] === GIVEN)).map(one => [`${one[level]}-${one[node]}`, one[name]]));
}

byId('title').append(named(data.title));
byId('tree').append(...tops.map(node => branch(L - 1, node)));
route();
