"""The words for how storage keeps objects in files. Configurations name them on every operating
system; the code that acts on them (`tiers/nvme`) runs on Linux."""

LAYOUTS = ("file", "arena", "bucket")
"""A file for each object; extents of preallocated files; appended to files of 256 MiB."""

FSYNC = ("never", "object", "batch")
"""When files are synced: never, after each object, after every `FSYNC_BATCH` objects."""

FSYNC_BATCH = 8
