//! Timings of the pure parts live in `benches/`; this package has no code of its own.
