//! The sides of a product of matrices, and where it goes.

use crate::cpu::number::Number;

/// A matrix among the elements of an operand: where it begins, and its strides along rows and columns.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    pub(super) data: &'a [T],
    pub(super) start: isize,
    /// From one row to the next, and from one column to the next.
    pub(super) steps: [isize; 2],
}

impl<T: Copy> Matrix<'_, T> {
    #[inline(always)]
    pub(super) fn place(&self, row: usize, column: usize) -> isize {
        self.start + row as isize * self.steps[0] + column as isize * self.steps[1]
    }

    /// Panics unless all of its elements, at least one, lie inside its slice.
    pub(super) fn check(&self, rows: usize, columns: usize) {
        let reach = [(rows, self.steps[0]), (columns, self.steps[1])];
        // What is beyond numbers is outside too, and does not come round.
        let along = |(count, step): (usize, isize)| (count as isize - 1).saturating_mul(step);
        let from = |at: isize, by: &isize| at.saturating_add(*by);
        let low = reach.map(along).iter().filter(|&&by| by < 0).fold(self.start, from);
        let high = reach.map(along).iter().filter(|&&by| by > 0).fold(self.start, from);
        assert!(low >= 0 && high < self.data.len() as isize, "a matrix lies inside its buffer");
    }

    pub(super) fn transposed(self) -> Self {
        Matrix { steps: [self.steps[1], self.steps[0]], ..self }
    }

    pub(super) fn shifted(self, by: isize) -> Self {
        Matrix { start: self.start + by, ..self }
    }
}

/// Where a product goes: rows of a slice that begin `step` elements apart. `add`: to what is there.
pub(super) struct Target<'a, T> {
    pub(super) data: &'a mut [T],
    pub(super) step: usize,
    pub(super) add: bool,
}

impl<T: Number> Target<'_, T> {
    /// Whether so many rows, at least one, of so many elements have their places, apart from each other.
    #[inline(always)]
    pub(super) fn holds(&self, rows: usize, length: usize) -> bool {
        let end = (rows - 1).checked_mul(self.step).and_then(|last| last.checked_add(length));
        length <= self.step && end.is_some_and(|end| end <= self.data.len())
    }

    #[inline(always)]
    pub(super) fn put(&mut self, row: usize, column: usize, sums: &[T]) {
        let to = &mut self.data[row * self.step + column..][..sums.len()];
        if self.add {
            to.iter_mut().zip(sums).for_each(|(d, &sum)| *d = d.add(sum));
        } else {
            to.copy_from_slice(sums);
        }
    }
}
