"""A corpus tokenized once, in files that training maps: one shard and one sidecar per input, made by processes."""
