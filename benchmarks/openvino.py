"""A bundle's network in OpenVINO beside ONNX Runtime: CPU time, embeddings, and the accuracy of the bundle's own head.

    python -m benchmarks.openvino BUNDLE --data DIR --data DIR --split all [--kind image_folder]

Both embed the same images, as the server embeds them on a CPU: in batches of four, one on each core, here on one. The
accuracies are of the same episodes. Prints tables in Markdown.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from comln_serve.bundle.manifest import describe_task
from comln_serve.engine.embedding.backbone import OnnxBackbone
from training.bundles.quantise import cosines
from training.commands.domains import add_data_arguments, find_domains
from training.commands.subject import open_subject
from training.data import ImageSet
from training.evaluation.compare import difference, measure
from training.evaluation.evaluate import adapted
from training.evaluation.tasks import parse_task
from training.evaluation.timing import milliseconds_in_turns
from training.results.tables import markdown
from training.runs.hardware import processor

_BATCH = 4


def milliseconds(backbones: dict[str, OnnxBackbone], data: ImageSet, rounds: int) -> dict[str, float]:
    """Median CPU time of an image, in batches."""
    positions = (range(turn * _BATCH, (turn + 1) * _BATCH) for turn in range(rounds + 1))
    batches = ((np.take(data.first_views, batch, axis=0, mode="wrap"),) for batch in positions)
    embed = {name: backbone.embed for name, backbone in backbones.items()}
    found = milliseconds_in_turns(embed, batches, time.process_time)
    return {name: of_batch / _BATCH for name, of_batch in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    add_data_arguments(parser)
    parser.add_argument("--task", type=parse_task, action="append", dest="tasks")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    subject = open_subject(args.bundle)
    if subject.bundle is None:
        parser.error(f"{args.bundle} is a run; export it")
    backbones = {
        "ONNX Runtime": OnnxBackbone(subject.bundle, "cpu", threads=1),
        "OpenVINO": OnnxBackbone(subject.bundle, "openvino", threads=1),
    }
    tasks = args.tasks or [parse_task(text) for text in ("5x1", "5x5")]
    times: list[list[str]] = []
    rows: list[list[str]] = []
    for domain in find_domains(args, subject):
        data = domain.load(args.split)
        spent = milliseconds(backbones, data, args.rounds)
        times.append([domain.name, *(f"{value:.2f}" for value in spent.values())])
        times[-1].append(f"{spent['OpenVINO'] / spent['ONNX Runtime']:.2f}")
        usual, other = (data.embedded(backbone.embed) for backbone in backbones.values())
        alike = cosines(usual.first_views, other.first_views)
        for task in tasks:
            first, second = (
                measure(one, adapted(subject.head), task, args.episodes, args.seed) for one in (usual, other)
            )
            moved = difference(second, first)
            rows.append([f"{domain.name} ({len(data.images)})", f"{alike.mean():.4f}", f"{alike.min():.4f}"])
            rows[-1] += [
                describe_task(task.ways, task.shots),
                *(str(one.accuracy.estimate) for one in (first, second)),
                str(moved),
            ]
    print(f"{args.bundle.name}; {processor()}; {args.episodes} episodes, seed {args.seed}\n")
    print(markdown(["images", *(f"{name}, CPU ms an image" for name in backbones), "of it"], times), end="\n\n")
    head = ["images", "mean cosine", "smallest", "task", *backbones, "difference"]
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
