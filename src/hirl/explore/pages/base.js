// What all pages share. Names of files and classes are text: elements are built by `el`, never from markup.
const data = JSON.parse(document.getElementById('data').textContent);
const byId = id => document.getElementById(id);

function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== ''));
  return element;
}

const PATHS = {
  menu: 'M4 6h16M4 12h16M4 18h16', close: 'M6 6l12 12M18 6L6 18', pen: 'M4 20l1-4L16 5l3 3L8 19z', check: 'M5 12l5 5 9-10', down: 'M12 4v11M7 11l5 5 5-5M5 20h14',
  moon: 'M20 14.5A8.5 8.5 0 1 1 9.500 4a7 7 0 0 0 10.500 10.500z', sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.400 1.400M17.600 17.600L19 19M5 19l1.400-1.400M17.600 6.400L19 5',
  left: 'M15 5l-7 7 7 7', right: 'M9 5l7 7-7 7', help: 'M9.200 9a2.900 2.900 0 1 1 4.300 2.500c-1 .6-1.500 1.200-1.500 2.500M12 17.500v.1', search: 'M10.500 4a6.500 6.500 0 1 0 0 13 6.500 6.500 0 0 0 0-13zM15.500 15.500L20 20',
};
function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  path.setAttribute('d', PATHS[name]);
  svg.append(path);
  return svg;
}

/** Text that may hold anything, on one line: control characters and undecodable bytes are written out. */
function plain(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}\\]/gu, character => {
    const code = character.codePointAt(0);
    const known = { 9: '\\t', 10: '\\n', 13: '\\r', 92: '\\\\' }[code];
    if (known) return known;
    if (code >= 0xdc80 && code <= 0xdcff) return '\\x' + (code - 0xdc00).toString(16);
    return code < 256 ? '\\x' + code.toString(16).padStart(2, '0') : '\\u' + code.toString(16).padStart(4, '0');
  });
}
const named = text => el('bdi', {}, plain(text));
const count = (number, one, many) => `${number.toLocaleString('en')} ${number === 1 ? one : many || one + 's'}`;
const percent = share => share === 0 || share >= 0.0995 ? `${Math.round(100 * share)} %` : share < 0.001 ? '< 0.1 %' : `${(100 * share).toFixed(1)} %`;

function numbers(base64, Kind) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
  return new Kind(bytes.buffer);
}

// Images: their files and their thumbnails.
const folderOf = data.folderOf ? numbers(data.folderOf, Int32Array) : new Int32Array(0);
const joined = (...parts) => parts.filter(part => part !== '').join('/').replace(/^\/\//, '/');
/** Within the collection: what people read. */
const shortPath = image => joined(data.folders[folderOf[image]], data.files[image]);
/** As `hirl embed` writes it: what programs read. */
const longPath = image => joined(data.root, shortPath(image));
/** The file itself, where the page lies beside it; null where there is none. */
function originalOf(image) {
  if (data.link === null || data.link === undefined || location.protocol !== 'file:') return null;
  try {
    return joined(data.link, shortPath(image)).split('/').map(part => part === '..' ? part : encodeURIComponent(part)).join('/');
  } catch { return null; } // a name that is not UTF-8
}

const waiting = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) {
    waiting.unobserve(entry.target);
    entry.target.style.backgroundImage = `url("images/${entry.target.dataset.sheet}.webp")`;
  }
}, { rootMargin: '300px' });

/** A square with the thumbnail of an image; its sheet is loaded when it comes near the screen. */
function thumb(image, kind = 'span') {
  const { count: total, side, cell, columns, rows } = data.sheets;
  const perSheet = columns * rows, sheet = Math.floor(image / perSheet), place = image % perSheet;
  const inSheet = Math.min(perSheet, total - sheet * perSheet), height = Math.ceil(inSheet / columns);
  // Half a pixel is left off at each edge, lest a neighbour shine through when the browser resizes.
  const scale = cell / (side - 1), inset = 0.5 / (side - 1);
  const offset = (at, cells) => 100 * (at * scale + inset) / (cells * scale - 1 || 1);
  const element = el(kind, { class: 'thumb', 'data-sheet': sheet, 'data-image': image });
  element.style.backgroundSize = `${100 * columns * scale}% ${100 * height * scale}%`;
  element.style.backgroundPosition = `${offset(place % columns, columns)}% ${offset(Math.floor(place / columns), height)}%`;
  if (side < 48) element.style.imageRendering = 'pixelated';
  waiting.observe(element);
  return element;
}

function tile(image, onclick, caption) {
  const button = el('button', { class: 'tile', type: 'button', 'data-image': image, title: plain(shortPath(image)), 'aria-label': plain(shortPath(image)), onclick }, thumb(image));
  if (caption !== undefined) button.append(el('span', { class: 'caption' }, caption));
  return button;
}

