//! Empty: this package only contains the criterion benchmarks in `benches/`.
