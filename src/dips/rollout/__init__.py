"""Roll users forward in time: predict, reveal, refresh."""
