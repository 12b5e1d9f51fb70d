//! Properties of the schedules. `tests/golden` compares the numbers with those of transformers.

use super::*;

#[derive(Debug, Serialize, Deserialize)]
struct Run {
    schedule: ScheduleConfig,
}

fn parse(text: &str) -> Result<ScheduleConfig, String> {
    toml::from_str::<Run>(text).map(|run| run.schedule).map_err(|error| error.to_string())
}

fn schedule(kind: ScheduleKind, warmup_updates: u64) -> ScheduleConfig {
    ScheduleConfig { kind, warmup_updates, ..ScheduleConfig::default() }
}

const KINDS: [ScheduleKind; 5] = [
    ScheduleKind::Constant,
    ScheduleKind::Polynomial,
    ScheduleKind::InverseSqrt,
    ScheduleKind::Cosine,
    ScheduleKind::Epochs,
];

/// The learning rate of a run with one rate, in its first epoch.
fn lr(config: &ScheduleConfig, base_lr: f64, total_updates: u64, update: u64) -> f64 {
    super::lr(config, &BaseRate::Constant(base_lr), total_updates, Position { update, epoch: 0 })
}

#[test]
fn a_name_alone_is_a_schedule() {
    for (name, kind) in ["constant", "polynomial", "inverse-sqrt", "cosine", "epochs"].into_iter().zip(KINDS) {
        let parsed = parse(&format!("schedule = '{name}'")).unwrap();
        assert_eq!(parsed, schedule(kind, 0));
    }
}

#[test]
fn a_table_is_a_schedule_and_survives_a_round_trip() {
    let text = "[schedule]\nkind = 'polynomial'\nwarmup_updates = 10\nend_lr = 0\npower = 2";
    let parsed = parse(text).unwrap();
    assert_eq!(parsed, ScheduleConfig { power: 2.0, ..schedule(ScheduleKind::Polynomial, 10) });
    let epochs = parse("schedule = { kind = 'epochs', shrink = 0.5, shrink_from_epoch = 4 }").unwrap();
    assert_eq!((epochs.shrink, epochs.shrink_from_epoch), (Some(0.5), Some(4)));
    for schedule in [parsed, epochs] {
        let written = toml::to_string(&Run { schedule }).unwrap();
        assert_eq!(parse(&written).unwrap(), schedule);
    }
}

#[test]
fn mistakes_are_named() {
    for (text, words) in [
        ("schedule = 'cosin'", ["cosin", "inverse-sqrt"]),
        ("schedule = { kind = 'linear' }", ["linear", "polynomial"]),
        ("schedule = { kind = 'cosine', warmup = 3 }", ["`warmup`", "warmup_updates"]),
        ("schedule = { warmup_updates = 3 }", ["missing", "kind"]),
        ("schedule = 3", ["name of a schedule", "inverse-sqrt"]),
    ] {
        let error = parse(text).unwrap_err();
        assert!(words.iter().all(|w| error.contains(w)), "{text}: {error}");
    }
}

#[test]
fn warm_up_rises_from_zero_to_the_base_rate() {
    for kind in KINDS {
        let config = schedule(kind, 4);
        let rates: Vec<_> = (0..5).map(|u| lr(&config, 2.0, 100, u)).collect();
        assert_eq!(rates, [0.0, 0.5, 1.0, 1.5, 2.0], "{kind:?}");
        assert_eq!(lr(&schedule(kind, 0), 2.0, 100, 0), 2.0, "{kind:?}");
    }
}

#[test]
fn the_rate_is_constant_after_the_end() {
    for kind in [ScheduleKind::Polynomial, ScheduleKind::Cosine] {
        let config = ScheduleConfig { end_lr: 0.25, ..schedule(kind, 2) };
        for update in [10, 11, 19, u64::MAX] {
            assert_eq!(lr(&config, 1.0, 10, update), 0.25, "{kind:?} {update}");
        }
        // No updates left for decay: the full warm-up, then the end value.
        for (total, update, rate) in [(2, 1, 0.5), (2, 2, 0.25), (1, 1, 0.5), (0, 7, 0.25)] {
            assert_eq!(lr(&config, 1.0, total, update), rate, "{kind:?} {total}");
        }
    }
    let own_end = ScheduleConfig { total_updates: Some(5), ..schedule(ScheduleKind::Cosine, 0) };
    assert_eq!(lr(&own_end, 1.0, 10, 5), 0.0);
}

#[test]
fn decay_never_rises_and_stays_above_the_end() {
    for kind in KINDS {
        let config = ScheduleConfig { end_lr: 1e-3, ..schedule(kind, 7) };
        let rates: Vec<_> = (7..300).map(|u| lr(&config, 0.1, 200, u)).collect();
        assert!(rates.windows(2).all(|w| w[1] <= w[0]), "{kind:?}");
        assert!(rates.iter().all(|r| (1e-3..=0.1).contains(r)), "{kind:?}");
    }
}

/// The rates of epochs 1 to 6, after warm-up.
fn by_epoch(config: &ScheduleConfig, rates: &[f64]) -> Vec<f64> {
    let base = BaseRate::PerEpoch(rates.to_vec());
    config.validate(&base).unwrap();
    (0..6).map(|epoch| super::lr(config, &base, 100, Position { update: 50 + epoch, epoch })).collect()
}

