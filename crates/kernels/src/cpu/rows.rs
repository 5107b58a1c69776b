//! What is done with rows of elements, by reference: the code around it is there once for its types.
//!
//! Traits of their own, since an object of `Fn` brings along the code to call the closure by value, for each closure.

/// Of a row that is written, and may be read.
pub(super) trait Row1<D> {
    fn run(&self, d: &mut [D]);
}

impl<D, F: Fn(&mut [D])> Row1<D> for F {
    fn run(&self, d: &mut [D]) {
        self(d);
    }
}

/// Of a source and a destination.
pub(super) trait Row2<A, D> {
    fn run(&self, a: &[A], d: &mut [D]);
}

impl<A, D, F: Fn(&[A], &mut [D])> Row2<A, D> for F {
    fn run(&self, a: &[A], d: &mut [D]) {
        self(a, d);
    }
}

/// Of two sources and a destination.
pub(super) trait Row3<A, B, D> {
    fn run(&self, a: &[A], b: &[B], d: &mut [D]);
}

impl<A, B, D, F: Fn(&[A], &[B], &mut [D])> Row3<A, B, D> for F {
    fn run(&self, a: &[A], b: &[B], d: &mut [D]) {
        self(a, b, d);
    }
}

/// Of three sources and a destination.
pub(super) trait Row4<A, B, C, D> {
    fn run(&self, a: &[A], b: &[B], c: &[C], d: &mut [D]);
}

impl<A, B, C, D, F: Fn(&[A], &[B], &[C], &mut [D])> Row4<A, B, C, D> for F {
    fn run(&self, a: &[A], b: &[B], c: &[C], d: &mut [D]) {
        self(a, b, c, d);
    }
}

/// Of so many sources and a destination, in bytes.
pub(super) trait RowOfBytes<const S: usize> {
    fn run(&self, sources: [&[u8]; S], d: &mut [u8]);
}

impl<const S: usize, F: Fn([&[u8]; S], &mut [u8])> RowOfBytes<S> for F {
    fn run(&self, sources: [&[u8]; S], d: &mut [u8]) {
        self(sources, d);
    }
}

/// Of pieces of two destinations, and their number.
pub(super) trait Piece2<D, E> {
    fn run(&self, i: usize, d: &mut [D], e: &mut [E]);
}

impl<D, E, F: Fn(usize, &mut [D], &mut [E])> Piece2<D, E> for F {
    fn run(&self, i: usize, d: &mut [D], e: &mut [E]) {
        self(i, d, e);
    }
}

/// Of a piece of a destination: its number, or where it begins.
pub(super) trait Piece<D> {
    fn run(&self, i: usize, d: &mut [D]);
}

impl<D, F: Fn(usize, &mut [D])> Piece<D> for F {
    fn run(&self, i: usize, d: &mut [D]) {
        self(i, d);
    }
}
