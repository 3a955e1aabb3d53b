"""Load: arrival traces, the open-loop sender, routing over replicas, the single-request client."""
