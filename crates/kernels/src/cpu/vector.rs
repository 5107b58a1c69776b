//! Code for the widest vector units of this machine: plain loops, which are compiled for each set of instructions, and
//! the routine of a library that multiplies matrices. The first call finds out which units there are.
//!
//! The unsafe code calls such code. It rests on the features that were found, and, for the library, which takes
//! addresses and strides, on sides and destination that were looked at before.

#![allow(unsafe_code)]

use std::{
    mem::ManuallyDrop,
    sync::atomic::{AtomicU8, Ordering},
};

use gemm_common::{Parallelism, microkernel::MicroKernelFn};

use super::{
    matrix::{Matrix, Target},
    number::Float,
};

/// Elements below which choosing an instruction set costs more than it gains.
const SIMD_MIN: usize = 32;

/// What a loop may use.
const UNKNOWN: u8 = 0;
const BASE: u8 = 1;
/// AVX2 and what comes with it: x86-64-v3.
const V3: u8 = 2;
/// The foundation of AVX-512 and what comes with it: x86-64-v4.
const V4: u8 = 3;
/// Beside that, the instruction that multiplies bytes.
const VNNI: u8 = 4;

static UNITS: AtomicU8 = AtomicU8::new(UNKNOWN);

#[cold]
fn find() -> u8 {
    #[cfg(target_arch = "x86_64")]
    let found = {
        macro_rules! all {
            ($($feature:tt)*) => { true $(&& is_x86_feature_detected!($feature))* };
        }
        let v3 = all!("avx2" "bmi1" "bmi2" "f16c" "fma" "lzcnt" "movbe");
        let v4 = v3 && all!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl");
        if v4 && all!("avx512vnni") {
            VNNI
        } else if v4 {
            V4
        } else if v3 {
            V3
        } else {
            BASE
        }
    };
    #[cfg(not(target_arch = "x86_64"))]
    let found = BASE;
    // Relaxed: every thread finds the same, and nothing else depends on it.
    UNITS.store(found, Ordering::Relaxed);
    found
}

/// Asks for the line of the cache that lies so many bytes behind an element, whether or not anything is there.
#[inline(always)]
pub(super) fn read_ahead<T>(element: &T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it is a hint, which fails for no address and changes nothing but caches; each processor of this kind has
    // SSE.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast::<i8>().wrapping_add(bytes));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (element, bytes);
}

/// What a loop over `len` elements uses. Apart from [`simd`], so that it is not given to the compiler with each loop.
fn units(len: usize) -> u8 {
    if len < SIMD_MIN {
        return BASE;
    }
    // Relaxed: as in `find`.
    match UNITS.load(Ordering::Relaxed) {
        UNKNOWN => find(),
        found => found,
    }
}

/// What is compiled for each set of instructions: a closure, if it is short. A long one would be a function of its own,
/// which knows of no vector units; so it is a type whose `run` is `#[inline(always)]`, as no closure can be.
pub(super) trait Loop {
    type Output;

    fn run(self) -> Self::Output;
}

impl<R, F: FnMut() -> R> Loop for F {
    type Output = R;

    #[inline(always)]
    fn run(mut self) -> R {
        self()
    }
}

