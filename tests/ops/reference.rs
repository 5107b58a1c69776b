//! What operations should give: naive loops over vectors with index arithmetic.

use ndgc::{F8E4M3, WithDType, bf16, f16};

/// An element type with the arithmetic that arrays promise: integers wrap, a division by 0 gives 0.
pub(crate) trait Native: WithDType {
    fn plus(self, rhs: Self) -> Self;
    fn minus(self, rhs: Self) -> Self;
    fn times(self, rhs: Self) -> Self;
    fn over(self, rhs: Self) -> Self;
    fn power(self, rhs: Self) -> Self;
    fn negative(self) -> Self;
    fn absolute(self) -> Self;
    fn sign(self) -> Self;
    fn larger(self, rhs: Self) -> Self;
    fn smaller(self, rhs: Self) -> Self;
    /// A number drawn from 64 random bits, often a special one.
    fn draw(bits: u64) -> Self;
    /// Equal; floats to their accuracy.
    fn close(got: Self, want: Self) -> bool;
}

macro_rules! native_integer {
    ($($t:ty, |$x:ident| $absolute:expr, $sign:expr, $exponent:expr;)*) => {$(
        impl Native for $t {
            fn plus(self, rhs: Self) -> Self { self.wrapping_add(rhs) }
            fn minus(self, rhs: Self) -> Self { self.wrapping_sub(rhs) }
            fn times(self, rhs: Self) -> Self { self.wrapping_mul(rhs) }
            fn over(self, rhs: Self) -> Self { if rhs == 0 { 0 } else { self.wrapping_div(rhs) } }
            fn power(self, rhs: Self) -> Self {
                let $x = rhs;
                let bits = $exponent;
                let base = if rhs < Self::default() && self.absolute() != 1 { 0 } else { self };
                (0..64).rev().fold(1, |power: $t, bit| {
                    let square = power.wrapping_mul(power);
                    if bits >> bit & 1 == 1 { square.wrapping_mul(base) } else { square }
                })
            }
            fn negative(self) -> Self { self.wrapping_neg() }
            fn absolute(self) -> Self { let $x = self; $absolute }
            fn sign(self) -> Self { let $x = self; $sign }
            fn larger(self, rhs: Self) -> Self { self.max(rhs) }
            fn smaller(self, rhs: Self) -> Self { self.min(rhs) }
            fn draw(bits: u64) -> Self {
                match bits % 8 {
                    0 => <$t>::MAX,
                    1 => <$t>::MIN,
                    2 => 0,
                    3 => (bits >> 8) as $t,
                    _ => ((bits >> 8) % 7) as $t,
                }
            }
            fn close(got: Self, want: Self) -> bool { got == want }
        }
    )*};
}
native_integer! {
    u8, |x| x, u8::from(x > 0), u64::from(x);
    u32, |x| x, u32::from(x > 0), u64::from(x);
    u16, |x| x, u16::from(x > 0), u64::from(x);
    u64, |x| x, u64::from(x > 0), x;
    i8, |x| x.wrapping_abs(), x.signum(), u64::from(x.unsigned_abs());
    i16, |x| x.wrapping_abs(), x.signum(), u64::from(x.unsigned_abs());
    i32, |x| x.wrapping_abs(), x.signum(), u64::from(x.unsigned_abs());
    i64, |x| x.wrapping_abs(), x.signum(), x.unsigned_abs();
}

macro_rules! native_float {
    ($($t:ty, $relative:expr, $absolute:expr;)*) => {$(
        impl Native for $t {
            fn plus(self, rhs: Self) -> Self { self + rhs }
            fn minus(self, rhs: Self) -> Self { self - rhs }
            fn times(self, rhs: Self) -> Self { self * rhs }
            fn over(self, rhs: Self) -> Self { self / rhs }
            fn power(self, rhs: Self) -> Self { f64::from(self).powf(f64::from(rhs)) as $t }
            fn negative(self) -> Self { -self }
            fn absolute(self) -> Self { self.abs() }
            fn sign(self) -> Self {
                if self.is_nan() || self == 0.0 { self + 0.0 } else { self.signum() }
            }
            fn larger(self, rhs: Self) -> Self {
                if self.is_nan() || rhs.is_nan() { <$t>::NAN } else { self.max(rhs) }
            }
            fn smaller(self, rhs: Self) -> Self {
                if self.is_nan() || rhs.is_nan() { <$t>::NAN } else { self.min(rhs) }
            }
            fn draw(bits: u64) -> Self {
                match bits % 32 {
                    0 => 0.0,
                    1 => -0.0,
                    2 => <$t>::INFINITY,
                    3 => <$t>::NEG_INFINITY,
                    4 => <$t>::NAN,
                    5 | 6 => 1.0,
                    7 => -2.0,
                    _ => ((bits >> 11) as f64 / (1u64 << 53) as f64 * 6.0 - 3.0) as $t,
                }
            }
            fn close(got: Self, want: Self) -> bool {
                got == want
                    || got.is_nan() && want.is_nan()
                    || want.is_finite() && (got - want).abs() <= $absolute + $relative * want.abs()
            }
        }
    )*};
}
native_float! { f32, 2e-5, 1e-6; f64, 1e-12, 1e-13; }

