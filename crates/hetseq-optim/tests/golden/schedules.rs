//! Every schedule against `transformers.optimization`.

use hetseq_optim::{BaseRate, Position, ScheduleConfig, lr};
use serde::Deserialize;

const FIXTURE: &str = include_str!("../fixtures/schedules.json");

const RELATIVE: f64 = 1e-12;
/// Relative to the base rate. Near its end the cosine schedule is `1 + cos` with a cosine close to
/// -1: the result consists of the last bit of the cosine, in which two correct libraries may
/// differ.
const CANCELLATION: f64 = 1e-15;

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    config: ScheduleConfig,
    base_lr: f64,
    total_updates: u64,
    points: Vec<(u64, f64)>,
}

#[test]
fn schedules_equal_transformers() {
    let fixture: Fixture = serde_json::from_str(FIXTURE).unwrap();
    assert_eq!(fixture.cases.len(), 11);
    for case in &fixture.cases {
        let Case { config, base_lr, total_updates, points } = case;
        let base = BaseRate::Constant(*base_lr);
        config.validate(&base).unwrap();
        assert!(points.len() >= 25, "{config:?}");
        for (update, expected) in points {
            let found = lr(config, &base, *total_updates, Position { update: *update, epoch: 0 });
            let bound = RELATIVE * expected + CANCELLATION * base_lr;
            let close = (found - expected).abs() <= bound;
            assert!(close, "{config:?}, update {update}: {found} is not {expected}");
        }
    }
}
