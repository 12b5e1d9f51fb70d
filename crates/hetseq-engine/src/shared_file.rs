//! A file in memory that this process and an engine both use, such as for parameters and gradients.
//! On Linux a `memfd` whose size is sealed, elsewhere a temporary file without a name. It is read and
//! written by position, not mapped: the copy costs the same, and a peer that truncates the file
//! causes an error, not a signal.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use bytemuck::Pod;
use hetseq_data::{ArrayValues, Batch};

use crate::messages::ArrayMessage;

#[derive(Debug)]
pub struct SharedFile {
    file: File,
}

impl SharedFile {
    /// A file of `bytes` zeros.
    pub fn create(bytes: u64) -> io::Result<Self> {
        let file = new_file()?;
        file.set_len(bytes)?;
        seal_size(&file)?;
        Ok(SharedFile { file })
    }

    /// A file that an engine has sent.
    pub fn received(descriptor: OwnedFd) -> Self {
        SharedFile { file: descriptor.into() }
    }

    pub fn write<T: Pod>(&self, values: &[T]) -> io::Result<()> {
        self.file.write_all_at(bytemuck::cast_slice(values), 0)
    }

    pub fn read<T: Pod>(&self, values: &mut [T]) -> io::Result<()> {
        self.file.read_exact_at(bytemuck::cast_slice_mut(values), 0)
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(target_os = "linux")]
fn new_file() -> io::Result<File> {
    use rustix::fs::MemfdFlags;
    Ok(rustix::fs::memfd_create("hetseq", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?.into())
}

#[cfg(not(target_os = "linux"))]
fn new_file() -> io::Result<File> {
    tempfile::tempfile()
}

/// So that neither side can make the other one's mapping invalid.
#[cfg(target_os = "linux")]
fn seal_size(file: &File) -> io::Result<()> {
    use rustix::fs::SealFlags;
    Ok(rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?)
}

#[cfg(not(target_os = "linux"))]
fn seal_size(_file: &File) -> io::Result<()> {
    Ok(())
}

/// Copies the arrays of a batch one after the other into a file, and says where each one is. Every
/// array starts at a multiple of 64 bytes, as vector instructions like it.
pub fn batch_file(batch: &Batch) -> io::Result<(SharedFile, Vec<ArrayMessage>)> {
    const ALIGNMENT: u64 = 64;
    let mut arrays = Vec::new();
    let mut end = 0;
    for (name, array) in batch.arrays() {
        let (dtype, bytes) = match &array.values {
            ArrayValues::F32(values) => ("f32", size_of_val(&values[..])),
            ArrayValues::I32(values) => ("i32", size_of_val(&values[..])),
        };
        arrays.push(ArrayMessage {
            name: name.to_owned(),
            dtype: dtype.to_owned(),
            shape: array.shape.clone(),
            offset: end,
        });
        end = (end + bytes as u64).next_multiple_of(ALIGNMENT);
    }
    let shared = SharedFile::create(end)?;
    for ((_, array), ArrayMessage { offset, .. }) in batch.arrays().zip(&arrays) {
        let bytes = match &array.values {
            ArrayValues::F32(values) => bytemuck::cast_slice(values),
            ArrayValues::I32(values) => bytemuck::cast_slice(values),
        };
        shared.file.write_all_at(bytes, *offset)?;
    }
    Ok((shared, arrays))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back() {
        let shared = SharedFile::create(12).unwrap();
        shared.write(&[1.5f32, -2.0]).unwrap();
        let mut values = [9.0f32; 3];
        shared.read(&mut values).unwrap();
        assert_eq!(values, [1.5, -2.0, 0.0]);
        assert!(shared.read(&mut [0u8; 13]).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_size_cannot_change() {
        let shared = SharedFile::create(8).unwrap();
        assert!(shared.file.set_len(4).is_err() && shared.file.set_len(16).is_err());
        assert!(shared.write(&[0u8; 9]).is_err());
    }

    #[test]
    fn arrays_of_a_batch_are_aligned() {
        let batch = Batch::new([1]).with_i32("b", [1], vec![7]).with_f32("a", [2, 1], vec![1.0, 2.0]);
        let (shared, arrays) = batch_file(&batch).unwrap();
        let found: Vec<_> = arrays.iter().map(|a| (&a.name[..], &a.dtype[..], &a.shape[..], a.offset)).collect();
        assert_eq!(found, [("a", "f32", &[2, 1][..], 0), ("b", "i32", &[1][..], 64)]);
        let mut bytes = [0u8; 68];
        shared.read(&mut bytes).unwrap();
        assert_eq!((&bytes[..8], &bytes[64..]), (bytemuck::bytes_of(&[1.0f32, 2.0]), bytemuck::bytes_of(&7i32)));
    }
}
