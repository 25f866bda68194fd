"""Object detection and instance segmentation: COCO-format and Pascal VOC sets, C4 and cascade detectors, AP."""