/// Halves: each operation in f64, rounded once.
macro_rules! native_half {
    ($($t:ty, $relative:expr, $absolute:expr;)*) => {$(
        impl Native for $t {
            fn plus(self, rhs: Self) -> Self { n(self.to_f64() + rhs.to_f64()) }
            fn minus(self, rhs: Self) -> Self { n(self.to_f64() - rhs.to_f64()) }
            fn times(self, rhs: Self) -> Self { n(self.to_f64() * rhs.to_f64()) }
            fn over(self, rhs: Self) -> Self { n(self.to_f64() / rhs.to_f64()) }
            fn power(self, rhs: Self) -> Self { n(self.to_f64().powf(rhs.to_f64())) }
            fn negative(self) -> Self { n(-self.to_f64()) }
            fn absolute(self) -> Self { n(self.to_f64().abs()) }
            fn sign(self) -> Self { n(Native::sign(self.to_f64())) }
            fn larger(self, rhs: Self) -> Self { n(self.to_f64().larger(rhs.to_f64())) }
            fn smaller(self, rhs: Self) -> Self { n(self.to_f64().smaller(rhs.to_f64())) }
            // Where infinity is the largest number, nothing small is left beside it.
            fn draw(bits: u64) -> Self {
                let drawn = f64::draw(bits);
                n(if drawn.is_infinite() && n::<$t>(drawn).to_f64().is_finite() { drawn.signum() } else { drawn })
            }
            fn close(got: Self, want: Self) -> bool {
                let (got, want) = (got.to_f64(), want.to_f64());
                got == want
                    || got.is_nan() && want.is_nan()
                    || want.is_finite() && (got - want).abs() <= $absolute + $relative * want.abs()
            }
        }
    )*};
}
native_half! { F8E4M3, 0.13, 0.26; f16, 2e-3, 4e-3; bf16, 1.6e-2, 3.2e-2; }

fn n<T: WithDType>(value: f64) -> T {
    T::from_f64(value)
}

/// An array of the host in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Host<T> {
    pub(crate) dims: Vec<usize>,
    pub(crate) data: Vec<T>,
}

/// Every index of a shape in row-major order.
pub(crate) fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    dims.iter().fold(vec![Vec::new()], |heads, &dim| {
        heads.iter().flat_map(|head| (0..dim).map(move |i| [head.as_slice(), &[i]].concat())).collect()
    })
}

impl<T: Copy> Host<T> {
    pub(crate) fn from_fn(dims: &[usize], f: impl FnMut(Vec<usize>) -> T) -> Self {
        Host { dims: dims.to_vec(), data: indices(dims).into_iter().map(f).collect() }
    }

    pub(crate) fn at(&self, index: &[usize]) -> T {
        assert_eq!(index.len(), self.dims.len());
        self.data[index.iter().zip(&self.dims).fold(0, |flat, (&i, &dim)| flat * dim + i)]
    }

    pub(crate) fn permute(&self, order: &[usize]) -> Self {
        let dims: Vec<usize> = order.iter().map(|&axis| self.dims[axis]).collect();
        Self::from_fn(&dims, |index| {
            let mut from = vec![0; index.len()];
            order.iter().zip(&index).for_each(|(&axis, &i)| from[axis] = i);
            self.at(&from)
        })
    }

    pub(crate) fn narrow(&self, axis: usize, start: usize, len: usize) -> Self {
        let mut dims = self.dims.clone();
        dims[axis] = len;
        Self::from_fn(&dims, |mut index| {
            index[axis] += start;
            self.at(&index)
        })
    }

    pub(crate) fn get(&self, axis: usize, at: usize) -> Self {
        let mut one = self.narrow(axis, at, 1);
        one.dims.remove(axis);
        one
    }

