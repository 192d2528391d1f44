"""What the report of an adaptation costs, next to the rest of the adaptation in the same call.

    python -m benchmarks.report BUNDLE --data DATA [--split val] [--kind image_folder] [--repeats 9]

Runs the server's engine, without HTTP, on tasks of a data set's images as PNG, and prints the
median milliseconds of each stage.
"""

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from comln_serve.configuration.settings import Settings
from comln_serve.engine.engine import Engine, load_models
from comln_serve.storage import Store
from training.commands.domains import add_data_arguments, one_domain
from training.commands.subject import open_subject
from training.data import sample_episode
from training.results.tables import markdown

CASES = [(5, 5), (10, 10), (20, 20), (25, 20)]
STAGES = ("decode", "embed", "solve", "report", "total")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    add_data_arguments(parser)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    data = one_domain(args, open_subject(args.bundle)).load(args.split)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.model_validate(
            {
                "models_dir": args.bundle.parent,
                "database_url": f"sqlite:///{folder}/classifiers.db",
                "default_model": args.bundle.name,
            }
        )
        engine = Engine(settings, load_models(settings), Store(settings.database_url))
        engine.warm()
        for ways, shots in CASES:
            # As many images, of fewer classes, where the data have fewer.
            N = min(ways, data.n_classes)
            k = ways * shots // N
            episode = sample_episode(np.random.default_rng(0), data, N, k, 0)
            support = [
                (_png(data.first_views[image]), f"class {c}") for c, row in enumerate(episode.support) for image in row
            ]
            engine.adapt(support)
            runs = [engine.adapt(support) for _ in range(args.repeats)]
            times = {s: float(np.median([run.timings_ms[s] for run in runs])) for s in STAGES}
            report = runs[-1].classifier.report
            held_out = None if report is None else report.held_out
            rows.append(
                [
                    f"{N} x {k}",
                    *(f"{times[stage]:.1f}" for stage in STAGES),
                    f"{100 * times['report'] / times['total']:.0f} %",
                    "-" if held_out is None else str(held_out.folds),
                ]
            )
        engine.close()
    print(markdown(["ways x shots", *STAGES, "report / total", "folds"], rows))


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


if __name__ == "__main__":
    main()
