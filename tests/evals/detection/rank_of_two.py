"""One of two processes that train small detectors together, or one alone; writes what it has in the end."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from hirl.data.annotations.detection_folder import open_detection
from hirl.evals.detection.detector_training import Training
from hirl.evals.detection.predictions import predict
from hirl.evals.detection.regions import HeadSizes
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm

from .small_training import NORMALISATION, prepared


def main(folder: Path, out: Path) -> None:
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    strategy: Any = DDPStrategy(broadcast_buffers=False) if ranks > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    fabric.launch()
    # Boxes alone, on images with more anchors than are sampled: then every process's losses are means over as many.
    images = open_detection(folder, "train", segment=False)
    ends: dict[str, Any] = {}
    for family in ("c4", "cascade"):
        sizes = HeadSizes(regions=8, proposals=50, channels=8, hidden=16)
        detector, plan, samples = prepared(
            images, family, sizes=sizes, side=112, segment=False, epochs=2, batch_size=4, lr=0.01, crops=False
        )
        # Untrained scores are nearly equal, so that rounding would choose among proposals: these are far apart.
        torch.nn.init.normal_(detector.proposals.head.cls_logits.weight, std=1.0)  # type: ignore[union-attr, arg-type]
        synchronise_batch_norm(detector)
        Training(
            fabric=fabric, network=detector, schedule=plan, samples=samples, normalisation=NORMALISATION, identity="two"
        ).fit()
        ends[family] = detector.state_dict()
    found = predict(detector, images, plan, fabric=fabric, normalisation=NORMALISATION)
    ends["found"] = [(one["image_id"], one["score"]) for one in found]
    torch.save(ends, out / (f"{fabric.global_rank}.pt" if ranks > 1 else "alone.pt"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
