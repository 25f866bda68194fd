"""Images with boxes and masks: COCO and Pascal VOC annotations, read and checked."""
