//! Who runs where: their ranks are GPUs, ours are processes, normally one per machine. Makes the commands that start
//! ours.

use super::command::Given;
use super::numbers;

#[derive(Debug, Default)]
pub(super) struct Launch {
    /// Their number of GPUs over all machines, if it is known.
    pub(super) world: Option<u64>,
    /// Machines, if there are several.
    pub(super) ranks: Option<u64>,
    /// Where they meet.
    pub(super) meet: Option<String>,
    pub(super) scheduler: Option<String>,
    /// `--reset` and `--optimizer-overrides`.
    pub(super) extra: String,
    /// What to say before the commands.
    pub(super) remarks: Vec<String>,
}

/// `world`: GPUs in all, as the user has told us.
pub(super) fn launch(given: &Given, world: Option<u64>) -> Launch {
    let count =
        |text: Option<&str>| text.and_then(numbers::whole).filter(|&number| number > 0).map(|number| number as u64);
    let flag = |name: &str| count(given.value(name));
    let told = |key: &str| given.launcher.get(key).map(String::as_str);
    let mut launch = Launch { scheduler: given.scheduler.clone(), extra: for_a_resume(given), ..Launch::default() };

    // Of the machine that this command was for.
    let here = flag("distributed-gpus").or(flag("distributed-num-procs")).or(count(told("nproc_per_node")));
    let nodes = count(told("nnodes"));
    let visible = given
        .environment
        .get("CUDA_VISIBLE_DEVICES")
        .map(|list| list.split(',').filter(|id| !id.is_empty()).count() as u64);
    launch.world = flag("distributed-world-size")
        .or(here.map(|here| here * nodes.unwrap_or(1)))
        .or(visible.filter(|&visible| visible > 0))
        .or(given.has("cpu").then_some(1))
        .or(world);

    launch.meet = meeting_place(given, &mut launch.remarks);
    if launch.meet.is_none() && nodes.unwrap_or(1) == 1 {
        if launch.world.is_some_and(|world| world > 1) {
            launch.remarks.push("One process uses all devices of a machine: run.devices says which.".to_owned());
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
            .remarks
            .push("A rank is a process here, one per machine with all its devices, not one per GPU.".to_owned());
    }
    if launch.meets_in_directory() {
        return launch;
    }
    if let Some(rank) = given.value("distributed-rank").and_then(numbers::whole).filter(|&rank| rank > 0)
        && let Some(here) = here
    {
        launch
            .remarks
            .push(format!("The line you gave (--distributed-rank {rank}) is rank {} below.", rank as u64 / here));
    }
    launch
}

fn meeting_place(given: &Given, remarks: &mut Vec<String>) -> Option<String> {
    if let Some(method) = given.value("distributed-init-method") {
        if method.starts_with("tcp://") {
            return Some(method.to_owned());
        }
        if method.starts_with("file://") {
            remarks.push(format!(
                "{method} is a directory here, shared by all machines and made if need be; remove a file of that name."
            ));
            return Some(method.to_owned());
        }
        remarks
            .push(format!("{method}: ranks meet at tcp://HOST:PORT of rank 0 here, or in a directory, file:///DIR."));
        return Some("tcp://HOST:29400".to_owned());
    }
    let told = |key: &str| given.launcher.get(key).filter(|value| !value.is_empty());
    let address =
        told("master_addr").map(|host| format!("{host}:{}", told("master_port").map_or("29500", String::as_str)));
    let address = address.or_else(|| told("rdzv_endpoint").cloned());
    let is_local = |address: &String| ["localhost", "127.0.0.1"].iter().any(|local| address.starts_with(local));
    address.filter(|address| !is_local(address)).map(|address| format!("tcp://{address}"))
}

/// What a resume shall not take over.
fn for_a_resume(given: &Given) -> String {
    let resets = [("reset-optimizer", "optimizer"), ("reset-lr-scheduler", "schedule"), ("reset-dataloader", "data")];
    let resets: Vec<&str> = resets.iter().filter(|(flag, _)| given.has(flag)).map(|(_, what)| *what).collect();
    let mut extra = if resets.is_empty() { String::new() } else { format!(" --reset {}", resets.join(",")) };
    if let Some(overrides) = given.value("optimizer-overrides").filter(|overrides| *overrides != "{}") {
        extra += &format!(" --optimizer-overrides \"{}\"", overrides.replace('"', "'"));
    }
    extra
}

impl Launch {
    /// Where rank 0 hands out the numbers, so that none is typed.
    pub(super) fn meets_in_directory(&self) -> bool {
        self.ranks != Some(1) && self.meet.as_ref().is_some_and(|meet| meet.starts_with("file://"))
    }

    /// The commands, with a word in front of each where there are several.
    pub(super) fn commands(&self, config: &str) -> Vec<String> {
        let train = format!("hetseq train {config}{}", self.extra);
        if let Some(scheduler) = self.scheduler.as_ref().filter(|_| self.ranks != Some(1)) {
            let one_each = if scheduler == "srun" { "srun --ntasks-per-node=1" } else { scheduler };
            return vec![format!("{one_each} {train}")];
        }
        let Some(meet) = self.meet.as_ref().filter(|_| self.ranks != Some(1)) else { return vec![train] };
        let train = format!("{train} --distributed-init-method {meet} --distributed-world-size");
        if self.meets_in_directory() {
            return vec![format!("{train} {}", self.ranks.map_or("MACHINES".to_owned(), |ranks| ranks.to_string()))];
        }
        let line = |rank: String, ranks: String| format!("{train} {ranks} --distributed-rank {rank}");
        match self.ranks {
            Some(ranks) if ranks <= 8 => (0..ranks).map(|rank| line(rank.to_string(), ranks.to_string())).collect(),
            Some(ranks) => vec![line(format!("R    # R from 0 to {}", ranks - 1), ranks.to_string())],
            None => vec![line("R    # R from 0 to MACHINES - 1".to_owned(), "MACHINES".to_owned())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::from_flags::{command, shell};

    fn launched(text: &str) -> Launch {
        launch(&command::read(&shell::parse(text, &|_| None).unwrap()).unwrap(), None)
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
        assert!(two.remarks.iter().any(|remark| remark.contains("is rank 1 below")), "{:?}", two.remarks);
    }

    #[test]
    fn as_torch_launches() {
        let two = launched(
            "python -m torch.distributed.launch --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=a --master_port=12345 $(which fairseq-train) x",
        );
        assert_eq!((two.world, two.ranks, two.meet.as_deref()), (Some(16), Some(2), Some("tcp://a:12345")));
        let srun = launched("srun fairseq-train x --distributed-world-size 16 --distributed-port 12345");
        assert_eq!(srun.commands("r.toml"), ["srun --ntasks-per-node=1 hetseq train r.toml"]);
    }

    #[test]
    fn ranks_that_meet_in_a_directory_need_no_numbers() {
        let file = "train.py --distributed-init-method file:///x/y --distributed-world-size 8 --distributed-rank 4";
        let line = "hetseq train r.toml --distributed-init-method file:///x/y --distributed-world-size";
        let two = launched(&format!("{file} --distributed-gpus 4"));
        assert_eq!(two.commands("r.toml"), [format!("{line} 2")]);
        assert!(two.remarks[0].starts_with("file:///x/y is a directory here"), "{:?}", two.remarks);
        assert_eq!(launched(file).commands("r.toml"), [format!("{line} MACHINES")]);
    }

    #[test]
    fn an_unknown_address_or_number_of_machines_is_said() {
        let unknown = launched("train.py --distributed-init-method env:// --distributed-world-size 8");
        assert!(unknown.remarks[0].starts_with("env://: ranks meet at tcp://"), "{:?}", unknown.remarks);
        assert!(unknown.commands("r.toml")[0].contains("--distributed-world-size MACHINES --distributed-rank R"));
    }
}
