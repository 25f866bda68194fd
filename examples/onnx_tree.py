"""An image's place in the tree, with onnxruntime, numpy and Pillow alone.

hirl export runs/x --to onnx --levels --out encoder.onnx
python examples/onnx_tree.py encoder.onnx cat.jpg
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["hirl"])
size, resize, method = (about["preprocessing"][name] for name in ("size", "resize", "interpolation"))
image = ImageOps.exif_transpose(Image.open(sys.argv[2])).convert("RGB")
image = image.resize([int(resize * side / min(image.size)) for side in image.size], Image.Resampling[method.upper()])
left, top = (round((side - size) / 2) for side in image.size)
pixels = np.asarray(image)[top : top + size, left : left + size].transpose(2, 0, 1)[None]
path, confidence = session.run(["path", "confidence"], {"images": pixels})
for level, (node, sure) in enumerate(zip(path[0], confidence[0], strict=True)):
    print(f"level {level}: {about['nodes'][level][node]} (confidence {sure:.3f})")
