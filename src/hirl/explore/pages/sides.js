// Two pages beside each other. Each is a page of its own; nothing passes between them.
byId('title').append(named(data.title));
for (const side of data.sides) {
  byId('main').append(el('section', { class: 'side' },
    el('header', {}, el('h2', {}, plain(side.name)), el('p', { class: 'small muted', title: plain(side.about) }, named(side.about))),
    el('iframe', { src: side.page, title: plain(side.name) })));
}
const figures = Object.entries(data.figures);
if (figures.length) {
  byId('figures').hidden = false;
  byId('figures').append(comparison(figures));
}
