"""The page's style sheet and its script, which shows values where the pointer is."""

CSS = """
:root { color-scheme: light dark; --bg: #fff; --box: #f6f7f9; --ink: #1b1f24; --quiet: #59636e;
  --edge: #d5dae0; --0: #0b62c4; --1: #c2410c; --2: #15803d; --3: #9333ea; --4: #b45309;
  --5: #0e7490;
  --6: #be185d; --7: #4d5560; --wrong: #b91c1c; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171b; --box: #1d2127; --ink: #e6e9ed;
  --quiet: #9aa5b1; --edge: #39414b; --0: #6cb0ff; --1: #ff9559; --2: #5cd68a; --3: #c99bff;
  --4: #f0b64d; --5: #4fd0e7; --6: #ff8bc0; --7: #b3bcc7; --wrong: #ff8080; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px 20px 60px; max-width: 1240px; background: var(--bg);
  color: var(--ink); font: 15px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 2px; } h2 { font-size: 1.15rem; margin: 34px 0 8px; }
h3 { font-size: 1rem; margin: 20px 0 6px; } h3 small { font-weight: normal; color: var(--quiet); }
p { margin: 6px 0; }
/* Names of right-to-left scripts do not reorder what stands beside them. */
b, span, td, th, code, .card figcaption { unicode-bidi: isolate; }
.quiet { color: var(--quiet); font-size: .9rem; }
.warning { border-left: 4px solid var(--1); padding-left: 10px; }
.tiles { display: grid; gap: 12px; margin-top: 12px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 250px), 1fr)); }
.tile { background: var(--box); border: 1px solid var(--edge); border-radius: 8px;
  padding: 12px 16px; }
.tile h2 { margin: 0; font-size: .85rem; color: var(--quiet); text-transform: uppercase;
  letter-spacing: .05em; }
.tile .figure { font-size: 1.75rem; font-weight: 650; margin: 2px 0 6px; line-height: 1.2;
  font-variant-numeric: tabular-nums; }
.tile ul { margin: 0; padding: 0; list-style: none; font-size: .88rem; }
.tile li + li { margin-top: 3px; color: var(--quiet); }
figure { margin: 0; min-width: 0; } figcaption { font-size: .88rem; } svg { display: block;
  width: 100%; }
.charts { display: grid; gap: 18px; grid-template-columns: repeat(auto-fit, minmax(min(100%,
  420px), 1fr)); }
.chart { break-inside: avoid; } .chart text { font-size: 12px; fill: var(--ink); }
.chart text.note { fill: var(--quiet); } .chart svg:focus { outline: 1px solid var(--edge); }
.halo { paint-order: stroke; stroke: var(--bg); stroke-width: 3px; }
.legend { margin-left: 14px; display: inline-block; }
.key { display: inline-block; width: 14px; height: 10px; margin-right: 6px; border-radius: 2px;
  background: var(--c); }
.key.dashed { background: repeating-linear-gradient(90deg, var(--c) 0 4px, transparent 4px 6px); }
.c0 { --c: var(--0); } .c1 { --c: var(--1); } .c2 { --c: var(--2); } .c3 { --c: var(--3); }
.c4 { --c: var(--4); } .c5 { --c: var(--5); } .c6 { --c: var(--6); } .c7 { --c: var(--7); }
.line { fill: none; stroke: var(--c); stroke-width: 2; } .line.dashed { stroke-dasharray: 5 4; }
.line.faint { stroke-width: 1; opacity: .35; } .dot, .piece { fill: var(--c); }
.interval { fill: var(--c); opacity: .16; } .grid { stroke: var(--edge); stroke-width: .7; }
.axis { stroke: var(--quiet); } .level { stroke: var(--quiet); stroke-dasharray: 2 3; }
.band { fill: var(--quiet); } .band0 { opacity: .05; } .band1 { opacity: .13; }
.cursor { stroke: var(--quiet); }
.tip { position: absolute; pointer-events: none; background: var(--bg);
  border: 1px solid var(--edge);
  border-radius: 6px; padding: 5px 9px; font-size: 13px; white-space: pre; z-index: 2;
  font-variant-numeric: tabular-nums; max-width: 90vw; overflow: hidden; }
.switch { margin: 4px 0; } .switch input { margin: 0 5px 0 0; } .switch label {
  margin-right: 16px; }
body:has(#x-epoch:checked) .train_seconds, body:has(#x-train_seconds:checked) .epoch {
  display: none; }
.bar { margin: 6px 0; } .bar svg { height: 26px; border-radius: 4px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: 3px 10px; text-align: left; border-bottom: 1px solid var(--edge); }
thead th { color: var(--quiet); font-weight: 600; font-size: .85rem; }
tbody th { font-weight: normal; }
.numbers td { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.numbers thead th + th { text-align: right; } .numbers thead th { overflow-wrap: normal; }
.confused td:first-of-type, .confused thead th:nth-of-type(2) { text-align: left;
  white-space: normal; }
.facts th { color: var(--quiet); white-space: nowrap; vertical-align: top; } .facts thead {
  display: none; }
code { font-size: .88em; }
.pair { display: grid; gap: 26px; grid-template-columns: repeat(auto-fit, minmax(min(100%,
  400px), 1fr)); }
.confusion td { text-align: center; white-space: nowrap; padding: 3px 6px; min-width: 30px;
  border: 1px solid var(--edge);
  font-variant-numeric: tabular-nums; }
.confusion td.right { background: color-mix(in srgb, var(--0) calc(var(--v) * 45%), transparent); }
.confusion td.wrong { background: color-mix(in srgb, var(--wrong) calc(var(--v) * 90%),
  transparent); }
.confusion thead span { writing-mode: vertical-rl; max-height: 130px; overflow: hidden; }
.confusion thead th { padding: 3px 6px; text-align: center; vertical-align: bottom; }
.confusion tbody th { max-width: 150px; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }
.share { background: linear-gradient(90deg, color-mix(in srgb, var(--0) 28%, transparent)
  calc(var(--v) * 100%), transparent 0); }
.matrix { width: 100%; max-width: 560px; image-rendering: pixelated;
  border: 1px solid var(--edge); }
.cards { display: grid; gap: 10px; grid-template-columns: repeat(auto-fill, minmax(88px, 1fr)); }
.card { break-inside: avoid; border: 1px solid var(--edge); border-radius: 6px; padding: 6px; }
.card.wrong { border-color: var(--wrong); } .card img { width: 100%; height: auto; display: block; }
.card figcaption { font-size: .72rem; line-height: 1.3; margin-top: 4px; }
.card small { display: block; color: var(--quiet); } img.pixels { image-rendering: pixelated; }
.filters { display: flex; flex-wrap: wrap; gap: 4px; }
.filters img { width: 40px; height: 40px; image-rendering: pixelated; }
@media (prefers-color-scheme: dark) { .matrix { filter: invert(1); } }
@media (max-width: 500px) { body { padding: 12px; } .tiles { gap: 8px; } .tile {
  padding: 8px 12px; } .facts th { white-space: normal; } .facts th, .facts td {
  padding: 3px 6px; } }
@media print { :root { color-scheme: light; --bg: #fff; --box: #fff; --ink: #000; --quiet: #444;
  --edge: #bbb; --0: #0b62c4; --1: #c2410c; --2: #15803d; --3: #9333ea; --4: #b45309; --5: #0e7490;
  --6: #be185d; --7: #4d5560; --wrong: #b91c1c; }
  .switch, .tip { display: none; } .epoch, .train_seconds { display: block !important; }
  .matrix { filter: none; } .wide { overflow: visible; }
  html { font-size: 11px; } body { max-width: none; font-size: 11px; padding: 0;
    print-color-adjust: exact; }
  h2, h3 { break-after: avoid; } h2 { margin-top: 18px; } tr, .tile { break-inside: avoid; }
  .tiles { grid: auto / auto-flow minmax(0, 1fr); } .tile { padding: 8px; }
  .charts, .pair { grid-template-columns: 1fr 1fr; gap: 12px; }
  .bar { margin: 3px 0; } .bar svg { height: 10px; } .pair { break-inside: avoid; }
  .cards { grid-template-columns: repeat(12, 1fr); gap: 4px; } .card { padding: 3px; } }
"""