/// Runs a loop over `len` elements with the widest vectors there are.
#[inline(always)]
pub(super) fn simd<L: Loop>(len: usize, body: L) -> L::Output {
    // What would drop it if `units` panicked is half of the code to compile, for each loop.
    let body = ManuallyDrop::new(body);
    match units(len) {
        // SAFETY: `find` saw all features that `v4` is compiled for.
        #[cfg(target_arch = "x86_64")]
        V4 | VNNI => unsafe { v4(ManuallyDrop::into_inner(body)) },
        // SAFETY: `find` saw all features that `v3` is compiled for.
        #[cfg(target_arch = "x86_64")]
        V3 => unsafe { v3(ManuallyDrop::into_inner(body)) },
        _ => ManuallyDrop::into_inner(body).run(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe")]
fn v3<L: Loop>(body: L) -> L::Output {
    body.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn v4<L: Loop>(body: L) -> L::Output {
    body.run()
}

/// The instruction that multiplies bytes: who has this may use it.
#[derive(Clone, Copy)]
pub(super) struct ByteProducts(());

impl ByteProducts {
    /// Adds to each sum the products of its four numbers of `a`, which have no sign, and those of `b`.
    #[inline(always)]
    pub(super) fn add(self, sums: [i32; 16], a: [u8; 64], b: [i8; 4]) -> [i32; 16] {
        #[cfg(target_arch = "x86_64")]
        {
            use std::{
                arch::x86_64::{__m512i, _mm512_dpbusd_epi32},
                mem::transmute,
            };
            // SAFETY: `self` was made in `vnni` alone, which is called where the machine has the instruction; arrays of
            // 64 bytes are vectors of 64 bytes, whatever their numbers.
            unsafe {
                let sums = transmute::<[i32; 16], __m512i>(sums);
                let (a, b) = (transmute::<[u8; 64], __m512i>(a), transmute::<[[i8; 4]; 16], __m512i>([b; 16]));
                transmute::<__m512i, [i32; 16]>(_mm512_dpbusd_epi32(sums, a, b))
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("no machine of this kind makes one: {sums:?} {a:?} {b:?}")
    }

    /// Sixteen rows of eight times four bytes as eight columns.
    #[inline(always)]
    pub(super) fn transposed(self, rows: [[u8; 32]; 16]) -> [[u8; 64]; 8] {
        #[cfg(target_arch = "x86_64")]
        {
            use std::{arch::x86_64::*, array::from_fn, mem::transmute};
            // SAFETY: as in `add`: what `vnni` is compiled for includes what these need.
            unsafe {
                let two = |i: usize| {
                    let row = i / 4 * 8 + i % 4;
                    let low = _mm512_castsi256_si512(transmute::<[u8; 32], __m256i>(rows[row]));
                    _mm512_inserti64x4::<1>(low, transmute::<[u8; 32], __m256i>(rows[row + 4]))
                };
                let rows: [__m512i; 8] = from_fn(two);
                // Of each two, then four rows; in each quarter of a vector.
                let low: [_; 4] = from_fn(|i| _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]));
                let high: [_; 4] = from_fn(|i| _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]));
                let four = |i: usize| {
                    let [a, b, c, d] = [low[i], low[i + 1], high[i], high[i + 1]];
                    let [low_ab, high_ab] = [_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)];
                    [low_ab, high_ab, _mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d)]
                };
                let [a, b] = [four(0), four(2)];
                transmute::<[__m512i; 8], [[u8; 64]; 8]>(from_fn(|i| match i {
                    0..4 => _mm512_shuffle_i32x4::<0x88>(a[i], b[i]),
                    _ => _mm512_shuffle_i32x4::<0xdd>(a[i - 4], b[i - 4]),
                }))
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("no machine of this kind makes one: {rows:?}")
    }

    /// Halves by their bits as floats.
    #[inline(always)]
    pub(super) fn floats(self, halves: [u16; 16]) -> [f32; 16] {
        #[cfg(target_arch = "x86_64")]
        {
            use std::{
                arch::x86_64::{__m256i, __m512, _mm512_cvtph_ps},
                mem::transmute,
            };
            // SAFETY: as in `transposed`.
            unsafe { transmute::<__m512, [f32; 16]>(_mm512_cvtph_ps(transmute::<[u16; 16], __m256i>(halves))) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("no machine of this kind makes one: {halves:?}")
    }
}

/// As [`Loop`], of what needs the instruction that multiplies bytes.
pub(super) trait ByteLoop {
    fn run(self, unit: ByteProducts);
}

/// Whether the machine has the instruction that multiplies bytes.
pub(super) fn multiplies_bytes() -> bool {
    units(SIMD_MIN) == VNNI
}

/// Runs a loop where [`multiplies_bytes`].
#[inline(always)]
pub(super) fn by_bytes<L: ByteLoop>(body: L) {
    assert!(multiplies_bytes(), "asked for before");
    // SAFETY: `find` saw all features that `vnni` is compiled for.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        vnni(body);
    }
    #[cfg(not(target_arch = "x86_64"))]
    drop(body);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni")]
fn vnni<L: ByteLoop>(body: L) {
    body.run(ByteProducts(()));
}

/// `dst = lhs x rhs` of `[M, K, N]`, all at least 1, or added to `dst`; by the library's general routine, on up to that
/// many threads of the current pool.
pub(super) fn general<T: Multiplied>(
    [m, k, n]: [usize; 3],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    dst: Target<'_, T>,
    threads: usize,
) {
    let fits = ![m, k, n].contains(&0) && dst.holds(m, n);
    assert!(fits, "the product fits its place");
    lhs.check(m, k);
    rhs.check(k, n);
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: `check` found both first elements inside their slices.
    let (left, right) = unsafe { (lhs.data.as_ptr().offset(lhs.start), rhs.data.as_ptr().offset(rhs.start)) };
    // The routine prefers columns to rows, so it is given the transposed product, unless that is one column.
    let ([lr, lc], [rr, rc], step) = (lhs.steps, rhs.steps, dst.step as isize);
    let ((rows, columns), (mut a, mut ac, ar), (mut b, bc, mut br)) = match step {
        1 => ((m, n), (left, lc, lr), (right, rc, rr)),
        _ => ((n, m), (right, rr, rc), (left, lr, lc)),
    };
    if ac < 0 {
        // It wants the inner axis of the first side ascending; the order of the sums is its own business.
        (a, b) = (a.wrapping_offset((k - 1) as isize * ac), b.wrapping_offset((k - 1) as isize * br));
        (ac, br) = (-ac, -br);
    }
    let kept = if dst.add { T::ONE } else { T::ZERO };
    let (to, add, one) = (dst.data.as_mut_ptr(), dst.add, T::ONE);
    // SAFETY: `check` found that every `start + i * steps[0] + j * steps[1]` lies inside the slice of that side, and
    // the same places are reached in the other order; `dst` has `m` rows of `n` elements, `step` apart and so apart
    // from each other, and is borrowed for this call alone.
    unsafe {
        T::routine()(
            rows,
            columns,
            k,
            to,
            step,
            1,
            add,
            a,
            ac,
            ar,
            b,
            bc,
            br,
            kept,
            one,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// The general routine: sizes M, N, K; the destination, its steps to the next column and row, and whether it is read;
/// both sides in the same form; factors of the destination and of the product; what is conjugated; threads.
type General<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// The library's kernels for the vector units of this machine: each computes a tile of a product.
pub(super) struct Tiles<T: 'static> {
    /// Elements of a vector.
    pub(super) lanes: usize,
    /// Rows of a tile at most.
    pub(super) rows: usize,
    /// By vectors of a row, and rows.
    kernels: &'static [MicroKernelFn<T>],
}

impl<T: Float> Tiles<T> {
    /// Columns of a tile at most.
    pub(super) fn columns(&self) -> usize {
        self.kernels.len() / self.rows * self.lanes
    }

    /// `dst = lhs x rhs` of `[M, K, N]`, all at least 1, or added to `dst`, whose rows are its columns if they lie
    /// `across`. The right side is in panels of so many columns as a tile has; their rows are read up to a multiple of
    /// `lanes`, one element after the other.
    pub(super) fn run(
        &self,
        [m, k, n]: [usize; 3],
        lhs: Matrix<'_, T>,
        panels: &[Matrix<'_, T>],
        dst: Target<'_, T>,
        across: bool,
    ) {
        let panel = self.columns();
        let (lines, length) = if across { (n, m) } else { (m, n) };
        let fits = ![m, k, n].contains(&0) && dst.holds(lines, length);
        assert!(fits, "the product fits its place");
        let [row, column] = if across { [1, dst.step] } else { [dst.step, 1] };
        lhs.check(m, k);
        for (i, rhs) in panels[..n.div_ceil(panel)].iter().enumerate() {
            assert!(rhs.steps[1] == 1, "columns of the right side follow each other");
            rhs.check(k, panel.min(n - i * panel).next_multiple_of(self.lanes));
        }
        let to = dst.data.as_mut_ptr();
        for i in (0..m).step_by(self.rows) {
            let rows = self.rows.min(m - i);
            for (j, rhs) in (0..n).step_by(panel).zip(panels) {
                let columns = panel.min(n - j);
                let kernel = self.kernels[(columns.div_ceil(self.lanes) - 1) * self.rows + rows - 1];
                // SAFETY: the kernel is one of so many vectors and rows, for units that were found. It reads what
                // `check` found inside both slices, and writes `rows` rows of `columns` elements, which lie apart from
                // each other, since a line of the slice is no longer than the step to the next one, and, by the
                // assertion, in the slice, which is borrowed for this call alone.
                unsafe {
                    kernel(
                        columns,
                        rows,
                        k,
                        to.add(i * row + j * column),
                        rhs.data.as_ptr().offset(rhs.start),
                        lhs.data.as_ptr().offset(lhs.place(i, 0)),
                        row as isize,
                        column as isize,
                        rhs.steps[0],
                        lhs.steps[1],
                        lhs.steps[0],
                        T::ONE,
                        T::ONE,
                        u8::from(dst.add),
                        false,
                        false,
                        false,
                        std::ptr::null(),
                    );
                }
            }
        }
    }
}

/// A float that the library multiplies matrices of.
pub(super) trait Multiplied: Float {
    /// The routine for the vector units of this machine.
    fn routine() -> General<Self>;

    /// The kernels for the vector units of this machine.
    fn tiles() -> Tiles<Self>;

    /// `self * by + plus`, rounded once.
    fn times_plus(self, by: Self, plus: Self) -> Self;

    /// The fours of a vector, of which it has some, added up.
    #[inline(always)]
    fn folded<const LANES: usize>(vector: &[Self; LANES]) -> [Self; 4] {
        let mut total = [Self::ZERO; 4];
        for four in vector.as_chunks::<4>().0 {
            for lane in 0..4 {
                total[lane] = total[lane].add(four[lane]);
            }
        }
        total
    }

    /// The columns of a square as its rows.
    #[inline(always)]
    fn turned(square: [[Self; 4]; 4]) -> [[Self; 4]; 4] {
        std::array::from_fn(|i| square.map(|row| row[i]))
    }
}

macro_rules! multiplied {
    ($type:ident, $library:ident $(, $own:item)*) => {
        impl Multiplied for $type {
            fn routine() -> General<$type> {
                $library::gemm::$type::get_gemm_fn()
            }

            fn tiles() -> Tiles<$type> {
                use $library::microkernel as kernels;
                const BYTES: usize = size_of::<$type>();
                macro_rules! of {
                    ($unit:ident, $lanes:expr) => {{
                        use kernels::$unit::$type::{NR, UKR};
                        Tiles { lanes: $lanes, rows: NR, kernels: UKR.as_flattened() }
                    }};
                }
                match units(SIMD_MIN) {
                    #[cfg(target_arch = "x86_64")]
                    V4 | VNNI => of!(avx512f, 64 / BYTES),
                    #[cfg(target_arch = "x86_64")]
                    V3 => of!(fma, 32 / BYTES),
                    #[cfg(target_arch = "aarch64")]
                    _ => of!(neon, 16 / BYTES),
                    #[cfg(not(target_arch = "aarch64"))]
                    _ => of!(scalar, 1),
                }
            }

            #[inline(always)]
            fn times_plus(self, by: Self, plus: Self) -> Self {
                self.mul_add(by, plus)
            }

            $($own)*
        }
    };
}

multiplied!(
    f32,
    gemm_f32,
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn turned(square: [[f32; 4]; 4]) -> [[f32; 4]; 4] {
        use std::arch::x86_64::*;
        let [a, b, c, d] = bytemuck::cast::<[[f32; 4]; 4], [__m128; 4]>(square);
        // SAFETY: each processor of this kind has SSE.
        let turned = unsafe {
            let [ab, cd] = [_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d)];
            let [high_ab, high_cd] = [_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d)];
            let [low, high] = [_mm_movelh_ps(ab, cd), _mm_movelh_ps(high_ab, high_cd)];
            [low, _mm_movehl_ps(cd, ab), high, _mm_movehl_ps(high_cd, high_ab)]
        };
        bytemuck::cast(turned)
    },
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn folded<const LANES: usize>(vector: &[f32; LANES]) -> [f32; 4] {
        use std::arch::x86_64::*;
        let [first, rest @ ..] = vector.as_chunks::<4>().0 else { return [0.0; 4] };
        // SAFETY: each processor of this kind has SSE.
        let add = |total, four: &[f32; 4]| unsafe { _mm_add_ps(total, bytemuck::cast(*four)) };
        bytemuck::cast(rest.iter().fold(bytemuck::cast(*first), add))
    }
);
multiplied!(f64, gemm_f64);
