//! Tests of entity embeddings: both formats, refused files, and the search for the nearest.

use std::io::Write;
use std::path::Path;

use hetseq_data::finetune::EntityTable;
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};

/// Reads `bytes` under a name, and a file of names next to it.
fn read(name: &str, bytes: &[u8], names: Option<&str>) -> Result<EntityTable, String> {
    let dir = tempfile::tempdir().unwrap();
    let (path, names_path) = (dir.path().join(name), dir.path().join("names.txt"));
    std::fs::write(&path, bytes).unwrap();
    std::fs::write(&names_path, names.unwrap_or_default()).unwrap();
    EntityTable::read(&path, names.map(|_| names_path.as_path())).map_err(|error| {
        assert!(error.is_usage(), "{error}");
        error.to_string().replace(&format!("{}/", dir.path().display()), "")
    })
}

fn text(text: &str) -> Result<EntityTable, String> {
    read("e.vec", text.as_bytes(), None)
}

type TestTensor<'a> = (&'a str, Dtype, &'a [usize], &'a [u8]);

/// A safetensors file.
fn tensors(tensors: &[TestTensor<'_>]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|&(name, dtype, shape, bytes)| (name.to_owned(), TensorView::new(dtype, shape.to_vec(), bytes).unwrap()));
    safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn text_has_a_header_or_none() {
    let plain = "Paris 3 4\nNew_York 0 -2\n";
    let expected = text(plain).unwrap();
    assert_eq!((expected.len(), expected.dim(), expected.is_empty()), (2, 2, false));
    assert_eq!((expected.id("Paris"), expected.id("New_York"), expected.id("Rome")), (Some(0), Some(1), None));
    assert_eq!((expected.name(1), expected.name(2)), (Some("New_York"), None));
    assert_eq!([expected.vector(0), expected.vector(1), expected.vector(2)], [&[0.6, 0.8][..], &[0.0, -1.0], &[]]);
    for same in [
        "2 2\nParis 3 4\nNew_York 0 -2\n",
        // word2vec ends its lines with a space.
        "2 2\nParis 3 4 \nNew_York 0 -2 \n\n",
        "\u{feff}2 2\r\nParis\t3\t4\r\n\r\nNew_York  0  -2.0e0\r\n",
        "Paris 6 8\nNew_York 0 -1e-30",
    ] {
        assert_eq!(text(same).unwrap(), expected, "{same:?}");
        assert_eq!(text(same).unwrap().fingerprint(), expected.fingerprint());
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain.as_bytes()).unwrap();
    assert_eq!(read("e.vec.gz", &encoder.finish().unwrap(), None).unwrap(), expected);
    // Before a tab, a name may have spaces.
    assert_eq!(text("New York\t1 2\n").unwrap().name(0), Some("New York"));
    for other in ["Paris 3 4\nNew_York 0 2\n", "Paris 3 4\nNew_Yorks 0 -2\n", "New_York 0 -2\nParis 3 4\n"] {
        assert_ne!(text(other).unwrap().fingerprint(), expected.fingerprint(), "{other:?}");
    }
}

#[test]
fn tensors_of_three_types_are_read() {
    let expected = text("Paris 3 4\nNew_York 0 -2\n").unwrap();
    let (single, halves): (Vec<u8>, Vec<u8>) = (bytes(&[3.0, 4.0, 0.0, -2.0]), vec![0, 0x42, 0, 0x44, 0, 0, 0, 0xc0]);
    let brain: Vec<u8> = vec![0x40, 0x40, 0x80, 0x40, 0, 0, 0, 0xc0];
    let names = Some("Paris\tQ90\nNew_York\tQ60\textra\n");
    for (dtype, values) in [(Dtype::F32, &single), (Dtype::F16, &halves), (Dtype::BF16, &brain)] {
        let file = tensors(&[("any.name", dtype, &[2, 2], values)]);
        assert_eq!(read("e.safetensors", &file, names).unwrap(), expected, "{dtype:?}");
    }
    for name in ["embeddings", "weight"] {
        let file = tensors(&[("bias", Dtype::F16, &[4], &halves), (name, Dtype::F32, &[2, 2], &single)]);
        assert_eq!(read("e.safetensors", &file, names).unwrap(), expected, "{name}");
    }
}

#[test]
fn refused_tables_have_exact_messages() {
    for (refused, message) in [
        ("", "e.vec: there are no entities; use a table with at least one"),
        ("0 2\n", "e.vec: there are no entities; use a table with at least one"),
        ("a 1 2\n\nb 1\n", "e.vec, line 3: `b` has 1 numbers, but 2 are expected; correct the line"),
        ("1 3\na 1 2\n", "e.vec, line 2: `a` has 2 numbers, but 3 are expected; correct the line"),
        ("3 1\na 1\n", "e.vec: the header says 3 entities, but there are 1; copy the file again"),
        ("a 1 2\nb 1 x\n", "e.vec, line 2: `x` of `b` is not a finite number; correct it"),
        ("a 1 inf\n", "e.vec, line 1: `inf` of `a` is not a finite number; correct it"),
        ("a 1 1e99\n", "e.vec, line 1: `1e99` of `a` is not a finite number; correct it"),
        ("a\n", "e.vec, line 1: there are no numbers after `a`; write its vector"),
        (" 1 2 3\n", "e.vec, line 1: the name is empty; write a name and its numbers"),
        ("b 1\na 1\na 2\nb 3\n", "e.vec, line 3: `a` is already in line 2; remove one of the two"),
        (
            "a 1 2\nb 0 -0\n",
            "e.vec, line 2: the vector of `b` is zero, so that it has no direction; correct it, or remove the entity",
        ),
    ] {
        assert_eq!(text(refused).unwrap_err(), message, "{refused:?}");
    }
    let (one, ab) = (bytes(&[1.0, 2.0]), Some("a\nb\n"));
    let tensor = |shape: &[usize], values: &[f32], names| {
        read("e.safetensors", &tensors(&[("w", Dtype::F32, shape, &bytes(values))]), names).unwrap_err()
    };
    let other = |file: &[u8]| read("e.safetensors", file, ab).unwrap_err();
    for (found, message) in [
        (tensor(&[2], &[1.0, 2.0], ab), "e.safetensors: `w` has the shape [2]; use a matrix with one row per entity"),
        (
            tensor(&[1, 2], &[1.0, 2.0], ab),
            "e.safetensors: `w` has 1 rows, but names.txt has 2 names; use the names of this file",
        ),
        (tensor(&[2, 0], &[], ab), "names.txt: there are no entities; use a table with at least one"),
        (
            tensor(&[2, 1], &[1.0, f32::NAN], ab),
            "names.txt, line 2: the vector of `b` has a number that is not finite; correct it, or remove the entity",
        ),
        (
            tensor(&[2, 1], &[0.0, 1.0], ab),
            "names.txt, line 1: the vector of `a` is zero, so that it has no direction; correct it, or remove the \
             entity",
        ),
        (
            tensor(&[2, 1], &[1.0, 1.0], Some("a\na\tx\n")),
            "names.txt, line 2: `a` is already in line 1; remove one of the two",
        ),
        (
            tensor(&[2, 1], &[1.0, 1.0], Some("a\n\n")),
            "names.txt, line 2: the name is empty; write the name of this row",
        ),
        (
            tensor(&[2, 1], &[1.0, 1.0], None),
            "e.safetensors: a safetensors file has no names; set a file with one name per row",
        ),
        (
            other(&tensors(&[("w", Dtype::I32, &[2, 1], &one)])),
            "e.safetensors: `w` has the type I32; convert it to F32, F16 or BF16",
        ),
        (
            other(&tensors(&[("w", Dtype::F32, &[2, 1], &one), ("x", Dtype::F32, &[2, 1], &one)])),
            "e.safetensors: there are 2 tensors, and none is `embeddings` or `weight`; use a file with one",
        ),
        (
            read("e.vec", b"a 1\n", ab).unwrap_err(),
            "e.vec: text has its own names; use a .safetensors file, or no file of names",
        ),
    ] {
        assert_eq!(found, message);
    }
    let damaged = other(b"no header");
    assert!(damaged.starts_with("e.safetensors: this is not a valid safetensors file: "), "{damaged}");
    let missing = EntityTable::read(Path::new("nowhere.safetensors"), Some(Path::new("names"))).unwrap_err();
    assert!(missing.is_usage() && missing.to_string().contains("nowhere.safetensors"), "{missing}");
}

#[test]
fn ties_go_to_the_lower_id() {
    let lines: String = (0..3000).map(|at| format!("e{at} {} {}\n", at % 3, 1 + at % 2)).collect();
    let table = text(&lines).unwrap();
    assert_eq!(table.nearest(&[0.0, 7.0]), (0, 1.0));
    assert_eq!(table.nearest(&[2.0, 1.0]).0, 2);
    // Without a direction, all entities are equally similar.
    for vector in [&[0.0, 0.0][..], &[f32::NAN, 1.0], &[f32::INFINITY, 1.0], &[]] {
        assert_eq!(table.nearest(vector), (0, 0.0), "{vector:?}");
    }
    assert_eq!(table.nearest(&[0.0, 7.0, 5.0]), (0, 1.0));
    assert_eq!(table.nearest_of_rows(&[]), []);
    assert_eq!(table.nearest_of_rows(&[0.0, 7.0, 1.0]), [(0, 1.0)]);
}

fn number() -> impl Strategy<Value = f32> {
    prop_oneof![-4i8..4, any::<i8>()].prop_map(|value| f32::from(value) / 4.0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_nearest_entity_is_found_with_any_number_of_threads(
        vectors in prop::collection::vec(prop::collection::vec(number(), 11), 1..30), copies in 1usize..90,
        rows in prop::collection::vec(number(), 0..60), threads in 1usize..5,
    ) {
        let line = |(at, row): (usize, &Vec<f32>)| {
            let numbers: Vec<String> = row.iter().map(f32::to_string).collect();
            format!("e{at} 1 {}\n", numbers.join(" "))
        };
        let all = std::iter::repeat_n(&vectors, copies).flatten().enumerate();
        let table = text(&all.map(line).collect::<String>()).unwrap();
        let found = table.nearest_of_rows(&rows);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        prop_assert_eq!(&pool.install(|| table.nearest_of_rows(&rows)), &found);
        prop_assert_eq!(found.len(), rows.len() / 12);
        for (row, (id, cosine)) in rows.chunks_exact(12).zip(found) {
            prop_assert_eq!(table.nearest(row), (id, cosine));
            let exact = |id: u32| -> f64 {
                let products = row.iter().zip(table.vector(id)).map(|(a, b)| f64::from(*a) * f64::from(*b));
                let norm = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
                if norm == 0.0 { 0.0 } else { products.sum::<f64>() / norm }
            };
            prop_assert!((id as usize) < vectors.len(), "not the first of the copies");
            let best = (0..vectors.len() as u32).map(exact).fold(f64::NEG_INFINITY, f64::max);
            prop_assert!((exact(id) - best).abs() < 1e-6 && (f64::from(cosine) - best).abs() < 1e-6);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(
        content in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(&b"ab12 \t\n\n.-e"[..])], 0..120),
        header in "[{}\":a-z0-9,\\[\\]]{0,40}",
    ) {
        let lines = String::from_utf8_lossy(&content).into_owned();
        let tables = [text(&lines), read("e.vec", &content, None), read("e.safetensors", &content, Some(&lines)), {
            let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &content].concat();
            read("e.safetensors", &file, Some("a\nb\n"))
        }];
        for table in tables.into_iter().flatten() {
            prop_assert!(!table.is_empty() && table.dim() > 0);
            for id in 0..table.len() as u32 {
                let length: f64 = table.vector(id).iter().map(|value| f64::from(*value).powi(2)).sum();
                prop_assert!((length - 1.0).abs() < 1e-5);
                prop_assert_eq!(table.name(id).and_then(|name| table.id(name)), Some(id));
            }
        }
    }
}
