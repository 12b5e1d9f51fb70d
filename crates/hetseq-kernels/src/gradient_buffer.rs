//! The flat gradient of a model's parameters in host memory. While it collects, the fused operations
//! add the gradients of parameters to it directly: a product writes the gradient of a weight where
//! it is needed, and a lookup touches only the rows that occur. Otherwise each gradient would be a
//! tensor of its own, which is added to others and copied.
//!
//! Belongs to a thread while it collects, like the precision of products. Used by replicas on CPU
//! devices. Contains the `unsafe` access to memory that is not cleared first: clearing would cost as
//! much as writing the gradients.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::ops::Range;

use burn::backend::autodiff::NodeId;
use burn::tensor::{FloatDType, Tensor};
use hetseq_simd::vectorised;

use crate::host::input;
use crate::product::{self, Matrix};

thread_local! {
    static COLLECTING: RefCell<Option<GradientBuffer>> = const { RefCell::new(None) };
}

/// Gradient sums of parameters, one after the other.
#[derive(Debug, Default)]
pub struct GradientBuffer {
    slots: Vec<Slot>,
    of_leaf: HashMap<NodeId, usize>,
    /// Not initialised before a slot is written.
    values: Vec<MaybeUninit<f32>>,
    tail_len: usize,
}

/// The part of one parameter.
#[derive(Debug)]
struct Slot {
    range: Range<usize>,
    is_written: bool,
}

impl GradientBuffer {
    /// An empty buffer, with room for `tail_len` values behind the gradients.
    pub fn new(tail_len: usize) -> Self {
        GradientBuffer { tail_len, ..GradientBuffer::default() }
    }

    /// Adds a slot for the next parameter, which must be a leaf of the autodiff graph.
    pub fn push<const D: usize>(&mut self, parameter: &Tensor<D>) {
        if let Some(node) = input(parameter).and_then(|input| input.node) {
            self.of_leaf.insert(node.id(), self.slots.len());
        }
        let start = self.len();
        let range = start..start + parameter.shape().num_elements();
        self.slots.push(Slot { range, is_written: false });
    }

    fn len(&self) -> usize {
        self.slots.last().map_or(0, |slot| slot.range.end)
    }

    fn allocate(&mut self) {
        self.values.reserve_exact((self.len() + self.tail_len).saturating_sub(self.values.len()));
        self.values.resize_with(self.len(), MaybeUninit::uninit);
    }

    /// Collects the gradients of a backward pass on this thread.
    pub fn during<R>(&mut self, backward: impl FnOnce() -> R) -> R {
        struct Restore<'a>(&'a mut GradientBuffer);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                *self.0 = COLLECTING.take().unwrap_or_default();
            }
        }
        self.allocate();
        COLLECTING.set(Some(std::mem::take(self)));
        let _restore = Restore(self);
        backward()
    }

    /// Returns the sums, zero where there is no gradient, followed by `tail`.
    #[allow(unsafe_code)]
    pub fn finish(mut self, tail: &[f32]) -> Vec<f32> {
        self.allocate();
        for slot in self.slots.iter().filter(|slot| !slot.is_written) {
            self.values[slot.range.clone()].fill(MaybeUninit::new(0.0));
        }
        self.values.extend(tail.iter().map(|&value| MaybeUninit::new(value)));
        let (pointer, len, capacity) = self.values.into_raw_parts();
        // SAFETY: the slots have no gaps, and each is written or was filled with zeros just now.
        // `MaybeUninit<f32>` has the layout of `f32`.
        unsafe { Vec::from_raw_parts(pointer.cast::<f32>(), len, capacity) }
    }
}

/// Adds a gradient, which no fused operation has added, to the buffer that collects now.
pub fn add_gradient(slot: usize, gradient: Tensor<1>) {
    let gradient = gradient.cast(FloatDType::F32);
    if let Some(gradient) = input(&gradient) {
        add_values(slot, gradient.values.get());
    }
}

/// The slot of a leaf in the buffer that collects now.
pub(crate) fn slot_of(leaf: NodeId) -> Option<usize> {
    COLLECTING.with_borrow(|buffer| buffer.as_ref()?.of_leaf.get(&leaf).copied())
}

/// Adds values to a slot.
pub(crate) fn add_values(slot: usize, values: &[f32]) {
    with(slot, |sums| match sums {
        Sums::New(sums) => _ = sums.write_copy_of_slice(values),
        Sums::Old(sums) => add(sums, values),
    });
}

/// Adds `a b` to a slot.
pub(crate) fn add_product(slot: usize, a: Matrix<'_>, b: Matrix<'_>) {
    with(slot, |sums| match sums {
        Sums::New(sums) => product::init_product(a, b, sums),
        Sums::Old(sums) => product::add_product(a, b, sums),
    });
}

/// Lets `add` change parts of a slot, which is zero if nothing was added before.
pub(crate) fn add_in_place(slot: usize, add: impl FnOnce(&mut [f32])) {
    with(slot, |sums| match sums {
        Sums::New(sums) => sums.fill(MaybeUninit::new(0.0)),
        Sums::Old(_) => {}
    });
    with(slot, |sums| {
        if let Sums::Old(sums) = sums {
            add(sums);
        }
    });
}

vectorised! {
    fn add(sums: &mut [f32], values: &[f32]) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value;
        }
    }
}

enum Sums<'a> {
    /// The first addition, which must write all of them.
    New(&'a mut [MaybeUninit<f32>]),
    Old(&'a mut [f32]),
}

#[allow(unsafe_code)]
fn with(slot: usize, add: impl FnOnce(Sums<'_>)) {
    COLLECTING.with_borrow_mut(|buffer| {
        let Some(GradientBuffer { slots, values, .. }) = buffer else { return };
        let Slot { range, is_written } = &mut slots[slot];
        let sums = &mut values[range.clone()];
        add(match is_written {
            false => Sums::New(sums),
            // SAFETY: the first addition has written all values.
            true => Sums::Old(unsafe { sums.assume_init_mut() }),
        });
        *is_written = true;
    });
}
