//! The widest vector units of this machine, for plain loops: the loop is compiled for each set of instructions, and the
//! first call finds out which there is.

use std::sync::atomic::{AtomicU8, Ordering};

/// Elements below which choosing an instruction set costs more than it gains.
const SIMD_MIN: usize = 32;

/// What a loop may use.
const UNKNOWN: u8 = 0;
const BASE: u8 = 1;
/// AVX2 and what comes with it: x86-64-v3.
const V3: u8 = 2;
/// The foundation of AVX-512 and what comes with it: x86-64-v4.
const V4: u8 = 3;

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
        if v4 {
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

#[inline(always)]
fn units() -> u8 {
    // Relaxed: as in `find`.
    match UNITS.load(Ordering::Relaxed) {
        UNKNOWN => find(),
        found => found,
    }
}

/// Runs a loop over `len` elements with the widest vectors there are.
#[inline(always)]
pub(super) fn simd<R>(len: usize, body: impl FnOnce() -> R) -> R {
    match if len < SIMD_MIN { BASE } else { units() } {
        // SAFETY: `find` saw all features that `v4` is compiled for.
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code)]
        V4 => unsafe { v4(body) },
        // SAFETY: `find` saw all features that `v3` is compiled for.
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code)]
        V3 => unsafe { v3(body) },
        _ => body(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe")]
fn v3<R>(body: impl FnOnce() -> R) -> R {
    body()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn v4<R>(body: impl FnOnce() -> R) -> R {
    body()
}
