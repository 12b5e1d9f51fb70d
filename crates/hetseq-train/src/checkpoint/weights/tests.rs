//! Weights are found, renamed and converted; errors name what cannot be used.

use burn::tensor::Tensor;
use hetseq_models::bert::parameter_name;
use hetseq_models::convnet::ConvNet;

use super::*;
use crate::checkpoint::write_flat;

fn layout(names: &[&str]) -> Layout {
    Layout::new(names.iter().map(|name| ((*name).to_owned(), vec![2]))).unwrap()
}

fn same(name: &str) -> Option<String> {
    Some(name.to_owned())
}

#[test]
fn tensors_are_renamed_and_the_others_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    write_flat(&dir.path().join("model.safetensors"), &layout(&["x.gamma", "other", "ids"]), &[1., 2., 3., 4., 5., 6.])
        .unwrap();
    let rename = |name: &str| if name == "ids" { None } else { Some(name.replace("gamma", "weight")) };
    let mut flat = vec![9.0; 4];
    let report = read(dir.path(), &layout(&["x.weight", "head"]), &rename, &mut flat).unwrap();
    assert_eq!(report, LoadReport { missing: vec!["head".to_owned()], unused: vec!["other".to_owned()] });
    assert_eq!(flat, [1.0, 2.0, 9.0, 9.0]);
    let error = read_all(dir.path(), &layout(&["head", "x"]), &rename).unwrap_err().to_string();
    assert!(error.contains("has no tensor head (and 1 more)"), "{error}");
}

#[test]
fn a_model_in_several_files_is_read() {
    let dir = tempfile::tempdir().unwrap();
    for (i, name) in ["a", "b"].into_iter().enumerate() {
        let file = dir.path().join(format!("model-{i}.safetensors"));
        write_flat(&file, &layout(&[name]), &[i as f32 + 1.0; 2]).unwrap();
    }
    let index = dir.path().join("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map": {"a": "model-0.safetensors", "b": "model-1.safetensors"}}"#).unwrap();
    assert_eq!(read_all(dir.path(), &layout(&["a", "b"]), &same).unwrap(), [1.0, 1.0, 2.0, 2.0]);
    fs::write(&index, r#"{"weight_map": {"a": "../model-0.safetensors"}}"#).unwrap();
    assert!(read_all(dir.path(), &layout(&["a"]), &same).unwrap_err().to_string().contains("not the name of a file"));
}

/// A file written by scripts/fixtures/weights.py.
fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/weights").join(name)
}

#[test]
fn pytorch_files_of_all_versions_are_read() {
    let shapes = [
        ("bert.embeddings.word_embeddings.weight", vec![3, 2]),
        ("bert.embeddings.LayerNorm.weight", vec![2]),
        ("bert.embeddings.LayerNorm.bias", vec![2]),
        ("cls.predictions.bias", vec![3]),
    ];
    let layout = Layout::new(shapes.map(|(name, shape)| (name.to_owned(), shape))).unwrap();
    let expected: Vec<f32> = (1..=13).map(|value| value as f32).collect();
    for name in ["today.bin", "old.bin", "others.bin"] {
        let mut flat = vec![0.0; layout.len()];
        let report = read(&recorded(name), &layout, &parameter_name, &mut flat).unwrap();
        assert_eq!((report, flat), (LoadReport::default(), expected.clone()), "{name}");
    }
    // Also as a directory, and in several files.
    let dir = tempfile::tempdir().unwrap();
    assert!(!exist_at(dir.path()));
    fs::copy(recorded("today.bin"), dir.path().join("part-1")).unwrap();
    let index = r#"{"metadata": {"total_size": 52}, "weight_map": {"cls.predictions.bias": "part-1"}}"#;
    fs::write(dir.path().join("pytorch_model.bin.index.json"), index).unwrap();
    assert!(exist_at(dir.path()));
    assert_eq!(read_all(dir.path(), &layout, &parameter_name).unwrap(), expected);
    let integers = |name: &str| (name == "embeddings.position_ids").then(|| "ids".to_owned());
    let ids = Layout::new([("ids".to_owned(), vec![1, 4])]).unwrap();
    let error = read_all(&recorded("old.bin"), &ids, &integers).unwrap_err().to_string();
    assert!(error.contains("position_ids is not a floating-point tensor"), "{error}");
}

