//! The image data: idx files, held in memory, or class folders, read on demand.

use std::path::Path;

use hetseq_data::source::data_kind::DataKind;
use hetseq_data::source::folder::{self, ClassFolders, ImageFiles, VALID_NAMES};
use hetseq_data::source::{LabelledImages, idx};
use hetseq_data::{Augment, Crop, DataError, DecodedImage, Normalize, View, resample};
use hetseq_metrics::thousands;
use hetseq_random::Key;

use super::config::{ImageConfig, PerColour};
use crate::task::{Split, TaskError};

pub(super) enum Dataset {
    Idx(IdxImages),
    Folders(FolderImages),
}

/// Mean and standard deviation of ImageNet's training images: red, green and blue.
const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

impl Dataset {
    pub(super) fn open(config: &ImageConfig) -> Result<Self, TaskError> {
        let dir = &config.data;
        if !dir.is_dir() {
            return Err(TaskError::Other(format!(
                "there is no data directory {0}; set task.data to one with class folders or MNIST's four idx files, or \
                 create example images: hetseq prep digits --out {0}",
                dir.display()
            )));
        }
        if folder::has_train_folder(dir) {
            return FolderImages::open(config).map(Dataset::Folders);
        }
        if has_idx_files(dir) {
            return IdxImages::open(config).map(Dataset::Idx);
        }
        DataKind::check(dir, &[DataKind::Images])?;
        Err(TaskError::Other(format!(
            "{0} holds neither class folders ({0}/train/<class>/ with PNG or JPEG files, and {0}/valid/<class>/) nor MNIST's \
             idx files (train-images-idx3-ubyte and the like)",
            dir.display()
        )))
    }

    pub(super) fn fingerprint(&self) -> String {
        match self {
            Dataset::Idx(images) => format!("{}+{}", images.train.fingerprint(), images.valid.fingerprint()),
            Dataset::Folders(images) => images.folders.fingerprint().to_owned(),
        }
    }

    pub(super) fn len(&self, split: Split) -> usize {
        match self {
            Dataset::Idx(images) => images.of(split).len(),
            Dataset::Folders(images) => images.of(split).len(),
        }
    }

    /// Channels, height, width.
    pub(super) fn shape(&self) -> [usize; 3] {
        match self {
            Dataset::Idx(images) => [1, images.train.images.height, images.train.images.width],
            Dataset::Folders(images) => [3, images.size, images.size],
        }
    }

    pub(super) fn classes(&self) -> usize {
        match self {
            Dataset::Idx(images) => images.classes,
            Dataset::Folders(images) => images.folders.classes.len(),
        }
    }

    /// The names of the classes, in the order of the model's outputs.
    pub(super) fn class_names(&self) -> Vec<String> {
        match self {
            Dataset::Idx(images) => (0..images.classes).map(|class| class.to_string()).collect(),
            Dataset::Folders(images) => images.folders.classes.clone(),
        }
    }

    /// Mean and standard deviation of each channel, by which pixels are normalised.
    pub(super) fn moments(&self) -> (Vec<f32>, Vec<f32>) {
        match self {
            Dataset::Idx(images) => (vec![images.mean], vec![images.std]),
            Dataset::Folders(images) => (images.mean.to_vec(), images.std.to_vec()),
        }
    }

    pub(super) fn label(&self, split: Split, id: u32) -> u32 {
        match self {
            Dataset::Idx(images) => images.of(split).labels.get(id as usize).copied().unwrap_or(0).into(),
            Dataset::Folders(images) => images.of(split).class(id as usize).unwrap_or(0),
        }
    }

    /// Reads the image of sample `id` into planes of [`Dataset::shape`], normalised. Training
    /// images are augmented with `key`.
    pub(super) fn read(&self, split: Split, id: u32, key: Key, out: &mut [f32]) -> Result<(), DataError> {
        match self {
            Dataset::Idx(images) => images.read(split, id, key, out),
            Dataset::Folders(images) => images.read(split, id, key, out),
        }
    }
}

fn has_idx_files(dir: &Path) -> bool {
    let entries = fs_err::read_dir(dir).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().contains("idx"))
}

fn refused(message: String) -> TaskError {
    TaskError::Other(message)
}

pub(super) struct IdxImages {
    pub(super) train: LabelledImages,
    pub(super) valid: LabelledImages,
    pub(super) classes: usize,
    pub(super) mean: f32,
    pub(super) std: f32,
    pub(super) augment: Augment,
}

