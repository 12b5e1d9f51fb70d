//! The commands that start the ranks. In the old programs a rank is a GPU; here it is a process,
//! normally one per machine.

use super::command::GivenFlags;
use super::numbers;

#[derive(Debug, Default)]
pub(super) struct Launch {
    /// Number of GPUs over all machines, if it is known.
    pub(super) world: Option<u64>,
    /// Number of machines, if there are several.
    pub(super) ranks: Option<u64>,
    /// `tcp://` or `file://` URL.
    pub(super) rendezvous: Option<String>,
    pub(super) scheduler: Option<String>,
    /// `--reset` and `--optimizer-overrides`.
    pub(super) extra: String,
    /// Sentences to print before the commands.
    pub(super) notes: Vec<String>,
}

/// `world` is the number of GPUs over all machines that the user has passed.
pub(super) fn launch(given: &GivenFlags, world: Option<u64>) -> Launch {
    let count =
        |text: Option<&str>| text.and_then(numbers::integer).filter(|&number| number > 0).map(|number| number as u64);
    let flag = |name: &str| count(given.value(name));
    let launcher = |key: &str| given.launcher.get(key).map(String::as_str);
    let mut launch = Launch { scheduler: given.scheduler.clone(), extra: resume_flags(given), ..Launch::default() };

    // GPUs of the machine that the command was for.
    let here = flag("distributed-gpus").or(flag("distributed-num-procs")).or(count(launcher("nproc_per_node")));
    let nodes = count(launcher("nnodes"));
    let visible = given
        .environment
        .get("CUDA_VISIBLE_DEVICES")
        .map(|list| list.split(',').filter(|id| !id.is_empty()).count() as u64);
    launch.world = flag("distributed-world-size")
        .or(here.map(|here| here * nodes.unwrap_or(1)))
        .or(visible.filter(|&visible| visible > 0))
        .or(given.has("cpu").then_some(1))
        .or(world);

    launch.rendezvous = rendezvous(given, &mut launch.notes);
    if launch.rendezvous.is_none() && nodes.unwrap_or(1) == 1 {
        if launch.world.is_some_and(|world| world > 1) {
            launch.notes.push("One process uses all devices of a machine; run.devices selects them.".to_owned());
        }
        return launch;
    }
    launch.ranks = nodes.or(match (launch.world, here) {
        (Some(world), Some(here)) if world % here == 0 => Some(world / here),
        (Some(1), _) => Some(1),
        _ => None,
    });
    if launch.ranks != Some(1) {
        launch
            .notes
            .push("A rank is a process here, one per machine with all its devices, not one per GPU.".to_owned());
    }
    if launch.uses_directory() {
        return launch;
    }
    if let Some(rank) = given.value("distributed-rank").and_then(numbers::integer).filter(|&rank| rank > 0)
        && let Some(here) = here
    {
        launch
            .notes
            .push(format!("The given command (--distributed-rank {rank}) is rank {} below.", rank as u64 / here));
    }
    launch
}

/// The rendezvous of the ranks, from the flags or from the launcher.
fn rendezvous(given: &GivenFlags, notes: &mut Vec<String>) -> Option<String> {
    if let Some(method) = given.value("distributed-init-method") {
        if method.starts_with("tcp://") {
            return Some(method.to_owned());
        }
        if method.starts_with("file://") {
            notes.push(format!(
                "{method} is a directory here, which all machines share; it is created if needed. Remove a file of that name."
            ));
            return Some(method.to_owned());
        }
        notes.push(format!(
            "{method}: use tcp://HOST:PORT of rank 0, or file:///DIR, a directory that all machines share."
        ));
        return Some("tcp://HOST:29400".to_owned());
    }
    let launcher = |key: &str| given.launcher.get(key).filter(|value| !value.is_empty());
    let port = launcher("master_port").map_or("29500", String::as_str);
    let address = launcher("master_addr").map(|host| format!("{host}:{port}"));
    let address = address.or_else(|| launcher("rdzv_endpoint").cloned());
    let is_local = |address: &String| ["localhost", "127.0.0.1"].iter().any(|local| address.starts_with(local));
    address.filter(|address| !is_local(address)).map(|address| format!("tcp://{address}"))
}

/// The flags for a resume: what not to restore, and optimizer settings.
fn resume_flags(given: &GivenFlags) -> String {
    let resets = [("reset-optimizer", "optimizer"), ("reset-lr-scheduler", "schedule"), ("reset-dataloader", "data")];
    let resets: Vec<&str> = resets.iter().filter(|(flag, _)| given.has(flag)).map(|(_, what)| *what).collect();
    let mut extra = if resets.is_empty() { String::new() } else { format!(" --reset {}", resets.join(",")) };
    if let Some(overrides) = given.value("optimizer-overrides").filter(|overrides| *overrides != "{}") {
        extra += &format!(" --optimizer-overrides \"{}\"", overrides.replace('"', "'"));
    }
    extra
}

