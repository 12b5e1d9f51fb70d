//! Classifies image files with a trained model, for `hetseq predict`. Every checkpoint of the task
//! says in its `config.json` all that this needs: the network, its classes, and how images are
//! prepared.

use std::io;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use burn::tensor::activation::softmax;
use hetseq_data::source::folder;
use hetseq_data::source::text::Lines;
use hetseq_data::{Batch, DataError, DecodedImage, Normalize, SampleLengths, View, resample};
use serde::{Deserialize, Serialize};

use super::config::{ImageConfig, ModelName, StemName};
use super::dataset::Dataset;
use super::model::ImageModel;
use crate::inference::{PredictOptions, PredictionFormat};
use crate::task::{Answer, FileInference, ForwardContext, HuggingFace, Inference, Task, TaskError};
use crate::tasks::bert::MODEL_CONFIG;
use crate::tasks::fine_tuning::sorted;

/// The value of `architectures` in the `config.json` of a checkpoint.
const ARCHITECTURE: &str = "HetSeqImageClassifier";

/// The `config.json` of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedClassifier {
    architectures: [String; 1],
    model: ModelName,
    /// Of a ResNet: channels of the first stage, and its first layers.
    width: usize,
    stem: StemName,
    /// Channels, height and width of an image.
    image: [usize; 3],
    /// The shorter side of an image is resized to this and the centre is cropped.
    resize: usize,
    mean: Vec<f32>,
    std: Vec<f32>,
    classes: Vec<String>,
}

impl SavedClassifier {
    pub(super) fn new(config: &ImageConfig, dataset: &Dataset) -> Self {
        let image @ [channels, height, width] = dataset.shape();
        let (mean, std) = dataset.moments();
        SavedClassifier {
            architectures: [ARCHITECTURE.to_owned()],
            model: config.model,
            width: config.width,
            stem: config.stem(height.max(width)),
            image,
            resize: if channels == 1 { height.max(width) } else { config.resize() },
            mean,
            std,
            classes: dataset.class_names(),
        }
    }

    pub(super) fn model(&self, device: &Device) -> ImageModel {
        ImageModel::new(self.model, self.stem, self.width, self.image, self.classes.len(), device)
    }

    fn read(checkpoint: &Path) -> Result<Self, TaskError> {
        let path = checkpoint.join(MODEL_CONFIG);
        let refused = |reason: String| TaskError::Other(format!("{}: {reason}", path.display()));
        if !path.exists() {
            return Err(refused(
                "it does not exist: the checkpoint is of an older version. Resume the run to save a \
                                new one"
                    .to_owned(),
            ));
        }
        let text = fs_err::read_to_string(&path).map_err(|error| error.to_string())?;
        let saved: SavedClassifier = serde_json::from_str(&text).map_err(|error| refused(error.to_string()))?;
        let [channels, height, width] = saved.image;
        let is_usable = matches!(channels, 1 | 3)
            && (1..=MAX_SIDE).contains(&height)
            && height == width
            && (height..=MAX_SIDE).contains(&saved.resize)
            && (1..=MAX_SIDE).contains(&saved.width)
            && !saved.classes.is_empty()
            && [&saved.mean, &saved.std].iter().all(|values| values.len() == channels);
        match is_usable {
            true => Ok(saved),
            false => Err(refused("its images must be square, grey or in colour, and have classes".to_owned())),
        }
    }

    /// Reads an image into normalised planes of the model's input.
    fn prepare(&self, path: &Path, out: &mut [f32]) -> Result<(), DataError> {
        let [channels, size, _] = self.image;
        let picture = DecodedImage::read(path)?;
        let view = View::middle(picture.width, picture.height, self.resize, size);
        if let ([mean_r, mean_g, mean_b], [std_r, std_g, std_b]) = (&self.mean[..], &self.std[..]) {
            let normalize = Normalize::new([*mean_r, *mean_g, *mean_b], [*std_r, *std_g, *std_b]);
            resample(&picture, &view, &normalize, out);
            return Ok(());
        }
        let mut colours = vec![0.0; 3 * size * size];
        resample(&picture, &view, &Normalize::none(), &mut colours);
        for (at, pixel) in out.iter_mut().enumerate().take(channels * size * size) {
            let colour = |plane: usize| colours[plane * size * size + at];
            let grey = GREY[0] * colour(0) + GREY[1] * colour(1) + GREY[2] * colour(2);
            *pixel = (grey / 255.0 - self.mean[0]) / self.std[0];
        }
        Ok(())
    }
}

/// The largest side of an image, in pixels, and number of channels that a `config.json` may ask
/// for.
const MAX_SIDE: usize = 8192;

/// The parts of red, green and blue in grey (ITU-R BT.601), as in other image libraries.
const GREY: [f32; 3] = [0.299, 0.587, 0.114];

