"""Sources of images: folders, archives, arrays and known data sets, opened as indexed sets."""

from hirl.data.sources.arrays import ArrayImages as ArrayImages
from hirl.data.sources.image_set import BadImage as BadImage
from hirl.data.sources.image_set import ImageSet as ImageSet
from hirl.data.sources.images_in_memory import in_memory as in_memory
from hirl.data.sources.images_in_memory import open_in_memory as open_in_memory
from hirl.data.sources.opening import open_images as open_images
from hirl.data.sources.skipped import Skipped as Skipped
from hirl.data.sources.skipped import read_or_replace as read_or_replace
