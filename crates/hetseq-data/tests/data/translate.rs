//! Tests of parallel text: the same bytes on any number of cores and after any interruption,
//! reading of the output, and refused inputs.

use std::path::{Path, PathBuf};

use hetseq_data::prep::PrepOutcome;
use hetseq_data::prep::translate::{SubwordModel, SubwordSource, TranslateSettings, prepare};
use hetseq_data::pretrain::{PretrainConfig, PretrainData};
use hetseq_data::source::corpus::{CorpusManifest, CorpusSplit};
use hetseq_data::source::parallel_corpus::{DropReason, PairCounts};
use hetseq_data::{Batch, ParallelData, SampleLengths, SubwordSpecialTokens, TranslateTokenizer};
use hetseq_random::Key;

use crate::prep_runs::{StopAfter, assert_same_on_any_cores, content};

fn run(settings: &TranslateSettings, polls: usize) -> Option<CorpusManifest<PairCounts>> {
    match prepare(settings, &StopAfter::new(polls)).unwrap() {
        PrepOutcome::Finished { manifest, .. } => Some(manifest),
        PrepOutcome::Stopped => None,
    }
}

fn prepare_all(settings: &TranslateSettings) -> CorpusManifest<PairCounts> {
    run(settings, usize::MAX).expect("it must not stop")
}

fn refused(settings: &TranslateSettings) -> String {
    prepare(settings, &StopAfter::never()).unwrap_err().to_string()
}

/// A sentence and its translation: the same words in other syllables.
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

/// A temporary directory with parallel text.
struct TestDir {
    temp: tempfile::TempDir,
}

impl TestDir {
    fn new(pairs: u64) -> Self {
        let dir = TestDir { temp: tempfile::tempdir().unwrap() };
        dir.write("train", 1, pairs);
        dir.write("valid", 2, 60);
        dir
    }

