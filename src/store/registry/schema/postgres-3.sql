-- The keys that each node has: src/store/registry/nodes.rs.

-- A JSON array of their ids, that of the key that seals first. NULL: a node of an earlier version.
ALTER TABLE registry_nodes ADD COLUMN seal_keys text;
