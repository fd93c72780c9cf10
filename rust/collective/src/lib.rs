//! Collective operations on slices between the ranks of a group: shared memory inside a host, TCP between hosts.
