//! Measures the time of splitting an update among very many devices. Run with:
//! cargo run --release -p hetseq-balance --example share_time

use std::io::Write;
use std::ops::Range;
use std::time::Instant;

use hetseq_balance::share::{DeviceLoad, Share, share};
use hetseq_balance::{
    AssignedWork, BalanceError, CostPoint, CostTable, DeviceProfile, LinkProfile, Planner, Profile, RankProfile,
    SplitMode, WorkTime,
};
use hetseq_random::Key;

const DEVICES: u32 = 10_000;
const SAMPLES: u64 = 100_000;
const TRIES: usize = 31;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let key = Key::root(1);
    let tables: Vec<CostTable> =
        (0..DEVICES).map(|device| table(key.index(device.into()))).collect::<Result<_, _>>()?;
    let uniform = vec![128; SAMPLES as usize];
    let mut text: Vec<u32> = (0..SAMPLES).map(|sample| 8 + key.below(sample, 505) as u32).collect();
    text.sort_unstable();
    for (name, update) in [("one length", &uniform), ("mixed lengths", &text)] {
        for (caps, max_tokens, spread) in
            [("no caps", None, 0), ("caps", Some(2048), 0), ("caps below the longest samples", Some(200), 1024)]
        {
            let load = |(device, table)| DeviceLoad {
                table,
                factor: f64::from(key.between(device as u32, 0.9, 1.1)),
                overhead_s: f64::from(key.between(DEVICES + device as u32, 0.0, 0.02)),
                max_tokens: max_tokens.map(|cap| cap + (device as u32 * 7) % (spread + 1)),
                max_samples: None,
                measured: Some(table),
            };
            let loads: Vec<DeviceLoad> = tables.iter().enumerate().map(load).collect();
            let millis = timed(|| share(update, &loads).map(|_| ()))?;
            writeln!(
                std::io::stdout(),
                "{DEVICES} devices, {SAMPLES} samples of {name}, {caps}: {:.1} ms (best {:.1}); devices are busy {:.1} % of \
                 the time until the last finishes",
                millis.0,
                millis.1,
                100.0 * busy_part(update, &loads)?,
            )?;
        }
        let mut planner = Planner::new(&group(&tables));
        let plan = planner.share(SplitMode::Measured, update)?;
        // Every third device becomes 1.5 times as slow, for long enough not to be noise.
        for _ in 0..50 {
            let time = |(device, work): (usize, &AssignedWork)| {
                let slowness = if device.is_multiple_of(3) { 1.5 } else { 1.0 };
                WorkTime { base_s: work.base_s, micros: (work.base_s * slowness * 1e6) as u64, after_micros: 0 }
            };
            planner.observe(&plan.work.iter().enumerate().map(time).collect::<Vec<_>>());
        }
        let mut planners = vec![planner; TRIES];
        let mut next = planners.iter_mut();
        let millis = timed(|| {
            let plan = next.next().map(|planner| planner.share(SplitMode::Measured, update)).transpose()?;
            assert!(plan.is_some_and(|plan| plan.replanned.is_some()));
            Ok(())
        })?;
        writeln!(std::io::stdout(), "  a complete new plan for {name}: {:.1} ms (best {:.1})", millis.0, millis.1)?;
    }
    for (devices, samples) in [(4, 256), (8, 1024), (8, 4096), (64, 4096), (64, 16_384), (900, 50_000)] {
        let mut text: Vec<u32> = (0..samples).map(|sample| 8 + key.below(sample, 505) as u32).collect();
        text.sort_unstable();
        let mut planner = Planner::new(&group(&tables[..devices]));
        let millis = timed(|| planner.share(SplitMode::Measured, &text).map(|_| ()))?;
        writeln!(
            std::io::stdout(),
            "{devices} devices, {samples} samples of mixed lengths: {:.2} ms (best {:.2})",
            millis.0,
            millis.1
        )?;
    }
    Ok(())
}

/// The median and the minimum of many tries, in milliseconds.
fn timed(mut work: impl FnMut() -> Result<(), BalanceError>) -> Result<(f64, f64), BalanceError> {
    let mut millis = Vec::with_capacity(TRIES);
    for _ in 0..TRIES {
        let start = Instant::now();
        work()?;
        millis.push(start.elapsed().as_secs_f64() * 1e3);
    }
    millis.sort_by(f64::total_cmp);
    Ok((millis[TRIES / 2], millis[0]))
}

fn group(tables: &[CostTable]) -> Profile {
    let device = |table: &CostTable| DeviceProfile {
        name: String::new(),
        table: table.clone(),
        after_s: 0.001,
        weight: 1.0,
        max_tokens: None,
        max_samples: None,
    };
    let rank = |tables: &[CostTable]| RankProfile {
        host: String::new(),
        devices: tables.iter().map(device).collect(),
        host_s: 0.01,
        link: LinkProfile::unlimited(),
        shard_weight: None,
    };
    Profile { task: String::new(), parameters: 0, exchange_bytes: 0, ranks: tables.chunks(8).map(rank).collect() }
}

/// The mean finish time of the devices with work, as a part of the last finish time.
fn busy_part(update: &[u32], loads: &[DeviceLoad]) -> Result<f64, BalanceError> {
    let finish = |(load, share): (&DeviceLoad, &Share)| {
        let seconds = |micro: &Range<usize>| load.table.seconds(micro.len() as u32, update[micro.end - 1]);
        load.overhead_s + load.factor * share.micro.iter().map(seconds).sum::<f64>()
    };
    let shares = share(update, loads)?;
    let shared = loads.iter().zip(&shares).filter(|(_, share)| !share.is_empty());
    let finished: Vec<f64> = shared.map(finish).collect();
    Ok(finished.iter().sum::<f64>() / finished.len() as f64 / finished.iter().copied().fold(0.0, f64::max))
}

/// Six points: a fixed launch time plus time per token. Speeds differ by up to 100 times.
fn table(key: Key) -> Result<CostTable, BalanceError> {
    let launch = key.below(0, 5000) + 100;
    let per_token = f64::from(key.between(1, 1.0, 100.0));
    let point = |(samples, tokens): (u32, u32)| CostPoint {
        samples,
        tokens,
        micros: launch + (per_token * f64::from(samples * tokens)) as u64,
        bytes: 0,
    };
    CostTable::new([(1, 64), (4, 64), (16, 64), (1, 512), (4, 512), (16, 512)].map(point).to_vec())
}
