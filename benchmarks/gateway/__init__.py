"""The parts of bench_gateway: what is loaded, with what, and what is measured of it."""
