"""What mkdocs adds to docs/: README, CHANGELOG, the Python API, and files that pages link to."""

import itertools
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
_API = {
  "jaxspeed": "recipe fit load Arrays Run UserError",
  "jaxspeed.launch": "Run Local Slurm Sky grid",
}
_README_LINK = re.compile(r"\]\((?!https?:)(docs/)?")
_OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)")
_PLACE = "repository"  # of files outside docs/, in the site


def on_files(files, config):
  """Adds the pages that no file in docs/ is, and the pictures outside of it that pages show."""
  pages = {
    "index.md": _README_LINK.sub(_from_docs, (ROOT / "README.md").read_text()),
    "changes.md": (ROOT / "CHANGELOG.md").read_text(),
    "api.md": _api_page(),
  }
  for name, text in pages.items():
    files.append(File.generated(config, name, content=text))
  texts = [file.content_string for file in files.documentation_pages()]
  for name in sorted({found for text in texts for found in _OUTSIDE.findall(text)}):
    files.append(File.generated(config, f"{_PLACE}/{name}", abs_src_path=str(ROOT / name)))
  return files


def on_page_markdown(markdown, page, config, files):
  """Turns links to files outside docs/ into links to their copies."""
  return _OUTSIDE.sub(rf"]({_PLACE}/\1", markdown)


def on_page_content(html, page, config, files):
  """Gives each cell of a table its column's title, which site.css shows on narrow screens."""
  return re.sub(r"<table>.*?</table>", _titled, html, flags=re.S)


def _titled(found):
  titles = [re.sub("<[^>]*>", "", each) for each in re.findall("<th[^>]*>(.*?)</th>", found[0])]
  repeated = itertools.cycle(titles)  # Markdown's rows have as many cells as its titles
  return re.sub("<td", lambda _: f'<td data-title="{next(repeated)}"', found[0])


def _from_docs(found):
  return "](" if found[1] else "](../"


def _api_page():
  parts = ["# Python API", "[From Python](library.md) is the guide."]
  for module, names in _API.items():
    parts.append(f"## `{module}`")
    parts += [f"::: {module}.{name}\n    options: {{heading_level: 3}}" for name in names.split()]
  return "\n\n".join(parts) + "\n"