#[test]
fn each_epoch_has_its_rate_and_later_epochs_the_last() {
    let epochs = schedule(ScheduleKind::Epochs, 0);
    assert_eq!(by_epoch(&epochs, &[0.25, 0.1, 0.05]), [0.25, 0.1, 0.05, 0.05, 0.05, 0.05]);
    let shrinking = ScheduleConfig { shrink: Some(0.5), ..epochs };
    assert_eq!(by_epoch(&shrinking, &[4.0, 2.0]), [4.0, 2.0, 1.0, 0.5, 0.25, 0.125]);
    // Same as `--lr 4,2 --force-anneal 5 --lr-shrink 0.5`.
    let later = ScheduleConfig { shrink_from_epoch: Some(5), ..shrinking };
    assert_eq!(by_epoch(&later, &[4.0, 2.0]), [4.0, 2.0, 2.0, 2.0, 1.0, 0.5]);
    let base = BaseRate::Constant(4.0);
    assert_eq!(super::lr(&shrinking, &base, 9, Position { update: 0, epoch: 2 }), 1.0);
    // The rate is finite even far beyond any run.
    assert_eq!(super::lr(&shrinking, &base, 9, Position { update: 0, epoch: u64::MAX }), 0.0);
}

#[test]
fn warm_up_ends_at_the_rate_of_the_epoch() {
    let config = schedule(ScheduleKind::Epochs, 4);
    let base = BaseRate::PerEpoch(vec![2.0, 1.0]);
    let at = [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)];
    let rates = at.map(|(update, epoch)| super::lr(&config, &base, 100, Position { update, epoch }));
    assert_eq!(rates, [0.0, 0.5, 0.5, 0.75, 1.0]);
}

#[test]
fn a_rate_is_a_number_or_a_list() {
    #[derive(Debug, Deserialize)]
    struct Section {
        lr: BaseRate,
    }
    let parse = |text: &str| toml::from_str::<Section>(text).map(|section| section.lr);
    assert_eq!(parse("lr = 0.5"), Ok(BaseRate::Constant(0.5)));
    assert_eq!(parse("lr = 1"), Ok(BaseRate::Constant(1.0)));
    assert_eq!(parse("lr = [1, 0.5]"), Ok(BaseRate::PerEpoch(vec![1.0, 0.5])));
    for wrong in ["lr = 'fast'", "lr = ['fast']", "lr = { first = 1 }"] {
        let error = parse(wrong).unwrap_err().to_string();
        assert!(error.contains("`lr` must be a number, or a list of numbers"), "{error}");
    }
}

#[test]
fn invalid_settings_and_settings_without_effect_are_refused() {
    let base = ScheduleConfig::default();
    assert_eq!(base.validate(&BaseRate::Constant(0.1)), Ok(()));
    let cosine = ScheduleConfig { kind: ScheduleKind::Cosine, ..base };
    let epochs = ScheduleConfig { kind: ScheduleKind::Epochs, ..base };
    let bad = [
        ("end_lr", ScheduleConfig { end_lr: 0.2, ..cosine }),
        ("end_lr", ScheduleConfig { end_lr: -0.1, ..cosine }),
        ("end_lr", ScheduleConfig { end_lr: f64::NAN, ..base }),
        ("power", ScheduleConfig { power: 0.0, kind: ScheduleKind::Polynomial, ..base }),
        ("power", ScheduleConfig { power: 2.0, ..cosine }),
        ("end_lr", ScheduleConfig { end_lr: 0.01, ..base }),
        ("end_lr", ScheduleConfig { end_lr: 0.01, ..epochs }),
        ("total_updates", ScheduleConfig { total_updates: Some(5), ..epochs }),
        ("shrink", ScheduleConfig { shrink: Some(0.5), ..cosine }),
        ("shrink_from_epoch", ScheduleConfig { shrink_from_epoch: Some(5), ..cosine }),
        ("shrink_from_epoch", ScheduleConfig { shrink_from_epoch: Some(5), ..epochs }),
        ("shrink", ScheduleConfig { shrink: Some(0.0), ..epochs }),
        ("shrink", ScheduleConfig { shrink: Some(1.5), ..epochs }),
        ("shrink", ScheduleConfig { shrink: Some(f64::NAN), ..epochs }),
        ("shrink_from_epoch", ScheduleConfig { shrink: Some(0.5), shrink_from_epoch: Some(1), ..epochs }),
    ];
    let is_about = |error: OptimError, key: &str| matches!(error, OptimError::Setting { key: k, .. } if k == key);
    for (key, config) in bad {
        let error = config.validate(&BaseRate::Constant(0.1)).unwrap_err();
        assert!(is_about(error, key), "{config:?}");
    }
    let list = |rates: &[f64]| BaseRate::PerEpoch(rates.to_vec());
    for (config, rate) in [
        (base, BaseRate::Constant(f64::INFINITY)),
        (base, BaseRate::Constant(-1.0)),
        (cosine, list(&[0.1, 0.2])),
        (base, list(&[0.1])),
        (epochs, list(&[])),
        (epochs, list(&[0.1, f64::NAN])),
    ] {
        assert!(is_about(config.validate(&rate).unwrap_err(), "lr"), "{config:?} {rate:?}");
    }
}
