//! Tests of every launcher's variables, and of every mistake in them.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn find(flags: &RankFlags, variables: &[(&str, &str)]) -> Result<RankEnv, CommError> {
    let env: HashMap<&str, &str> = variables.iter().copied().collect();
    RankEnv::find(flags, &|name| env.get(name).map(|value| (*value).to_owned()))
}

fn from_env(variables: &[(&str, &str)]) -> RankEnv {
    find(&RankFlags::default(), variables).unwrap()
}

fn error(flags: &RankFlags, variables: &[(&str, &str)]) -> String {
    find(flags, variables).unwrap_err().to_string()
}

fn flags(method: Option<&str>, world: Option<usize>, rank: Option<usize>) -> RankFlags {
    RankFlags { init_method: method.map(str::to_owned), world_size: world, rank }
}

fn tcp(host: &str, port: u16) -> Rendezvous {
    Rendezvous::Tcp { host: host.to_owned(), port }
}

const MASTER: [(&str, &str); 2] = [("MASTER_ADDR", "alpha"), ("MASTER_PORT", "2900")];

#[test]
fn no_variables_mean_a_single_process() {
    assert_eq!(from_env(&[]), RankEnv::alone(NOTHING));
    assert_eq!(from_env(&[("RANK", ""), ("MASTER_ADDR", "alpha")]), RankEnv::alone(NOTHING));
    assert_eq!(from_env(&[("WORLD_SIZE", "1")]).world, 1);
    assert_eq!(find(&flags(Some("env://"), None, None), &[]).unwrap(), RankEnv::alone(NOTHING));
}

