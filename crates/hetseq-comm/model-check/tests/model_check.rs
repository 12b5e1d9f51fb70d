//! The sizes to check. Each test prints its number of states.

use hetseq_comm_model_check::{Limits, check};

const LIMITS: Limits = Limits {
    world: 3,
    faults: 2,
    directory: false,
    updates: false,
    partition: 0,
    min_workers: 1,
    leaves: false,
    newcomer: false,
};

fn run(limits: Limits) {
    let checked = check(limits);
    println!("{limits:?}: {} states, depth {}, {:.1?}", checked.unique_states, checked.depth, checked.time);
}

#[test]
fn three_members() {
    for directory in [false, true] {
        let limits = Limits { directory, ..LIMITS };
        run(Limits { faults: 3, ..limits });
        run(Limits { faults: 3, min_workers: 2, ..limits });
        run(Limits { updates: true, ..limits });
    }
}

#[test]
fn four_members() {
    run(Limits { world: 4, ..LIMITS });
    run(Limits { world: 4, directory: true, ..LIMITS });
    run(Limits { world: 4, directory: true, faults: 1, updates: true, ..LIMITS });
}

/// Any ranks but all leave by agreement, while others are lost.
#[test]
fn leaves() {
    for directory in [false, true] {
        let limits = Limits { directory, leaves: true, ..LIMITS };
        run(limits);
        run(Limits { faults: 1, updates: true, ..limits });
        run(Limits { world: 4, faults: 1, ..limits });
    }
}

/// A newcomer is admitted while members, or itself, are lost.
#[test]
fn a_newcomer() {
    for directory in [false, true] {
        let limits = Limits { newcomer: true, directory, ..LIMITS };
        run(Limits { world: 2, faults: 1, updates: true, ..limits });
        run(Limits { world: 2, faults: 2, ..limits });
        run(Limits { world: 3, faults: 1, ..limits });
    }
}

#[test]
#[ignore = "minutes"]
fn a_newcomer_of_three_members_with_updates() {
    for directory in [false, true] {
        run(Limits { newcomer: true, world: 2, updates: true, directory, ..LIMITS });
        run(Limits { newcomer: true, faults: 1, updates: true, directory, ..LIMITS });
        run(Limits { newcomer: true, faults: 2, directory, ..LIMITS });
    }
}

/// Exactly one side continues.
#[test]
fn partitions() {
    let limits = Limits { directory: true, ..LIMITS };
    run(Limits { partition: 1, faults: 1, ..limits });
    run(Limits { partition: 2, faults: 1, ..limits });
    run(Limits { world: 4, partition: 2, faults: 0, ..limits });
}

#[test]
#[ignore = "minutes"]
fn four_members_with_updates() {
    run(Limits { world: 4, faults: 1, updates: true, ..LIMITS });
    run(Limits { world: 4, partition: 2, faults: 0, ..LIMITS });
}

#[test]
#[ignore = "minutes"]
fn five_members() {
    run(Limits { world: 5, faults: 1, ..LIMITS });
    run(Limits { world: 5, faults: 1, directory: true, ..LIMITS });
}

/// About 9 million states.
#[test]
#[ignore = "minutes"]
fn partition_and_fault() {
    run(Limits { world: 4, partition: 2, faults: 1, directory: true, ..LIMITS });
}
