"""Reports in a real headless browser: Debian's chromium, or another one on the PATH."""

import html
import re
import shutil
import subprocess

import pytest
from in_process import command
from made_runs import write_run

CHROMIUM = next(
  filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
pytestmark = pytest.mark.skipif(
  not CHROMIUM, reason="there is no chromium on the PATH: no report is loaded in a browser"
)

# The page in a frame of so many pixels: a headless window may not be narrow. The script says in the
# title what is wrong, and what stands beside the pointer.
_PROBE = """<!DOCTYPE html><title>no answer</title><style>body {{ margin: 0 }}</style>
<iframe style="border: 0; height: 900px; width: {width}px"></iframe><script>
const frame = document.querySelector('iframe');
frame.onload = () => {{
  const page = frame.contentDocument, inside = frame.contentWindow, wrong = [];
  const box = page.documentElement;
  if (box.scrollWidth > box.clientWidth) wrong.push(`${{box.scrollWidth}} px wide`);
  for (const each of inside.performance.getEntriesByType('resource')) {{
    if (!each.name.startsWith('data:')) wrong.push(`loads ${{each.name}}`);
  }}
  for (const each of page.querySelectorAll('p, li, h1, h2, h3, td, th, figcaption, svg, img')) {{
    const place = each.getBoundingClientRect();
    if (each.closest('.wide, details')) continue;
    if (place.right > {width} + 1) wrong.push(`${{each.tagName}} to ${{place.right}} px`);
  }}
  const green = (name) => Number(inside.getComputedStyle(page.body)[name].match(/\\d+/g)[1]);
  const [ink, ground] = [green('color'), green('backgroundColor')];
  if (Math.abs(ink - ground) < 150) wrong.push('no contrast');
  if ((ground < 128) !== {dark}) wrong.push(`a ground of ${{ground}}`);
  const charts = page.querySelectorAll('svg[data-chart]');
  const edge = charts[0].getBoundingClientRect();
  const middle = {{clientX: edge.left + edge.width / 2}};
  charts[0].dispatchEvent(new inside.PointerEvent('pointermove', middle));
  const tip = page.querySelector('.tip').textContent.replaceAll('\\n', ' | ');
  document.title = `${{charts.length}} charts; ${{tip}}; wrong: ${{wrong.join(', ')}}.`;
}};
frame.srcdoc = `{page}`;
</script>"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
  """A report of one run, and one of nine in three settings."""
  folder = tmp_path_factory.mktemp("browser")
  for peak in (0.1, 0.2, 0.3):
    for seed in range(3):
      write_run(folder / f"runs/{peak}/{seed}", peak=peak, seed=seed)
  found = {}
  for name in ("runs/0.1/0", "runs"):
    assert command("report", str(folder / name), f"--out={folder / 'r.html'}").returncode == 0
    found[name] = (folder / "r.html").read_text()
  return found


def probed(page, folder, *, width, dark):
  """What the probe says of a page, and what the browser logs."""
  text = page.replace("\\", "\\\\").replace("`", "\\`").replace("${", "\\${")
  text = text.replace("</script>", "<\\/script>")
  probe = folder / "probe.html"
  probe.write_text(_PROBE.format(width=width, dark=str(dark).lower(), page=text))
  flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
  flags += ["--window-size=1500,1000", f"--user-data-dir={folder / 'profile'}"]
  flags += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
  words = [CHROMIUM, *flags, probe.as_uri()]
  done = subprocess.run(words, capture_output=True, text=True, timeout=300)
  return html.unescape(re.search("<title>(.*?)</title>", done.stdout)[1]), done.stderr


@pytest.mark.parametrize("width, dark", [(400, False), (1400, True)])
@pytest.mark.parametrize("name", ["runs/0.1/0", "runs"])
def test_a_report_is_readable_and_asks_for_nothing(pages, tmp_path, name, width, dark):
  title, log = probed(pages[name], tmp_path, width=width, dark=dark)
  assert "CONSOLE" not in log, log
  charts = 6 if name == "runs" else 8
  assert title.startswith(f"{charts} charts; 2 epochs | ") and title.endswith("; wrong: ."), title
  assert ("peak=0.3" if name == "runs" else "evaluation | 40") in title


def test_what_is_wrong_is_found(pages, tmp_path):
  image = "<img src='http://127.0.0.1:9/x.png'><p style='width: 700px'>wide</p></body>"
  page = pages["runs"].replace("</body>", image).replace("color: var(--ink)", "color: #888")
  title, log = probed(page, tmp_path, width=400, dark=False)
  assert "P to 712 px" in title and "no contrast" in title, title
  assert "violates the following Content Security Policy" in log
