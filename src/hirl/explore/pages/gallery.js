// Groups of images under headings; groups are made as one scrolls.
byId('title').append(named(data.title));
const main = byId('main');
main.append(el('h1', {}, named(data.heading)), el('p', { class: 'facts' }, data.facts.map(fact => el('span', {}, plain(fact)))));
if (data.about) main.append(el('p', { class: 'about' }, plain(data.about)));
if (!data.groups.length) main.append(el('p', { class: 'empty' }, 'Nothing was found.'));
const images = data.groups.map(group => Array.from(numbers(group.images, Int32Array)));

let shown = [0, 0];
function section(group, at) {
  const tiles = images[at].map((image, place) => {
    const mark = group.marks[place], button = tile(image, () => show(at, place), named(group.captions[place] || data.files[image]));
    if (mark) { button.classList.add(mark); button.append(el('span', { class: `mark ${mark}` }, plain(mark))); }
    return el('li', {}, button);
  });
  return el('section', {}, el('h2', {}, named(group.heading)), group.note ? el('p', { class: 'note' }, plain(group.note)) : '', el('ul', { class: tiles.length < 6 ? 'tiles few' : 'tiles' }, tiles));
}
const end = el('div', { class: 'more' });
main.append(end);
let made = 0;
function extend() {
  const next = data.groups.slice(made, made + 40);
  end.before(...next.map((group, place) => section(group, made + place)));
  made += next.length;
  if (made >= data.groups.length) watch.disconnect();
}
const watch = new IntersectionObserver(entries => { if (entries.some(entry => entry.isIntersecting)) extend(); }, { rootMargin: '900px' });
extend();
if (made < data.groups.length) watch.observe(end);

function show(at, place) {
  shown = [at, place];
  byId('previous').disabled = place === 0;
  byId('next').disabled = place === images[at].length - 1;
  showLarge(images[at][place]);
}
whenTurned(step => { const [at, place] = shown; if (images[at][place + step] !== undefined) show(at, place + step); });
