// Shows values where the pointer is. All text goes through textContent, so that no name from a file
// can become an element.
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
  tip.textContent = [head, ...lines].join('\n');
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
