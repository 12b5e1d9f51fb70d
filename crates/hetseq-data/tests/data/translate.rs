//! Parallel text: the same bytes on any number of cores and after any interruption, what is read from them, and what is
//! refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use hetseq_data::prep::translate::{SubwordModel, SubwordSource, TranslateSettings, prepare};
use hetseq_data::prep::{Prepared, Watch};
use hetseq_data::pretrain::{PretrainConfig, PretrainData};
use hetseq_data::source::corpus::{CorpusSplit, Manifest};
use hetseq_data::source::pairs::{DropReason, PairCounts};
use hetseq_data::{Costs, ParallelData, Special, TranslateTokenizer};
use hetseq_random::Key;

/// Ends a preparation when it has been asked so often.
struct StopAfter(AtomicUsize);

impl Watch for StopAfter {
    fn begin(&self, _what: &str, _bytes: u64) {}

    fn reached(&self, _bytes: u64) {}

    fn is_stopped(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

fn run(settings: &TranslateSettings, asked: usize) -> Option<Manifest<PairCounts>> {
    match prepare(settings, &StopAfter(AtomicUsize::new(asked))).unwrap() {
        Prepared::Finished { manifest, .. } => Some(manifest),
        Prepared::Stopped => None,
    }
}

fn to_the_end(settings: &TranslateSettings) -> Manifest<PairCounts> {
    run(settings, usize::MAX).expect("nobody stopped it")
}

fn refused(settings: &TranslateSettings) -> String {
    prepare(settings, &StopAfter(AtomicUsize::new(usize::MAX))).unwrap_err().to_string()
}

/// A sentence and its translation, which is the same in other syllables.
fn sentence(seed: u64, at: u64) -> [String; 2] {
    let key = Key::root(seed).index(at);
    let words = 2 + key.below(0, 10);
    let word = |syllables: [&str; 6], word: u64| {
        let rank = key.below(2 * word + 1, 30) * key.below(2 * word + 2, 30);
        format!("{}{}{}", syllables[rank as usize % 3], syllables[3 + rank as usize / 3 % 3], rank % 23)
    };
    let line = |syllables| (0..words).map(|at| word(syllables, at)).collect::<Vec<_>>().join(" ") + ".";
    [line(["ka", "lo", "mi", "s", "ta", "ren"]), line(["\u{fc}b", "Sch", "ei", "\u{df}", "en", "rt"])]
}

struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new(pairs: u64) -> Self {
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        scene.write("train", 1, pairs);
        scene.write("valid", 2, 60);
        scene
    }

    fn write(&self, name: &str, seed: u64, pairs: u64) {
        let lines: Vec<[String; 2]> = (0..pairs).map(|at| sentence(seed, at)).collect();
        for (side, language) in ["en", "de"].into_iter().enumerate() {
            let text: String = lines.iter().map(|pair| pair[side].clone() + "\n").collect();
            std::fs::write(self.path(&format!("{name}.{language}")), text).unwrap();
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn settings(&self, output: &str) -> TranslateSettings {
        TranslateSettings {
            source: vec![self.path("train.en")],
            target: vec![self.path("train.de")],
            valid_source: vec![self.path("valid.en")],
            valid_target: vec![self.path("valid.de")],
            output: self.path(output),
            vocabulary: trained(SubwordModel::Bpe, false),
            languages: [Some("en".to_owned()), None],
            min_length: 1,
            max_length: 100,
            max_ratio: 0.0,
            shard_mib: 1,
        }
    }

    /// What a directory holds: names and bytes.
    fn content(&self, output: &str) -> BTreeMap<String, Vec<u8>> {
        let files = std::fs::read_dir(self.path(output)).unwrap().map(|entry| entry.unwrap());
        files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
    }
}

fn trained(model: SubwordModel, separate: bool) -> SubwordSource {
    SubwordSource::Trained { size: 300, model, separate }
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn any_number_of_cores_writes_the_same_bytes() {
    let scene = Scene::new(20_000);
    for (name, model, separate) in
        [("bpe", SubwordModel::Bpe, false), ("unigram", SubwordModel::Unigram, false), ("two", SubwordModel::Bpe, true)]
    {
        let mut contents = Vec::new();
        for cores in [1, 5] {
            let output = format!("{name}{cores}");
            let settings = TranslateSettings { vocabulary: trained(model, separate), ..scene.settings(&output) };
            let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build().unwrap();
            let manifest = pool.install(|| to_the_end(&settings));
            assert_eq!((manifest.train.pairs, manifest.valid.pairs), (20_000, 60));
            assert!(manifest.shards.len() > 2, "several parts: {:?}", manifest.shards);
            contents.push(scene.content(&output));
        }
        assert!(contents[0].len() > 6, "{:?}", contents[0].keys());
        assert!(contents[0] == contents[1], "{:?} and {:?}", contents[0].keys(), contents[1].keys());
    }
}

#[test]
fn an_interrupted_preparation_goes_on_to_the_same_bytes() {
    let scene = Scene::new(20_000);
    to_the_end(&scene.settings("whole"));
    let settings = scene.settings("often");
    let mut stops = 0;
    // Of held-out text it is asked at each line, of the rest at each chunk: so it gets a little further now and then.
    while run(&settings, 60 + stops / 3).is_none() {
        stops += 1;
        assert!(stops < 200, "it never ends");
    }
    assert!(stops > 3, "it was stopped {stops} times only");
    assert!(scene.content("whole") == scene.content("often"));
    let Prepared::Finished { was_there, .. } = prepare(&settings, &StopAfter(AtomicUsize::new(0))).unwrap() else {
        panic!("there was nothing to stop");
    };
    assert!(was_there);
    let other = refused(&TranslateSettings { max_length: 99, ..settings });
    assert!(other.contains("max_length: 100 there, 99 here"), "{other}");
}

#[test]
fn pairs_come_back_as_they_were_written() {
    let scene = Scene::new(500);
    for (output, separate) in [("joint", false), ("separate", true)] {
        let vocabulary = trained(SubwordModel::Unigram, separate);
        to_the_end(&TranslateSettings { vocabulary, ..scene.settings(output) });
        let dir = scene.path(output);
        let tokenizer = TranslateTokenizer::read(&dir).unwrap();
        assert_eq!(tokenizer.is_joint(), !separate);
        assert_eq!(tokenizer.languages(), &[Some("en".to_owned()), None]);
        let [train, valid] = CorpusSplit::ALL.map(|split| ParallelData::open(&dir, split).unwrap());
        let costs = train.costs(8, 512);
        let Costs::Pairs { tokens: costs, .. } = &costs else { panic!("pairs have two sides") };
        assert_eq!((train.pairs(), valid.pairs(), costs.len()), (500, 60, 500));
        for (data, name) in [(&train, "train"), (&valid, "valid")] {
            let [source, target] = ["en", "de"].map(|side| lines(&scene.path(&format!("{name}.{side}"))));
            for pair in 0..data.pairs() as u32 {
                let [own_source, own_target]: [Vec<u32>; 2] =
                    [data.source(pair).collect(), data.target(pair).collect()];
                assert_eq!(own_source, tokenizer.encode_source(&source[pair as usize]).unwrap());
                assert_eq!(tokenizer.decode_target(&own_target).unwrap(), target[pair as usize]);
                assert_eq!(data.reference(pair), (name == "valid").then_some(&*target[pair as usize]));
                if name == "train" {
                    assert_eq!(costs[pair as usize] as usize, own_source.len() + own_target.len());
                    assert!(own_source.len() <= data.longest().0 && own_target.len() <= data.longest().1);
                }
            }
        }
        assert_eq!(train.source(500).count(), 0, "there is no such pair");
        assert!(train.collate(&[500], 1, 512).is_err());
        assert_ne!(train.fingerprint(), valid.fingerprint());
        assert_eq!(train.fingerprint(), ParallelData::open(&dir, CorpusSplit::Train).unwrap().fingerprint());
    }
}

#[test]
fn padding_ends_at_the_models_positions() {
    let scene = Scene::new(200);
    to_the_end(&scene.settings("out"));
    let data = ParallelData::open(&scene.path("out"), CorpusSplit::Train).unwrap();
    let longest = (0..data.pairs() as u32).max_by_key(|&pair| data.source(pair).count()).unwrap();
    let positions = data.source(longest).count();
    for multiple in [8 * positions, usize::MAX] {
        let batch = data.collate(&[longest], multiple, positions).unwrap();
        assert_eq!((batch.source_width(), batch.target_width()), (positions, positions));
    }
}

#[test]
fn no_batch_has_more_tokens_than_its_costs_say() {
    let scene = Scene::new(200);
    // One has the longer source, the other the longer target.
    for (file, pairs) in
        [("train.en", ["kasta ".repeat(9), "kasta".to_owned()]), ("train.de", ["Schen".to_owned(), "Schen ".repeat(9)])]
    {
        let text = std::fs::read_to_string(scene.path(file)).unwrap() + &pairs.map(|line| line + "\n").concat();
        std::fs::write(scene.path(file), text).unwrap();
    }
    to_the_end(&TranslateSettings { vocabulary: trained(SubwordModel::Bpe, true), ..scene.settings("out") });
    let data = ParallelData::open(&scene.path("out"), CorpusSplit::Train).unwrap();
    let (a, b) = (200, 201);
    for multiple in [1, 8] {
        let (batch, costs) = (data.collate(&[a, b], multiple, 512).unwrap(), data.costs(multiple, 512));
        let width = (batch.source_width() + batch.target_width()) as u32;
        assert!(width <= costs.padded(a).max(costs.padded(b)));
        // Both sides together say too little.
        assert!(width > costs.tokens(a).max(costs.tokens(b)));
    }
}

#[test]
fn a_batch_pads_each_side_to_its_longest() {
    let scene = Scene::new(200);
    to_the_end(&TranslateSettings { vocabulary: trained(SubwordModel::Bpe, true), ..scene.settings("out") });
    let data = ParallelData::open(&scene.path("out"), CorpusSplit::Valid).unwrap();
    let tokenizer = TranslateTokenizer::read(&scene.path("out")).unwrap();
    let (Special { pad, .. }, source_pad) = (tokenizer.special(), tokenizer.source_special().pad);
    let pairs = [7, 3, 59, 3];
    for multiple in [0, 1, 8] {
        let batch = data.collate(&pairs, multiple, 512).unwrap();
        let (width, target_width) = (batch.source_width(), batch.target_width());
        assert_eq!(batch.pairs(), 4);
        let longest = batch.source_lengths.iter().copied().max().unwrap() as usize;
        assert_eq!(width, longest.next_multiple_of(multiple.max(1)));
        assert_eq!(batch.target_in.len(), batch.target_out.len());
        for (row, &pair) in pairs.iter().enumerate() {
            let padded = |ids: &[u32], width: usize, pad: u32| {
                let filled = ids.iter().copied().chain(std::iter::repeat(pad)).take(width);
                filled.map(|id| id as i32).collect::<Vec<i32>>()
            };
            let source: Vec<u32> = data.source(pair).collect();
            let target: Vec<u32> = data.target(pair).collect();
            let read: Vec<u32> = std::iter::once(pad).chain(target[..target.len() - 1].iter().copied()).collect();
            assert_eq!(batch.source[row * width..][..width], padded(&source, width, source_pad));
            assert_eq!(batch.target_out[row * target_width..][..target_width], padded(&target, target_width, pad));
            assert_eq!(batch.target_in[row * target_width..][..target_width], padded(&read, target_width, pad));
            assert_eq!(
                (batch.source_lengths[row], batch.target_lengths[row]),
                (source.len() as u32, target.len() as u32)
            );
            assert_eq!(Some(&*batch.references[row]), data.reference(pair));
        }
    }
    let train = ParallelData::open(&scene.path("out"), CorpusSplit::Train).unwrap();
    assert!(train.collate(&[1, 2], 8, 512).unwrap().references.is_empty());
    assert_eq!(train.collate(&[], 8, 512).unwrap().pairs(), 0);
}

#[test]
fn pairs_that_do_not_fit_are_counted_with_the_first_of_each_kind() {
    let scene = Scene::new(100);
    let mut source = lines(&scene.path("train.en"));
    let mut target = lines(&scene.path("train.de"));
    let add = |pair: [&str; 2], sides: [&mut Vec<String>; 2]| {
        sides.into_iter().zip(pair).for_each(|(side, line)| side.push(line.to_owned()));
    };
    for pair in [
        ["", "leer"],
        ["kalomi", "  "],
        [&"x ".repeat(200), "kurz"],
        ["a", "b"],
        [&"ka ".repeat(30), "ein Wort"],
        [&"y".repeat(3 << 20), "eine Zeile ohne Ende"],
    ] {
        add(pair, [&mut source, &mut target]);
    }
    std::fs::write(scene.path("train.en"), source.join("\n")).unwrap();
    std::fs::write(scene.path("train.de"), target.join("\n")).unwrap();
    std::fs::write(scene.path("valid.en"), "a\n\nka lo mi ka lo mi ka lo\n").unwrap();
    std::fs::write(scene.path("valid.de"), "b\nx\ny\n").unwrap();
    let settings = TranslateSettings { min_length: 3, max_ratio: 2.5, ..scene.settings("out") };
    let manifest = to_the_end(&settings);
    let told = |counts: &PairCounts| -> Vec<(DropReason, u64, u64)> {
        counts.dropped.iter().map(|(&reason, dropped)| (reason, dropped.pairs, dropped.first_line)).collect()
    };
    assert_eq!(
        told(&manifest.train),
        [
            (DropReason::Empty, 2, 101),
            (DropReason::TooLong, 2, 103),
            (DropReason::TooShort, 1, 104),
            (DropReason::Ratio, 1, 105)
        ]
    );
    assert_eq!((manifest.train.read, manifest.train.pairs), (106, 100));
    assert!(manifest.train.dropped.values().all(|dropped| dropped.first_file == "train.en"));
    assert_eq!(told(&manifest.valid), [(DropReason::Empty, 1, 2)], "neither short ones nor unequal ones");
    let data = ParallelData::open(&scene.path("out"), CorpusSplit::Valid).unwrap();
    assert_eq!([data.reference(0), data.reference(1)], [Some("b"), Some("y")]);
}

#[test]
fn several_files_and_a_given_tokenizer() {
    let scene = Scene::new(300);
    scene.write("more", 3, 50);
    to_the_end(&TranslateSettings { vocabulary: trained(SubwordModel::Bpe, true), ..scene.settings("first") });
    let mut settings = scene.settings("second");
    settings.source.push(scene.path("more.en"));
    settings.target.push(scene.path("more.de"));
    settings.vocabulary = SubwordSource::Given { path: scene.path("first") };
    assert_eq!(to_the_end(&settings).train.pairs, 350);
    let (first, second) = (scene.content("first"), scene.content("second"));
    for file in ["source_tokenizer.json", "target_tokenizer.json", "tokenizer_config.json"] {
        assert!(first[file] == second[file], "{file}");
    }
    settings.output = scene.path("third");
    settings.vocabulary = SubwordSource::Given { path: scene.path("first/target_tokenizer.json") };
    to_the_end(&settings);
    assert!(TranslateTokenizer::read(&scene.path("third")).unwrap().is_joint());

    settings.output = scene.path("fourth");
    settings.target.pop();
    assert!(refused(&settings).contains("2 source files but 1 target files"));
    settings.target.push(scene.path("more.de"));
    settings.vocabulary = SubwordSource::Given { path: scene.path("nowhere.json") };
    assert!(refused(&settings).contains("nowhere.json"));
    settings.vocabulary = SubwordSource::Given { path: scene.dir.path().to_owned() };
    assert!(refused(&settings).contains("neither tokenizer.json"), "{}", refused(&settings));
}

#[test]
fn input_at_fault_is_named_and_leaves_the_directory_as_it_was() {
    let scene = Scene::new(100);
    let settings = scene.settings("out");
    let whole = std::fs::read(scene.path("train.de")).unwrap();
    let second = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let mut latin = whole.clone();
    latin[second] = 0xe4;
    let mut zero = whole.clone();
    zero[second] = 0;
    let short = whole[..second].to_vec();
    for (bytes, parts) in [
        (latin, ["train.de, line 2", "not UTF-8"]),
        (zero, ["train.de, line 2", "zero byte"]),
        (short, ["train.en has 100 lines", "train.de has 1;"]),
        (Vec::new(), ["train.de", "has no lines"]),
        (vec![b'\n'; 100], ["no pair is left of 100", "100 a side is empty (the first in train.en, line 1)"]),
    ] {
        std::fs::write(scene.path("train.de"), bytes).unwrap();
        let error = refused(&settings);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!(scene.content("out").len(), 0, "{error}");
    }
    std::fs::write(scene.path("train.de"), whole).unwrap();
    std::fs::write(scene.path("valid.de"), "one line\n").unwrap();
    let error = refused(&settings);
    assert!(error.contains("valid.en has 60 lines") && error.contains("valid.de has 1;"), "{error}");
    scene.write("valid", 2, 60);
    assert_eq!(to_the_end(&settings).train.pairs, 100);
}

#[test]
fn damage_is_found() {
    let scene = Scene::new(100);
    to_the_end(&scene.settings("out"));
    let dir = scene.path("out");
    let open = |split| ParallelData::open(&dir, split);
    let totals = open(CorpusSplit::Train).unwrap().verify(None).unwrap();
    assert_eq!(totals.pairs, 100);
    let few = open(CorpusSplit::Train).unwrap().verify(Some(10)).unwrap_err().to_string();
    assert!(few.contains("only 10 tokens"), "{few}");

    let references = dir.join("valid-00001.txt");
    let whole = std::fs::read(&references).unwrap();
    std::fs::write(&references, &whole[1..]).unwrap();
    let error = open(CorpusSplit::Valid).unwrap_err().to_string();
    assert!(error.contains("valid-00001.txt") && error.contains("checksum"), "{error}");
    std::fs::write(&references, whole).unwrap();

    let shard = dir.join("train-00000.tokens");
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[200] = 0xff;
    bytes[201] = 0xff;
    std::fs::write(&shard, &bytes).unwrap();
    let data = open(CorpusSplit::Train).unwrap();
    assert!(data.verify(None).unwrap_err().to_string().contains("checksum"));
    let error = data.collate(&(0..100).collect::<Vec<u32>>(), 1, 512).unwrap_err().to_string();
    assert!(error.contains("train-00000.tokens") && error.contains("65535"), "{error}");
}

#[test]
fn kinds_of_corpora_are_not_mixed_up() {
    let scene = Scene::new(100);
    to_the_end(&TranslateSettings { valid_source: Vec::new(), valid_target: Vec::new(), ..scene.settings("out") });
    let dir = scene.path("out");
    let error = PretrainData::open(&dir, CorpusSplit::Train, &PretrainConfig::default()).unwrap_err().to_string();
    assert!(error.contains("`pairs`") && error.contains("hetseq prep bert"), "{error}");
    let error = ParallelData::open(&dir, CorpusSplit::Valid).unwrap_err().to_string();
    assert!(error.contains("--valid-source"), "{error}");
    let text = std::fs::read_to_string(dir.join("corpus.json")).unwrap();
    std::fs::write(dir.join("corpus.json"), text.replace("\"pairs\",", "\"compact\",")).unwrap();
    let error = ParallelData::open(&dir, CorpusSplit::Train).unwrap_err().to_string();
    assert!(error.contains("`compact`") && error.contains("hetseq prep translate"), "{error}");
    assert!(ParallelData::open(&scene.path("nowhere"), CorpusSplit::Train).is_err());
}