#[test]
fn flags_override_variables() {
    let torch = [("RANK", "1"), ("WORLD_SIZE", "3"), MASTER[0], MASTER[1]];
    let env = find(&flags(Some("tcp://beta:77"), Some(4), Some(2)), &torch).unwrap();
    assert_eq!(env, RankEnv { rank: Some(2), world: 4, rendezvous: tcp("beta", 77), source: FLAGS });
    // What flags leave out comes from the variables.
    let env = find(&flags(Some("tcp://beta:77"), None, None), &torch).unwrap();
    assert_eq!((env.rank, env.world, env.rendezvous), (Some(1), 3, tcp("beta", 77)));
    let env = find(&flags(None, Some(4), Some(3)), &MASTER).unwrap();
    assert_eq!((env.rank, env.world, env.rendezvous), (Some(3), 4, tcp("alpha", 2900)));
    let env = find(&flags(Some("env://"), Some(4), Some(3)), &MASTER).unwrap();
    assert_eq!(env.rendezvous, tcp("alpha", 2900));
    let slurm = [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8")];
    let env = find(&flags(Some("tcp://beta:77"), None, None), &slurm).unwrap();
    assert_eq!((env.rank, env.world), (Some(5), 8));
    // A single process needs no address and no rank.
    assert_eq!(find(&flags(None, Some(1), None), &[]).unwrap(), RankEnv::alone(FLAGS));
    assert_eq!(find(&flags(Some("tcp://b:7"), Some(1), None), &[]).unwrap(), RankEnv::alone(FLAGS));
}

#[test]
fn wrong_flags_are_named() {
    let tcp = Some("tcp://beta:77");
    for (flags, expected) in [
        (flags(tcp, Some(4), None), "--distributed-rank is missing"),
        (flags(tcp, None, Some(0)), "--distributed-world-size is missing"),
        (flags(tcp, Some(4), Some(4)), "--distributed-rank is 4 but --distributed-world-size is 4"),
        (flags(tcp, Some(0), Some(0)), "--distributed-world-size is 0"),
        (flags(None, Some(4), Some(1)), "MASTER_ADDR is not set"),
        (flags(Some("udp://a:1"), Some(2), Some(1)), "udp:// is unknown"),
        (flags(Some("file://x/y"), Some(2), Some(1)), "write an absolute path"),
        (flags(Some("file:///x"), Some(2), Some(2)), "--distributed-rank is 2 but --distributed-world-size is 2"),
        (flags(Some("file:///x"), None, None), "--distributed-world-size is missing"),
        (flags(Some("file:///x"), Some(0), None), "--distributed-world-size is 0"),
        (flags(Some("beta:77"), Some(2), Some(1)), "no scheme"),
        (flags(Some("tcp://beta"), Some(2), Some(1)), "no port"),
        (flags(Some("tcp://:77"), Some(2), Some(1)), "host is empty"),
        (flags(Some("tcp://beta:0"), Some(2), Some(1)), "not a port"),
        (flags(Some("tcp://beta:99999"), Some(2), Some(1)), "not a port"),
        (flags(Some("tcp://::1:2900"), Some(2), Some(1)), "in brackets"),
        (flags(Some("tcp://[::1:2900"), Some(2), Some(1)), "not closed"),
        (flags(Some("tcp://[beta]:2900"), Some(2), Some(1)), "not an IPv6 address"),
        (flags(Some("tcp://be/ta:2900"), Some(2), Some(1)), "not a host name"),
        (flags(Some("nonsense"), Some(1), None), "--distributed-init-method is \"nonsense\""),
    ] {
        let text = error(&flags, &[]);
        assert!(text.contains(expected), "{flags:?}: {text}");
    }
}

#[test]
fn ranks_that_share_a_directory_need_no_numbers() {
    let shared = Rendezvous::Directory("/shared/dir".into());
    let method = Some("file:///shared/dir");
    let env = find(&flags(method, Some(4), None), &[]).unwrap();
    assert_eq!(env, RankEnv { rank: None, world: 4, rendezvous: shared.clone(), source: FLAGS });
    let env = find(&flags(method, Some(4), Some(2)), &[]).unwrap();
    assert_eq!((env.rank, env.rendezvous), (Some(2), shared.clone()));
    let slurm = [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8")];
    let env = find(&flags(method, None, None), &slurm).unwrap();
    assert_eq!((env.rank, env.world, env.rendezvous), (Some(5), 8, shared));
    assert_eq!(find(&flags(method, Some(1), None), &[]).unwrap(), RankEnv::alone(FLAGS));
}

#[test]
fn a_rendezvous_is_printed_as_it_is_written() {
    for method in ["tcp://beta:77", "tcp://[::1]:2900", "file:///shared/dir"] {
        let env = find(&flags(Some(method), Some(2), Some(1)), &[]).unwrap();
        assert_eq!(env.rendezvous.to_string(), method);
    }
}

#[test]
fn ipv6_is_accepted_in_every_form() {
    let env = find(&flags(Some("tcp://[::1]:2900"), Some(2), Some(1)), &[]).unwrap();
    assert_eq!(env.rendezvous, tcp("::1", 2900));
    for address in ["::1", "[::1]"] {
        let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", address), ("MASTER_PORT", "7")];
        assert_eq!(from_env(&variables).rendezvous, tcp("::1", 7));
    }
}

#[test]
fn torchrun_variables() {
    let env = from_env(&[("RANK", "1"), ("WORLD_SIZE", " 3 "), MASTER[0], MASTER[1]]);
    assert_eq!(env, RankEnv { rank: Some(1), world: 3, rendezvous: tcp("alpha", 2900), source: TORCHRUN });
    assert_eq!(from_env(&[("RANK", "0"), ("WORLD_SIZE", "1")]), RankEnv::alone(TORCHRUN));
    let none = RankFlags::default();
    for (variables, expected) in [
        (&[("RANK", "1")][..], "WORLD_SIZE is not set"),
        (&[("WORLD_SIZE", "2")], "RANK is not set"),
        (&[("RANK", "x"), ("WORLD_SIZE", "2")], "RANK is \"x\""),
        (&[("RANK", "-1"), ("WORLD_SIZE", "2")], "RANK is \"-1\""),
        (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK is 2 but WORLD_SIZE is 2"),
        (&[("RANK", "1"), ("WORLD_SIZE", "2")], "MASTER_ADDR is not set"),
        (&[("RANK", "1"), ("WORLD_SIZE", "2"), MASTER[0]], "MASTER_PORT is not set"),
        (&[("RANK", "1"), ("WORLD_SIZE", "2"), MASTER[0], ("MASTER_PORT", "http")], "MASTER_PORT is \"http\""),
    ] {
        let text = error(&none, variables);
        assert!(text.contains(expected), "{variables:?}: {text}");
    }
}

#[test]
fn slurm_variables() {
    let job = [
        ("SLURM_PROCID", "2"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_NODELIST", "big1,gpu[03-05]"),
        ("SLURM_JOB_ID", "4711"),
    ];
    let with = |more: &[(&'static str, &'static str)]| [&job[..], more].concat();
    let env = from_env(&job);
    let Rendezvous::Tcp { host, port } = &env.rendezvous else { panic!("{env:?}") };
    assert_eq!((env.rank, env.world, host.as_str(), env.source), (Some(2), 4, "big1", SLURM));
    assert!((15_000..30_000).contains(port));
    // Another rank of the same job uses the same port; another job another one.
    assert_eq!(from_env(&with(&[("SLURM_PROCID", "0")])).rendezvous, env.rendezvous);
    assert_ne!(from_env(&with(&[("SLURM_JOB_ID", "4712")])).rendezvous, env.rendezvous);
    let step = from_env(&with(&[("SLURM_STEP_NODELIST", "gpu[03-05]"), ("MASTER_PORT", "2900")]));
    assert_eq!(step.rendezvous, tcp("gpu03", 2900));
    let by_hand = from_env(&with(&MASTER));
    assert_eq!(by_hand.rendezvous, tcp("alpha", 2900));

    assert_eq!(from_env(&with(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")])), RankEnv::alone(SLURM));
    assert_eq!(from_env(&[("SLURM_JOB_ID", "4711"), ("SLURM_NTASKS", "4")]), RankEnv::alone(NOTHING));
    // A batch script itself, outside of `srun`.
    assert_eq!(from_env(&with(&[("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "")])), RankEnv::alone(SLURM));

    // The shell of `salloc` is a step of its own, with the number of tasks of the job.
    let shell = [("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "4294967290")];
    assert_eq!(from_env(&with(&shell)), RankEnv::alone(SLURM));

    let none = RankFlags::default();
    for (variables, expected) in [
        (with(&[("SLURM_PROCID", "4")]), "SLURM_PROCID is 4 but SLURM_NTASKS is 4"),
        (with(&[("SLURM_JOB_NODELIST", "a[")]), "SLURM_JOB_NODELIST is \"a[\""),
        (with(&[("SLURM_JOB_NODELIST", "")]), "set MASTER_ADDR"),
        (with(&[("SLURM_JOB_ID", "")]), "set MASTER_PORT"),
        (with(&[("WORLD_SIZE", "8")]), "WORLD_SIZE is 8"),
        (with(&[("SLURM_NTASKS", "")]), "SLURM_NTASKS is not set"),
    ] {
        let text = error(&none, &variables);
        assert!(text.contains(expected), "{variables:?}: {text}");
    }
}

#[test]
fn slurm_tasks_without_srun_are_found() {
    let unused = |variables: &[(&str, &str)]| {
        let env: HashMap<&str, &str> = variables.iter().copied().collect();
        unused_slurm_tasks(&|name| env.get(name).map(|value| (*value).to_owned()))
    };
    let job = ("SLURM_NTASKS", "4");
    assert_eq!(unused(&[job]), Some(4));
    assert_eq!(unused(&[job, ("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "4294967290")]), Some(4));
    assert_eq!(unused(&[job, ("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0")]), None, "under srun");
    assert_eq!(unused(&[job, ("RANK", "0")]), None, "under torchrun");
    assert_eq!(unused(&[("SLURM_NTASKS", "1")]), None);
    assert_eq!(unused(&[("SLURM_NTASKS", "many")]), None);
    assert_eq!(unused(&[]), None);
}

#[test]
fn mpi_variables() {
    let job = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "prterun-alpha-17@1"),
    ];
    let with = |more: &[(&'static str, &'static str)]| [&job[..], more].concat();
    let env = from_env(&job);
    let Rendezvous::Tcp { host, port } = &env.rendezvous else { panic!("{env:?}") };
    assert_eq!((env.rank, env.world, host.as_str(), env.source), (Some(1), 2, "127.0.0.1", OPEN_MPI));
    assert!((15_000..30_000).contains(port));
    let spread = ("OMPI_COMM_WORLD_LOCAL_SIZE", "1");
    assert_eq!(from_env(&with(&[spread, MASTER[0], MASTER[1]])).rendezvous, tcp("alpha", 2900));
    assert_eq!(from_env(&with(&[("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_RANK", "0")])).world, 1);
    let none = RankFlags::default();
    for (variables, expected) in [
        (with(&[spread]), "MASTER_ADDR is not set"),
        (with(&[("PMIX_NAMESPACE", "")]), "set MASTER_PORT"),
        (with(&[("OMPI_COMM_WORLD_SIZE", "")]), "OMPI_COMM_WORLD_SIZE is not set"),
        (with(&[("OMPI_COMM_WORLD_RANK", "7")]), "OMPI_COMM_WORLD_RANK is 7"),
    ] {
        let text = error(&none, &variables);
        assert!(text.contains(expected), "{variables:?}: {text}");
    }
}

#[test]
fn mpich_variables() {
    let job = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
    let with = |more: &[(&'static str, &'static str)]| [&job[..], more].concat();
    let env = from_env(&with(&[("MASTER_PORT", "2900")]));
    assert_eq!(env, RankEnv { rank: Some(1), world: 2, rendezvous: tcp("127.0.0.1", 2900), source: MPICH });
    assert!(error(&RankFlags::default(), &job).contains("set MASTER_PORT"));
    // `mpirun` inside a Slurm job, and `srun`, which sets the first two as well.
    let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", "0"), ("SLURM_JOB_ID", "5")];
    assert_eq!(from_env(&with(&[&slurm[..], &MASTER].concat())).source, MPICH);
    assert_eq!(from_env(&[&job[..2], &slurm, &MASTER].concat()).source, SLURM);
}

#[test]
fn over_mpi_only_launchers_count() {
    let find = |flags: &RankFlags, variables: &[(&str, &str)]| {
        let env: HashMap<&str, &str> = variables.iter().copied().collect();
        RankEnv::find_for_mpi(flags, &|name| env.get(name).map(|value| (*value).to_owned()))
    };
    let none = RankFlags::default();
    for (names, source) in [
        (["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], OPEN_MPI),
        (["PMI_RANK", "PMI_SIZE"], MPICH),
        (["SLURM_PROCID", "SLURM_NTASKS"], SLURM),
    ] {
        let job = [(names[0], "1"), (names[1], "2"), ("SLURM_STEP_ID", "0"), ("RANK", "7"), ("WORLD_SIZE", "8")];
        let expected = RankEnv { rank: Some(1), world: 2, rendezvous: Rendezvous::Mpi, source };
        assert_eq!(find(&none, &job).unwrap(), expected);
        assert!(find(&none, &[(names[0], "2"), job[1], job[2]]).is_err());
    }
    assert_eq!(find(&none, &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")]).unwrap(), RankEnv::alone(NOTHING));
    let unnumbered = find(&none, &[("PMIX_RANK", "1")]).unwrap();
    assert_eq!((unnumbered.rank, unnumbered.source), (None, OTHER_LAUNCHER));
    assert!(find(&flags(None, Some(2), Some(1)), &[]).unwrap_err().to_string().contains("leave out"));
}

proptest! {
    #[test]
    fn any_text_gives_a_rank_or_an_error(method in "((tcp|file)://)?[\\[\\]a-z0-9:./]{0,16}", value in ".{0,8}") {
        let _ = find(&flags(Some(&method), Some(2), Some(1)), &[]);
        let all = |_: &str| Some(value.clone());
        let _ = RankEnv::find(&RankFlags::default(), &all);
    }
}