    pub(crate) fn reshape(&self, dims: &[usize]) -> Self {
        assert_eq!(dims.iter().product::<usize>(), self.data.len());
        Host { dims: dims.to_vec(), data: self.data.clone() }
    }

    pub(crate) fn broadcast(&self, dims: &[usize]) -> Self {
        let lead = dims.len() - self.dims.len();
        Self::from_fn(dims, |index| {
            let own: Vec<usize> = index[lead..].iter().zip(&self.dims).map(|(&i, &dim)| i % dim.max(1)).collect();
            self.at(&own)
        })
    }

    /// The arrays one after the other along an axis.
    pub(crate) fn cat(parts: &[&Self], axis: usize) -> Self {
        let mut dims = parts[0].dims.clone();
        dims[axis] = parts.iter().map(|part| part.dims[axis]).sum();
        Self::from_fn(&dims, |mut index| {
            let mut parts = parts.iter();
            let mut part = parts.next().unwrap();
            while index[axis] >= part.dims[axis] {
                index[axis] -= part.dims[axis];
                part = parts.next().unwrap();
            }
            part.at(&index)
        })
    }

    pub(crate) fn map<R: Copy>(&self, f: impl FnMut(T) -> R) -> Host<R> {
        Host { dims: self.dims.clone(), data: self.data.iter().copied().map(f).collect() }
    }

    /// What `f` gives for the elements along `axes`, taken together, for each index of the others.
    pub(crate) fn reduce<R: Copy>(&self, axes: &[usize], keep: bool, f: impl Fn(&[T]) -> R) -> Host<R> {
        let kept: Vec<usize> = (0..self.dims.len()).filter(|axis| !axes.contains(axis)).collect();
        let sizes = |list: &[usize]| list.iter().map(|&axis| self.dims[axis]).collect::<Vec<_>>();
        let inner = indices(&sizes(axes));
        let mut out = Host::from_fn(&sizes(&kept), |outer| {
            let group: Vec<T> = inner
                .iter()
                .map(|inner| {
                    let mut index = vec![0; self.dims.len()];
                    kept.iter().zip(&outer).for_each(|(&axis, &i)| index[axis] = i);
                    axes.iter().zip(inner).for_each(|(&axis, &i)| index[axis] = i);
                    self.at(&index)
                })
                .collect();
            f(&group)
        });
        if keep {
            out.dims = (0..self.dims.len()).map(|i| if axes.contains(&i) { 1 } else { self.dims[i] }).collect();
        }
        out
    }
}

impl<T: Native> Host<T> {
    /// Numbers drawn from a seed.
    pub(crate) fn sample(dims: &[usize], seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self::from_fn(dims, |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            T::draw((state ^ (state >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9))
        })
    }

    /// As [`Host::sample`], with finite numbers of moderate size.
    pub(crate) fn tame(dims: &[usize], seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self::from_fn(dims, |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            T::from_f64(if T::DTYPE.is_float() {
                (state >> 11) as f64 / (1u64 << 53) as f64 * 4.0 - 2.0
            } else {
                ((state >> 40) % 5) as f64
            })
        })
    }

    /// `[.., m, k] x [.., k, n]` with leading axes that broadcast.
    pub(crate) fn matmul(&self, rhs: &Self) -> Self {
        let split = |dims: &[usize]| dims.len() - 2;
        let (a, b) = (split(&self.dims), split(&rhs.dims));
        let (m, k, n) = (self.dims[a], self.dims[a + 1], rhs.dims[b + 1]);
        let lead = wider(&self.dims[..a], &rhs.dims[..b]);
        let left = self.broadcast(&[lead.as_slice(), &[m, k]].concat());
        let right = rhs.broadcast(&[lead.as_slice(), &[k, n]].concat());
        let rank = lead.len();
        Self::from_fn(&[lead.as_slice(), &[m, n]].concat(), |index| {
            let (mut l, mut r) = (index.clone(), index.clone());
            let mut sum = 0.0;
            for i in 0..k {
                (l[rank + 1], r[rank]) = (i, i);
                sum += left.at(&l).to_f64() * right.at(&r).to_f64();
            }
            // Of integers: small enough to be whole, and then as they wrap.
            if T::DTYPE.is_float() { T::from_f64(sum) } else { T::from_i128(sum as i128) }
        })
    }
}

/// The shape that two shapes broadcast to.
pub(crate) fn wider(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let size = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    (0..rank).map(|i| if size(a, i) == 1 { size(b, i) } else { size(a, i) }).collect()
}