impl Launch {
    /// Whether the rendezvous is a directory. Rank 0 then assigns the ranks, so that the command is
    /// the same everywhere.
    pub(super) fn uses_directory(&self) -> bool {
        self.ranks != Some(1) && self.rendezvous.as_ref().is_some_and(|url| url.starts_with("file://"))
    }

    /// The commands that start the ranks.
    pub(super) fn commands(&self, config: &str) -> Vec<String> {
        let train = format!("hetseq train {config}{}", self.extra);
        if let Some(scheduler) = self.scheduler.as_ref().filter(|_| self.ranks != Some(1)) {
            let one_each = if scheduler == "srun" { "srun --ntasks-per-node=1" } else { scheduler };
            return vec![format!("{one_each} {train}")];
        }
        let Some(url) = self.rendezvous.as_ref().filter(|_| self.ranks != Some(1)) else { return vec![train] };
        let train = format!("{train} --distributed-init-method {url} --distributed-world-size");
        if self.uses_directory() {
            return vec![format!("{train} {}", self.ranks.map_or("MACHINES".to_owned(), |ranks| ranks.to_string()))];
        }
        let command = |rank: String, ranks: String| format!("{train} {ranks} --distributed-rank {rank}");
        match self.ranks {
            Some(ranks) if ranks <= 8 => (0..ranks).map(|rank| command(rank.to_string(), ranks.to_string())).collect(),
            Some(ranks) => vec![command(format!("R    # R from 0 to {}", ranks - 1), ranks.to_string())],
            None => vec![command("R    # R from 0 to MACHINES - 1".to_owned(), "MACHINES".to_owned())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::{command, words};

    fn launched(text: &str) -> Launch {
        launch(&command::read(&words::parse(text, &|_| None).unwrap()).unwrap(), None)
    }

    #[test]
    fn one_machine_is_one_process() {
        let one = launched("train.py --task mnist --distributed-world-size 4 --reset-optimizer --reset-dataloader");
        assert_eq!(
            (one.world, one.commands("run.toml")),
            (Some(4), vec!["hetseq train run.toml --reset optimizer,data".to_owned()])
        );
        let resumed = launched("train.py --task mnist --optimizer-overrides '{\"lr\": 1}'");
        assert_eq!(resumed.commands("r.toml"), ["hetseq train r.toml --optimizer-overrides \"{'lr': 1}\""]);
        assert_eq!(launched("CUDA_VISIBLE_DEVICES=0,3 fairseq-train x").world, Some(2));
        assert_eq!(launched("python -m torch.distributed.launch --nproc_per_node 4 train.py x").world, Some(4));
        assert_eq!(launched("fairseq-train x").world, None);
    }

    #[test]
    fn gpus_become_machines() {
        let two = launched(
            "train.py --distributed-init-method tcp://10.0.0.1:11111 --distributed-world-size 8 --distributed-gpus 4 --distributed-rank 4",
        );
        let line = "hetseq train r.toml --distributed-init-method tcp://10.0.0.1:11111 --distributed-world-size 2 --distributed-rank";
        assert_eq!(two.commands("r.toml"), [format!("{line} 0"), format!("{line} 1")]);
        assert!(two.notes.iter().any(|note| note.contains("is rank 1 below")), "{:?}", two.notes);
    }

    #[test]
    fn the_flags_of_torch_launchers_are_used() {
        let two = launched(
            "python -m torch.distributed.launch --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=a --master_port=12345 $(which fairseq-train) x",
        );
        assert_eq!((two.world, two.ranks, two.rendezvous.as_deref()), (Some(16), Some(2), Some("tcp://a:12345")));
        let srun = launched("srun fairseq-train x --distributed-world-size 16 --distributed-port 12345");
        assert_eq!(srun.commands("r.toml"), ["srun --ntasks-per-node=1 hetseq train r.toml"]);
    }

    #[test]
    fn ranks_with_a_shared_directory_need_no_numbers() {
        let file = "train.py --distributed-init-method file:///x/y --distributed-world-size 8 --distributed-rank 4";
        let line = "hetseq train r.toml --distributed-init-method file:///x/y --distributed-world-size";
        let two = launched(&format!("{file} --distributed-gpus 4"));
        assert_eq!(two.commands("r.toml"), [format!("{line} 2")]);
        assert!(two.notes[0].starts_with("file:///x/y is a directory here"), "{:?}", two.notes);
        assert_eq!(launched(file).commands("r.toml"), [format!("{line} MACHINES")]);
    }

    #[test]
    fn an_unknown_address_or_number_of_machines_is_reported() {
        let unknown = launched("train.py --distributed-init-method env:// --distributed-world-size 8");
        assert!(unknown.notes[0].starts_with("env://: use tcp://HOST:PORT"), "{:?}", unknown.notes);
        assert!(unknown.commands("r.toml")[0].contains("--distributed-world-size MACHINES --distributed-rank R"));
    }
}