    fn write(&self, name: &str, seed: u64, pairs: u64) {
        let lines: Vec<[String; 2]> = (0..pairs).map(|at| sentence(seed, at)).collect();
        for (side, language) in ["en", "de"].into_iter().enumerate() {
            let text: String = lines.iter().map(|pair| pair[side].clone() + "\n").collect();
            std::fs::write(self.path(&format!("{name}.{language}")), text).unwrap();
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
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
}

fn trained(model: SubwordModel, separate: bool) -> SubwordSource {
    SubwordSource::Trained { size: 300, model, separate }
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn any_number_of_cores_writes_the_same_bytes() {
    let dir = TestDir::new(20_000);
    for (name, model, separate) in
        [("bpe", SubwordModel::Bpe, false), ("unigram", SubwordModel::Unigram, false), ("two", SubwordModel::Bpe, true)]
    {
        assert_same_on_any_cores(|cores| {
            let output = format!("{name}{cores}");
            let settings = TranslateSettings { vocabulary: trained(model, separate), ..dir.settings(&output) };
            let manifest = prepare_all(&settings);
            assert_eq!((manifest.train.pairs, manifest.valid.pairs), (20_000, 60));
            assert!(manifest.shards.len() > 2, "several parts: {:?}", manifest.shards);
            settings.output
        });
    }
}

#[test]
fn an_interrupted_preparation_resumes_and_gives_the_same_bytes() {
    let dir = TestDir::new(20_000);
    prepare_all(&dir.settings("whole"));
    let settings = dir.settings("often");
    let mut stops = 0;
    // The observer is polled at each line of held-out text and at each chunk of the rest. More
    // polls on every third attempt let the preparation get further.
    while run(&settings, 60 + stops / 3).is_none() {
        stops += 1;
        assert!(stops < 200, "it never ends");
    }
    assert!(stops > 3, "it was stopped only {stops} times");
    assert!(content(&dir.path("whole")) == content(&dir.path("often")));
    let PrepOutcome::Finished { was_there, .. } = prepare(&settings, &StopAfter::new(0)).unwrap() else {
        panic!("there was nothing to stop");
    };
    assert!(was_there);
    let other = refused(&TranslateSettings { max_length: 99, ..settings });
    assert!(other.contains("max_length: was 100, now 99"), "{other}");
}

#[test]
fn pairs_are_read_back_as_they_were_written() {
    let dir = TestDir::new(500);
    for (output, separate) in [("joint", false), ("separate", true)] {
        let vocabulary = trained(SubwordModel::Unigram, separate);
        prepare_all(&TranslateSettings { vocabulary, ..dir.settings(output) });
        let output_dir = dir.path(output);
        let tokenizer = TranslateTokenizer::read(&output_dir).unwrap();
        assert_eq!(tokenizer.is_joint(), !separate);
        assert_eq!(tokenizer.languages(), &[Some("en".to_owned()), None]);
        let [train, valid] = CorpusSplit::ALL.map(|split| ParallelData::open(&output_dir, split).unwrap());
        let SampleLengths::Pairs { tokens: lengths, .. } = train.lengths(8, 512) else {
            panic!("pairs have two sides")
        };
        assert_eq!((train.pairs(), valid.pairs(), lengths.len()), (500, 60, 500));
        for (data, name) in [(&train, "train"), (&valid, "valid")] {
            let [source, target] = ["en", "de"].map(|side| lines(&dir.path(&format!("{name}.{side}"))));
            for pair in 0..data.pairs() as u32 {
                let [own_source, own_target]: [Vec<u32>; 2] =
                    [data.source(pair).collect(), data.target(pair).collect()];
                assert_eq!(own_source, tokenizer.encode_source(&source[pair as usize]).unwrap());
                assert_eq!(tokenizer.decode_target(&own_target).unwrap(), target[pair as usize]);
                assert_eq!(data.reference(pair), (name == "valid").then_some(&*target[pair as usize]));
                if name == "train" {
                    assert_eq!(lengths[pair as usize] as usize, own_source.len() + own_target.len());
                    assert!(own_source.len() <= data.longest().0 && own_target.len() <= data.longest().1);
                }
            }
        }
        assert_eq!(train.source(500).count(), 0, "there is no such pair");
        assert!(train.collate(&[500], 1, 512).is_err());
        assert_ne!(train.fingerprint(), valid.fingerprint());
        assert_eq!(train.fingerprint(), ParallelData::open(&output_dir, CorpusSplit::Train).unwrap().fingerprint());
    }
}

#[test]
fn padding_does_not_exceed_the_models_positions() {
    let dir = TestDir::new(200);
    prepare_all(&dir.settings("out"));
    let data = ParallelData::open(&dir.path("out"), CorpusSplit::Train).unwrap();
    let longest = (0..data.pairs() as u32).max_by_key(|&pair| data.source(pair).count()).unwrap();
    let positions = data.source(longest).count();
    for multiple in [8 * positions, usize::MAX] {
        let batch = data.collate(&[longest], multiple, positions).unwrap();
        assert_eq!((batch.source_width(), batch.target_width()), (positions, positions));
    }
}

#[test]
fn no_batch_has_more_tokens_than_its_padded_lengths() {
    let dir = TestDir::new(200);
    // One has the longer source, the other the longer target.
    for (file, pairs) in
        [("train.en", ["kasta ".repeat(9), "kasta".to_owned()]), ("train.de", ["Schen".to_owned(), "Schen ".repeat(9)])]
    {
        let text = std::fs::read_to_string(dir.path(file)).unwrap() + &pairs.map(|line| line + "\n").concat();
        std::fs::write(dir.path(file), text).unwrap();
    }
    prepare_all(&TranslateSettings { vocabulary: trained(SubwordModel::Bpe, true), ..dir.settings("out") });
    let data = ParallelData::open(&dir.path("out"), CorpusSplit::Train).unwrap();
    let (a, b) = (200, 201);
    for multiple in [1, 8] {
        let (batch, lengths) = (data.collate(&[a, b], multiple, 512).unwrap(), data.lengths(multiple, 512));
        let width = (batch.source_width() + batch.target_width()) as u32;
        assert!(width <= lengths.padded(a).max(lengths.padded(b)));
        // The sum of both sides is not a bound.
        assert!(width > lengths.tokens(a).max(lengths.tokens(b)));
    }
}

#[test]
fn a_batch_pads_each_side_to_its_longest() {
    let dir = TestDir::new(200);
    prepare_all(&TranslateSettings { vocabulary: trained(SubwordModel::Bpe, true), ..dir.settings("out") });
    let data = ParallelData::open(&dir.path("out"), CorpusSplit::Valid).unwrap();
    let tokenizer = TranslateTokenizer::read(&dir.path("out")).unwrap();
    let (SubwordSpecialTokens { pad, .. }, source_pad) = (tokenizer.special(), tokenizer.source_special().pad);
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
            assert!(data.reference(pair).is_some());
        }
        let arrays = Batch::from(batch.clone());
        arrays.check().unwrap();
        assert_eq!(arrays.counts(), [batch.target_lengths.iter().map(|&length| u64::from(length)).sum::<u64>()]);
        assert_eq!(arrays.shape("target_out"), Ok([pairs.len(), target_width]));
        assert_eq!(arrays.i32s("source"), Ok(&batch.source[..]));
    }
    let train = ParallelData::open(&dir.path("out"), CorpusSplit::Train).unwrap();
    assert_eq!(train.reference(1), None);
    assert_eq!(train.collate(&[], 8, 512).unwrap().pairs(), 0);
}

#[test]
fn dropped_pairs_are_counted_with_the_first_of_each_reason() {
    let dir = TestDir::new(100);
    let mut source = lines(&dir.path("train.en"));
    let mut target = lines(&dir.path("train.de"));
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
    std::fs::write(dir.path("train.en"), source.join("\n")).unwrap();
    std::fs::write(dir.path("train.de"), target.join("\n")).unwrap();
    std::fs::write(dir.path("valid.en"), "a\n\nka lo mi ka lo mi ka lo\n").unwrap();
    std::fs::write(dir.path("valid.de"), "b\nx\ny\n").unwrap();
    let settings = TranslateSettings { min_length: 3, max_ratio: 2.5, ..dir.settings("out") };
    let manifest = prepare_all(&settings);
    let dropped = |counts: &PairCounts| -> Vec<(DropReason, u64, u64)> {
        counts.dropped.iter().map(|(&reason, dropped)| (reason, dropped.pairs, dropped.first_line)).collect()
    };
    assert_eq!(
        dropped(&manifest.train),
        [
            (DropReason::Empty, 2, 101),
            (DropReason::TooLong, 2, 103),
            (DropReason::TooShort, 1, 104),
            (DropReason::Ratio, 1, 105)
        ]
    );
    assert_eq!((manifest.train.read, manifest.train.pairs), (106, 100));
    assert!(manifest.train.dropped.values().all(|dropped| dropped.first_file == "train.en"));
    assert_eq!(dropped(&manifest.valid), [(DropReason::Empty, 1, 2)], "short and unequal pairs are not dropped");
    let data = ParallelData::open(&dir.path("out"), CorpusSplit::Valid).unwrap();
    assert_eq!([data.reference(0), data.reference(1)], [Some("b"), Some("y")]);
}

#[test]
fn several_files_and_a_given_tokenizer_work() {
    let dir = TestDir::new(300);
    dir.write("more", 3, 50);
    prepare_all(&TranslateSettings { vocabulary: trained(SubwordModel::Bpe, true), ..dir.settings("first") });
    let mut settings = dir.settings("second");
    settings.source.push(dir.path("more.en"));
    settings.target.push(dir.path("more.de"));
    settings.vocabulary = SubwordSource::Given { path: dir.path("first") };
    assert_eq!(prepare_all(&settings).train.pairs, 350);
    let (first, second) = (content(&dir.path("first")), content(&dir.path("second")));
    for file in ["source_tokenizer.json", "target_tokenizer.json", "tokenizer_config.json"] {
        assert!(first[file] == second[file], "{file}");
    }
    settings.output = dir.path("third");
    settings.vocabulary = SubwordSource::Given { path: dir.path("first/target_tokenizer.json") };
    prepare_all(&settings);
    assert!(TranslateTokenizer::read(&dir.path("third")).unwrap().is_joint());

    settings.output = dir.path("fourth");
    settings.target.pop();
    assert!(refused(&settings).contains("2 source files but 1 target files"));
    settings.target.push(dir.path("more.de"));
    settings.vocabulary = SubwordSource::Given { path: dir.path("nowhere.json") };
    assert!(refused(&settings).contains("nowhere.json"));
    settings.vocabulary = SubwordSource::Given { path: dir.temp.path().to_owned() };
    assert!(refused(&settings).contains("neither tokenizer.json"), "{}", refused(&settings));
}

#[test]
fn invalid_input_is_named_and_leaves_the_directory_empty() {
    let dir = TestDir::new(100);
    let settings = dir.settings("out");
    let whole = std::fs::read(dir.path("train.de")).unwrap();
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
        (vec![b'\n'; 100], ["none of the 100 pairs", "100 a side is empty (the first in train.en, line 1)"]),
    ] {
        std::fs::write(dir.path("train.de"), bytes).unwrap();
        let error = refused(&settings);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!(content(&dir.path("out")).len(), 0, "{error}");
    }
    std::fs::write(dir.path("train.de"), whole).unwrap();
    std::fs::write(dir.path("valid.de"), "one line\n").unwrap();
    let error = refused(&settings);
    assert!(error.contains("valid.en has 60 lines") && error.contains("valid.de has 1;"), "{error}");
    dir.write("valid", 2, 60);
    assert_eq!(prepare_all(&settings).train.pairs, 100);
}