impl HuggingFace for SavedClassifier {
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        vec![(MODEL_CONFIG.to_owned(), text)]
    }
}

/// A trained model, and the images to classify.
pub struct ImageClassifier {
    saved: SavedClassifier,
    images: Vec<PathBuf>,
}

impl Inference for ImageClassifier {
    const TASK: &'static str = super::ImageTask::NAME;
    const ARCHITECTURE: Option<&'static str> = Some(ARCHITECTURE);
    type Model = ImageModel;

    fn model(&self, device: &Device) -> ImageModel {
        self.saved.model(device)
    }

    /// All classes with their probabilities, the most likely first. None for an image that could
    /// not be read.
    fn predict(&self, model: &ImageModel, batch: &Batch, ctx: &ForwardContext) -> Result<Vec<Answer>, TaskError> {
        let logits = model.forward(ctx.floats::<4>(batch, "pixels")?, 0.0, &[]);
        let failed = |error: &dyn std::fmt::Debug| TaskError::Other(format!("reading the predictions: {error:?}"));
        let probabilities: Vec<f32> = softmax(logits, 1).try_into_vec_as().map_err(|error| failed(&error))?;
        let name = |class: usize| self.saved.classes[class].clone();
        let answer = |(row, &readable): (&[f32], &i32)| match readable {
            0 => Answer::default(),
            _ => Answer { texts: sorted(row, name), tokens: 1 },
        };
        Ok(probabilities.chunks_exact(self.saved.classes.len()).zip(batch.i32s("readable")?).map(answer).collect())
    }
}

impl FileInference for ImageClassifier {
    fn open(checkpoint: &Path, options: &PredictOptions) -> Result<Self, TaskError> {
        Ok(ImageClassifier { saved: SavedClassifier::read(checkpoint)?, images: images(&options.input)? })
    }

    fn lengths(&self) -> SampleLengths {
        SampleLengths::Uniform { samples: self.images.len(), tokens: 1 }
    }

    fn collate(&self, samples: &[u32]) -> Result<Batch, TaskError> {
        let [channels, height, width] = self.saved.image;
        let size = channels * height * width;
        let mut pixels = vec![0.0; samples.len() * size];
        let mut readable = Vec::with_capacity(samples.len());
        for (&sample, out) in samples.iter().zip(pixels.chunks_exact_mut(size)) {
            let read = self.saved.prepare(&self.images[sample as usize], out);
            if let Err(error) = &read {
                tracing::warn!("{error}; it gets no class");
            }
            readable.push(i32::from(read.is_ok()));
        }
        Ok(Batch::new([]).with_f32("pixels", [samples.len(), channels, height, width], pixels).with_i32(
            "readable",
            [samples.len()],
            readable,
        ))
    }

    /// A line per image: its path, class and probability.
    fn write(&self, answers: &[Answer], format: PredictionFormat, out: &mut dyn io::Write) -> io::Result<()> {
        if format == PredictionFormat::Text {
            writeln!(out, "file\tlabel\tprobability")?;
        }
        for (path, answer) in self.images.iter().zip(answers) {
            let best = answer.texts.first();
            match format {
                PredictionFormat::Text => {
                    let (label, probability) =
                        best.map_or_else(Default::default, |(label, score)| (label.clone(), format!("{score:.6}")));
                    writeln!(out, "{}\t{label}\t{probability}", path.display())?;
                }
                PredictionFormat::JsonLines => {
                    let all: serde_json::Map<_, _> =
                        answer.texts.iter().map(|(label, score)| (label.clone(), (*score).into())).collect();
                    let line = serde_json::json!({
                        "file": path.display().to_string(),
                        "label": best.map(|(label, _)| label),
                        "probability": best.map(|(_, score)| score),
                        "probabilities": all,
                    });
                    writeln!(out, "{line}")?;
                }
            }
        }
        Ok(())
    }
}

/// The images of a directory, or one image, or those that a text file lists, one path per line.
fn images(input: &Path) -> Result<Vec<PathBuf>, TaskError> {
    if !input.exists() {
        return Err(format!("there is no file or directory {}; check the path of the images", input.display()).into());
    }
    if input.is_dir() {
        return Ok(folder::images_in(input)?);
    }
    let extension = input.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if ["png", "jpg", "jpeg"].iter().any(|known| extension.eq_ignore_ascii_case(known)) {
        return Ok(vec![input.to_owned()]);
    }
    let lines: Vec<String> = Lines::open(input)?.collect::<Result<_, _>>()?;
    let paths: Vec<PathBuf> = lines.iter().filter(|line| !line.trim().is_empty()).map(PathBuf::from).collect();
    match paths.is_empty() {
        true => Err(format!("{} lists no image: give one path per line", input.display()).into()),
        false => Ok(paths),
    }
}