/** A picture as large as there is: the file itself, or the thumbnail where it cannot be had. */
function largePicture(image) {
  const frame = el('div', { class: 'large' }), url = originalOf(image), small = thumb(image, 'div');
  frame.append(small);
  if (url) {
    const picture = el('img', { alt: plain(shortPath(image)), class: 'original', decoding: 'async' });
    picture.addEventListener('load', () => small.replaceWith(picture));
    picture.src = url;
  }
  return frame;
}

/** Shows an image in the dialog, large, with what else there is to say about it. */
function showLarge(image, ...about) {
  byId('viewer-name').replaceChildren(named(shortPath(image)));
  byId('viewer-body').replaceChildren(largePicture(image), ...about);
  if (!byId('viewer').open) byId('viewer').showModal();
}

/** Calls `turn` with -1 or 1 when the dialog's buttons or the arrow keys ask for the previous or the next image. */
function whenTurned(turn) {
  byId('previous').addEventListener('click', () => turn(-1));
  byId('next').addEventListener('click', () => turn(1));
  byId('viewer').addEventListener('keydown', event => {
    if (event.key === 'ArrowLeft') turn(-1); else if (event.key === 'ArrowRight') turn(1); else return;
    event.preventDefault();
  });
}

// Storage may be forbidden, as in a private window: the page then forgets, and works.
const storage = {
  get(key) { try { return localStorage.getItem(key); } catch { return null; } },
  set(key, value) { try { localStorage.setItem(key, value); return true; } catch { return false; } },
};

function notice(text) {
  document.querySelector('.notice')?.remove();
  const box = el('div', { class: 'notice', role: 'status' }, text);
  document.body.append(box);
  setTimeout(() => box.remove(), 5000);
}

function download(name, text, kind) {
  const url = URL.createObjectURL(new Blob([text], { type: `${kind};charset=utf-8` }));
  const link = el('a', { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
const csv = rows => rows.map(row => row.map(cell => {
  const text = String(cell ?? '');
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}).join(',') + '\r\n').join('');

// Light or dark: as the system, unless chosen here.
const system = matchMedia('(prefers-color-scheme: dark)');
let theme = storage.get('hirl.theme');
function applyTheme() {
  const dark = (theme || (system.matches ? 'dark' : 'light')) === 'dark';
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  byId('theme')?.replaceChildren(icon(dark ? 'sun' : 'moon'));
  document.dispatchEvent(new Event('theme'));
}
system.addEventListener('change', applyTheme);
byId('theme')?.addEventListener('click', () => {
  theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  storage.set('hirl.theme', theme);
  applyTheme();
});
applyTheme();

for (const holder of document.querySelectorAll('[data-icon]')) holder.prepend(icon(holder.dataset.icon));
for (const button of document.querySelectorAll('dialog [data-close]')) button.addEventListener('click', () => button.closest('dialog').close());
for (const dialog of document.querySelectorAll('dialog')) dialog.addEventListener('click', event => { if (event.target === dialog) dialog.close(); });

// Menus: a button and the box after it.
for (const menu of document.querySelectorAll('.menu')) {
  const button = menu.querySelector('button'), box = menu.querySelector('div');
  const show = open => { box.hidden = !open; button.setAttribute('aria-expanded', open); };
  button.addEventListener('click', () => show(box.hidden));
  box.addEventListener('click', () => show(false));
  document.addEventListener('click', event => { if (!menu.contains(event.target)) show(false); });
  menu.addEventListener('keydown', event => { if (event.key === 'Escape') { show(false); button.focus(); event.stopPropagation(); } });
  show(false);
}
const typing = event => event.target.matches('input, select, textarea') || event.ctrlKey || event.metaKey || event.altKey;

function dot(shade) {
  const element = el('span', { class: 'dot' });
  element.style.background = shade;
  return element;
}

/** Figures of the encoder that a run started from and of the adapted one. */
const comparison = (figures, attributes) => el('table', attributes,
  el('thead', {}, el('tr', {}, ['on training images; larger is better', 'start', 'adapted', 'a difference counts from'].map(name => el('th', {}, name)))),
  el('tbody', {}, figures.map(([figure, both]) => el('tr', {}, el('td', {}, plain(figure)), both.map(value => el('td', { class: 'number' }, plain(value)))))));

const PALETTE = ['#5b83ad', '#d99352', '#6a9f76', '#c46f6c', '#8f7bb0', '#97806b', '#cf8fb3', '#62a5a6', '#b3a64e', '#828993'];
/** A colour for class `index` of `total`, the same wherever it appears. */
const colour = (index, total) => total <= PALETTE.length ? PALETTE[index] : `oklch(${[64, 56, 72][index % 3]}% ${[0.1, 0.085, 0.09][index % 3]} ${((index * 137.508) % 360).toFixed(1)})`;
