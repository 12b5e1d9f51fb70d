//! Integration tests of the public interface that the trainer uses. One binary, so that it links
//! once.

#[cfg(test)]
mod conll_files;
#[cfg(test)]
mod entity_links;
#[cfg(test)]
mod entity_tables;
#[cfg(test)]
mod folder;
#[cfg(test)]
mod hdf5;
#[cfg(test)]
mod idx;
#[cfg(test)]
mod plan;
#[cfg(test)]
mod prep;
#[cfg(test)]
mod prep_runs;
#[cfg(test)]
mod resample;
#[cfg(test)]
mod sequence_labels;
#[cfg(test)]
mod shards;
#[cfg(test)]
mod split_words;
#[cfg(test)]
mod text_inputs;
#[cfg(test)]
mod token_labels;
#[cfg(test)]
mod tokenizer;
#[cfg(test)]
mod translate;

#[cfg(all(test, feature = "parquet"))]
mod parquet_tables;