# All text goes through textContent, so that no name from a file can become an element.
JS = """
const tip = document.createElement('div');
tip.className = 'tip';
tip.hidden = true;
document.body.append(tip);
const cursor = document.createElementNS('http://www.w3.org/2000/svg', 'line');
cursor.setAttribute('class', 'cursor');

function nearest(places, x) {
  let best = 0;
  places.forEach((place, i) => {
    if (Math.abs(place - x) < Math.abs(places[best] - x)) best = i;
  });
  return best;
}

function show(svg, chart, x) {
  const first = chart.series[0];
  if (!first) return;
  const at = first.x[nearest(first.x, x)];
  const lines = chart.series.map((each) => {
    const i = nearest(each.x, at);
    return `${each.y[i]}  ${each.name}`;
  });
  const head = `${first.at[nearest(first.x, x)]} ${chart.x}`;
  tip.textContent = [head, ...lines].join('\\n');
  tip.hidden = false;
  for (const [key, value] of Object.entries({x1: at, x2: at, y1: 20, y2: 216})) {
    cursor.setAttribute(key, value);
  }
  svg.append(cursor);
  const box = svg.getBoundingClientRect();
  const place = box.left + at * box.width / 520;
  const wide = tip.offsetWidth + 12;
  const left = place + wide < innerWidth ? place + 12 : place - wide;
  tip.style.left = `${Math.max(4, left) + scrollX}px`;
  tip.style.top = `${box.top + 24 + scrollY}px`;
  svg.dataset.at = at;
}

function hide() {
  tip.hidden = true;
  cursor.remove();
}

for (const svg of document.querySelectorAll('svg[data-chart]')) {
  const chart = JSON.parse(svg.dataset.chart);
  svg.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect();
    show(svg, chart, (event.clientX - box.left) * 520 / box.width);
  });
  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('blur', hide);
  svg.addEventListener('keydown', (event) => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step || !chart.series.length) return;
    const places = chart.series[0].x;
    const now = svg.dataset.at === undefined ? -1 : nearest(places, Number(svg.dataset.at));
    show(svg, chart, places[Math.min(Math.max(now + step, 0), places.length - 1)]);
    event.preventDefault();
  });
}
"""
