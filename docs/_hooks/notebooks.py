"""MkDocs hook: an executed notebook is a page of the site, made of Markdown like the others; it is not run here.

NAME.ipynb becomes the page NAME.md. The file itself stays beside it, to download.
"""

from pathlib import PurePosixPath

from jinja2 import DictLoader
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

# nbconvert's template, with the pictures' own descriptions, and text as fenced blocks.
TEMPLATE = """
{%- extends "markdown/index.md.j2" -%}
{% block stream %}
```text
{{ output.text | strip_ansi }}
```
{% endblock %}
{% block data_text %}
```text
{{ output.data["text/plain"] | strip_ansi }}
```
{% endblock %}
{% block data_jpg %}
![{{ output.metadata["image/jpeg"].alt }}]({{ output.metadata.filenames["image/jpeg"] | path2url }})
{% endblock %}
"""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and the pictures in its outputs."""
    exporter = MarkdownExporter(extra_loaders=[DictLoader({"page.md.j2": TEMPLATE})], template_file="page.md.j2")
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = PurePosixPath(notebook.src_uri)
        text, resources = exporter.from_filename(
            str(notebook.abs_src_path), resources={"unique_key": path.stem, "output_files_dir": ""}
        )
        files.append(File.generated(config, str(path.with_suffix(".md")), content=text))
        for name, picture in resources["outputs"].items():
            files.append(File.generated(config, str(path.parent / name), content=picture))
    return files