impl IdxImages {
    fn open(config: &ImageConfig) -> Result<Self, TaskError> {
        let dir = config.data.display();
        let train = idx::open_pair(&config.data, "train")?;
        let valid = idx::open_pair(&config.data, "t10k")?;
        let size = |images: &LabelledImages| (images.images.height, images.images.width);
        if size(&train) != size(&valid) {
            let (train, valid) = (size(&train), size(&valid));
            return Err(refused(format!("{dir}: training images are {train:?} pixels, test images {valid:?}")));
        }
        if config.image_size.is_some() || config.resize.is_some() || config.crop.is_some() {
            return Err(refused(format!(
                "task.image_size, task.resize and task.crop are for class folders; {dir} holds idx files, whose images keep \
                 their size (use task.augment)"
            )));
        }
        let classes = usize::from(train.labels.iter().copied().max().unwrap_or(0)) + 1;
        if let Some(label) = valid.labels.iter().find(|&&label| usize::from(label) >= classes) {
            let last = classes - 1;
            return Err(refused(format!(
                "{dir}: a test image has the label {label}, but the training labels end at {last}"
            )));
        }
        let one = |value: Option<PerColour>, of_data: f32| match value {
            None => Ok(of_data),
            Some(PerColour::One(value)) => Ok(value),
            Some(PerColour::Three(_)) => {
                Err(refused("task.mean and task.std: images of idx files are grey, so give one number".to_owned()))
            }
        };
        let (mean, std) = moments(&train.images.pixels);
        let (mean, std) = (one(config.mean, mean)?, one(config.std, std)?);
        check_moments(&[mean], &[std])?;
        Ok(IdxImages { train, valid, classes, mean, std, augment: config.augment })
    }

    fn of(&self, split: Split) -> &LabelledImages {
        match split {
            Split::Train => &self.train,
            Split::Valid => &self.valid,
        }
    }

    fn read(&self, split: Split, id: u32, key: Key, out: &mut [f32]) -> Result<(), DataError> {
        let images = &self.of(split).images;
        let image = images.image(id as usize).unwrap_or_default();
        let augment = match split {
            Split::Train => self.augment,
            Split::Valid => Augment::default(),
        };
        augment.apply(key, image, images.height, images.width, out);
        for pixel in out {
            *pixel = (*pixel / 255.0 - self.mean) / self.std;
        }
        Ok(())
    }
}

pub(super) struct FolderImages {
    folders: ClassFolders,
    size: usize,
    resize: usize,
    crop: Crop,
    mean: [f32; 3],
    std: [f32; 3],
    normalize: Normalize,
}

impl FolderImages {
    fn open(config: &ImageConfig) -> Result<Self, TaskError> {
        let dir = config.data.display();
        if config.augment != Augment::default() {
            return Err(refused(format!("task.augment is for idx files; {dir} holds class folders (use task.crop)")));
        }
        let mean = config.mean.map_or(IMAGENET_MEAN, PerColour::three);
        let std = config.std.map_or(IMAGENET_STD, PerColour::three);
        check_moments(&mean, &std)?;
        let log_progress = |files: usize| tracing::info!("listing {dir}: {} images so far", thousands(files as u64));
        let folders = folder::open(&config.data, &log_progress)?;
        if folders.valid.is_empty() {
            tracing::warn!("{dir} has no folder {}: there is no validation", VALID_NAMES.join(", "));
        }
        Ok(FolderImages {
            folders,
            size: config.image_size(),
            resize: config.resize(),
            crop: config.crop.unwrap_or_default(),
            mean,
            std,
            normalize: Normalize::new(mean, std),
        })
    }

    fn of(&self, split: Split) -> &ImageFiles {
        match split {
            Split::Train => &self.folders.train,
            Split::Valid => &self.folders.valid,
        }
    }

    fn read(&self, split: Split, id: u32, key: Key, out: &mut [f32]) -> Result<(), DataError> {
        let picture = DecodedImage::read(&self.of(split).path(id as usize).unwrap_or_default())?;
        let view = match split {
            Split::Train => self.crop.view(key, picture.width, picture.height, self.size),
            Split::Valid => View::middle(picture.width, picture.height, self.resize, self.size),
        };
        resample(&picture, &view, &self.normalize, out);
        Ok(())
    }
}

fn check_moments(mean: &[f32], std: &[f32]) -> Result<(), TaskError> {
    if std.iter().all(|std| std.is_finite() && *std > 0.0) && mean.iter().all(|mean| mean.is_finite()) {
        return Ok(());
    }
    Err(refused(format!("pixels cannot be normalised with mean {mean:?} and standard deviation {std:?}")))
}

/// Mean and standard deviation of pixels scaled to 0..1, from exact integer sums.
fn moments(pixels: &[u8]) -> (f32, f32) {
    let count = pixels.len().max(1) as f64;
    let sum: u64 = pixels.iter().map(|&pixel| u64::from(pixel)).sum();
    let squares: u64 = pixels.iter().map(|&pixel| u64::from(pixel).pow(2)).sum();
    let mean = sum as f64 / count;
    let variance = squares as f64 / count - mean * mean;
    ((mean / 255.0) as f32, (variance.max(0.0).sqrt() / 255.0) as f32)
}
