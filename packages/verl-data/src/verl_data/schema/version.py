"""The version of the row layouts."""

#: Version of the row layouts in this package, written into manifests.
SCHEMA_VERSION = 1
