//! The places of a layout, one by one or in blocks that lie without a gap: for operations of the user's own.

use crate::base::{layout::Layout, shape::Shape};

/// The places in storage of the elements of a layout, in row-major order.
#[derive(Clone, Debug)]
pub struct StridedIndex {
    layout: Layout,
    next: usize,
    count: usize,
}

impl StridedIndex {
    fn new(layout: Layout) -> Self {
        StridedIndex { layout, next: 0, count: layout.shape().elem_count() }
    }
}

impl Iterator for StridedIndex {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.next == self.count {
            return None;
        }
        let (mut rest, mut place) = (self.next, self.layout.offset());
        for (&dim, &stride) in self.layout.dims().iter().zip(self.layout.strides()).rev() {
            place = place.wrapping_add_signed((rest % dim) as isize * stride);
            rest /= dim;
        }
        self.next += 1;
        Some(place)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count - self.next, Some(self.count - self.next))
    }
}

impl ExactSizeIterator for StridedIndex {}

/// The elements of a layout as blocks without a gap, in row-major order, counted in elements of storage.
#[derive(Clone, Debug)]
pub enum StridedBlocks {
    /// All lie one after the other.
    SingleBlock {
        /// The first place.
        start_offset: usize,
        /// How many there are.
        len: usize,
    },
    /// Blocks at equal distances.
    UniformBlocks {
        /// The first place.
        start_offset: usize,
        /// Elements of a block.
        block_len: usize,
        /// Blocks.
        count: usize,
        /// From the start of one block to that of the next.
        src_stride: isize,
    },
    /// Blocks wherever they are.
    MultipleBlocks {
        /// The first place of each block.
        block_start_index: StridedIndex,
        /// Elements of a block.
        block_len: usize,
    },
}

impl Layout {
    /// The place of each element.
    pub fn strided_index(&self) -> StridedIndex {
        StridedIndex::new(*self)
    }

    /// The elements as blocks that are as long as they can be.
    pub fn strided_blocks(&self) -> StridedBlocks {
        let (dims, strides) = (self.dims(), self.strides());
        let (mut lead, mut block_len) = (dims.len(), 1usize);
        while lead > 0 && (dims[lead - 1] == 1 || strides[lead - 1] == block_len as isize) {
            lead -= 1;
            block_len = block_len.saturating_mul(dims[lead]);
        }
        let start_offset = self.offset();
        match lead {
            0 => StridedBlocks::SingleBlock { start_offset, len: block_len },
            1 => StridedBlocks::UniformBlocks { start_offset, block_len, count: dims[0], src_stride: strides[0] },
            _ => {
                let starts = self.with_lead(Shape::from(&dims[..lead]));
                StridedBlocks::MultipleBlocks { block_start_index: starts.strided_index(), block_len }
            }
        }
    }
}