#[test]
fn missing_parameters_keep_their_initial_values() {
    let dir = tempfile::tempdir().unwrap();
    let model = |device: &Device| ConvNet::new(1, 8, 8, 3, device);
    let bias = Layout::new([("fc2.bias".to_owned(), vec![3]), ("odd".to_owned(), vec![1])]).unwrap();
    write_flat(&dir.path().join("model.safetensors"), &bias, &[1.0, 2.0, 3.0, 4.0]).unwrap();
    // For inference and for training.
    for device in [Device::flex(), Device::flex().autodiff()] {
        let (loaded, report) = load(model(&device), dir.path(), &same, &device).unwrap();
        assert_eq!((report.unused, report.missing.len()), (vec!["odd".to_owned()], 7));
        let logits = |model: &ConvNet, images: Tensor<4>| -> Vec<f32> {
            model.forward(images, 0.0, &[]).into_data().try_to_vec().unwrap()
        };
        let output = loaded.forward(Tensor::ones([1, 1, 8, 8], &device), 0.0, &[]);
        assert_eq!(output.device().is_autodiff(), device.is_autodiff());
        // Other biases are initially zero, so a zero input returns the last bias.
        assert_eq!(logits(&loaded, Tensor::zeros([1, 1, 8, 8], &device)), [1.0, 2.0, 3.0]);
        assert_ne!(logits(&loaded, Tensor::ones([1, 1, 8, 8], &device)), [1.0, 2.0, 3.0]);
    }
    let device = Device::flex();
    let absent = load(model(&device), &dir.path().join("absent"), &same, &device).unwrap_err().to_string();
    assert!(absent.contains("absent"), "{absent}");
}

#[test]
fn errors_name_the_file_or_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = read_all(&dir.path().join("nowhere"), &layout(&["a"]), &same).unwrap_err().to_string();
    assert!(nowhere.starts_with("there is no file or directory"), "{nowhere}");
    let missing = read_all(dir.path(), &layout(&["a"]), &same).unwrap_err().to_string();
    assert!(missing.contains("no model.safetensors or pytorch_model.bin in"), "{missing}");
    let file = dir.path().join("model.safetensors");
    write_flat(&file, &Layout::new([("a".to_owned(), vec![3])]).unwrap(), &[0.0; 3]).unwrap();
    let shape = read_all(dir.path(), &layout(&["a"]), &same).unwrap_err().to_string();
    assert!(shape.contains("a is [3], the model of this config expects [2]"), "{shape}");
    for name in ["model.safetensors", "pytorch_model.bin"] {
        fs::write(dir.path().join(name), b"not a file of weights").unwrap();
        let damaged = read_all(&dir.path().join(name), &layout(&["a"]), &same).unwrap_err().to_string();
        assert!(damaged.contains(name), "{damaged}");
    }
}

#[test]
fn half_precision_is_converted_to_f32() {
    let mut out = [0.0; 2];
    decode(&[0x00, 0x3c, 0x00, 0xc0], &mut out, |bytes| f16::from_le_bytes(bytes).to_f32()).unwrap();
    assert_eq!(out, [1.0, -2.0]);
    decode(&[0x80, 0x3f, 0x00, 0xc0], &mut out, |bytes| bf16::from_le_bytes(bytes).to_f32()).unwrap();
    assert_eq!(out, [1.0, -2.0]);
    assert!(decode(&[0; 4], &mut out, f32::from_le_bytes).is_err());
}

#[test]
fn non_finite_values_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, layout) = (dir.path().join("model.safetensors"), layout(&["a", "b"]));
    write_flat(&file, &layout, &[1.0, 2.0, 3.0, f32::INFINITY]).unwrap();
    let errors = [read_all(dir.path(), &layout, &same).unwrap_err(), check(dir.path()).unwrap_err()];
    for error in errors.map(|error| error.to_string()) {
        assert!(error.contains("b is inf at element 1"), "{error}");
    }
    assert!(read_tensors(&file).is_err());
    // A tensor that is not requested may hold any value.
    let only_a = |name: &str| (name == "a").then(|| "a".to_owned());
    read_all(dir.path(), &self::layout(&["a"]), &only_a).unwrap();
}