#[test]
fn damaged_files_are_found() {
    let dir = TestDir::new(100);
    prepare_all(&dir.settings("out"));
    let output_dir = dir.path("out");
    let open = |split| ParallelData::open(&output_dir, split);
    let totals = open(CorpusSplit::Train).unwrap().verify(None).unwrap();
    assert_eq!(totals.pairs, 100);
    let few = open(CorpusSplit::Train).unwrap().verify(Some(10)).unwrap_err().to_string();
    assert!(few.contains("only 10 tokens"), "{few}");

    let references = output_dir.join("valid-00001.txt");
    let whole = std::fs::read(&references).unwrap();
    std::fs::write(&references, &whole[1..]).unwrap();
    let error = open(CorpusSplit::Valid).unwrap_err().to_string();
    assert!(error.contains("valid-00001.txt") && error.contains("checksum"), "{error}");
    std::fs::write(&references, whole).unwrap();

    let shard = output_dir.join("train-00000.tokens");
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
fn a_corpus_of_another_kind_is_refused() {
    let dir = TestDir::new(100);
    prepare_all(&TranslateSettings { valid_source: Vec::new(), valid_target: Vec::new(), ..dir.settings("out") });
    let output_dir = dir.path("out");
    let error =
        PretrainData::open(&output_dir, CorpusSplit::Train, &PretrainConfig::default()).unwrap_err().to_string();
    assert!(error.contains("`pairs`") && error.contains("hetseq prep bert"), "{error}");
    let error = ParallelData::open(&output_dir, CorpusSplit::Valid).unwrap_err().to_string();
    assert!(error.contains("--valid-source"), "{error}");
    let text = std::fs::read_to_string(output_dir.join("corpus.json")).unwrap();
    std::fs::write(output_dir.join("corpus.json"), text.replace("\"pairs\",", "\"compact\",")).unwrap();
    let error = ParallelData::open(&output_dir, CorpusSplit::Train).unwrap_err().to_string();
    assert!(error.contains("`compact`") && error.contains("hetseq prep translate"), "{error}");
    assert!(ParallelData::open(&dir.path("nowhere"), CorpusSplit::Train).is_err());
}
