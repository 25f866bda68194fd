"""All benchmarks that need no data of the user's."""

from benchmarks import kmeans, spd

for part in (spd, kmeans):
    part.main()
