//! Names of dtypes, and conversions that round once.

use float8::F8E4M3;
use half::{bf16, f16};
use ndgc_kernels::base::{
    dtype::{DType, WithDType, f8_of_single, f8_to_single, with_type},
    error::Error,
};

#[test]
fn names_are_read_again() {
    for dtype in DType::ALL {
        assert_eq!(dtype.as_str().parse::<DType>().expect("its own name"), dtype);
        with_type!(dtype, T => assert_eq!((T::DTYPE, size_of::<T>()), (dtype, dtype.size_in_bytes())));
    }
    for wrong in ["F32", "", "f33", " u8"] {
        assert!(matches!(wrong.parse::<DType>(), Err(Error::Argument { argument: "name", .. })), "{wrong}");
    }
}

#[test]
fn a_double_is_rounded_to_a_half_once() {
    // One and a half units above 1 but for 2^-40: in two steps it would become the tie, and then the even one.
    let unit = f64::from(f16::EPSILON);
    assert_eq!(<f16 as WithDType>::from_f64(1.0 + 1.5 * unit - 2f64.powi(-40)).to_f64(), 1.0 + unit);
    assert_eq!(<f16 as WithDType>::from_f64(1.0 + 0.5 * unit + 2f64.powi(-40)).to_f64(), 1.0 + unit);
    assert_eq!(<f16 as WithDType>::from_f64(1.0 + 0.5 * unit).to_f64(), 1.0);
    assert_eq!(<f16 as WithDType>::from_f64(65_519.999_999_999).to_f64(), 65_504.0);
    assert_eq!(<f16 as WithDType>::from_f64(65_520.0).to_f64(), f64::INFINITY);
    assert_eq!(<bf16 as WithDType>::from_f64(f64::MAX).to_f64(), f64::INFINITY);
    assert_eq!(<bf16 as WithDType>::from_f64(-1e-300).to_bits(), 0x8000);
    assert_eq!(<f16 as WithDType>::from_f64(-0.0).to_bits(), 0x8000);
    assert!(<f16 as WithDType>::from_f64(f64::NAN).is_nan());
}

#[test]
fn every_float_of_8_bits_is_a_single_and_comes_back() {
    for bits in 0..=u8::MAX {
        let own = F8E4M3::from_bits(bits);
        let single = f8_to_single(own);
        assert_eq!(f8_of_single(single).to_bits(), bits);
        assert_eq!(WithDType::to_f64(own).to_bits() << 1, f64::from(single).to_bits() << 1);
        match own.is_nan() {
            true => assert!(single.is_nan() && own.to_f32().is_nan()),
            false => assert_eq!(single.to_bits(), own.to_f32().to_bits(), "{bits:#x}"),
        }
    }
}

#[test]
fn a_single_is_rounded_to_8_bits_as_their_crate_does() {
    let same = |x: f32| {
        for x in [x, -x] {
            assert_eq!(f8_of_single(x).to_bits(), F8E4M3::from_f32(x).to_bits(), "{x:e}");
        }
    };
    // Each number, what is halfway to the next, and their neighbours.
    for bits in 0..0x7f {
        let (low, high) = (f8_to_single(F8E4M3::from_bits(bits)), f8_to_single(F8E4M3::from_bits(bits + 1)));
        let high = if high.is_nan() { 480.0 } else { high };
        for x in [low, low + (high - low) / 2.0, high] {
            [x.next_down().abs(), x, x.next_up()].into_iter().for_each(same);
        }
    }
    // Every exponent with every pattern of the highest bits of the fraction, exact and not.
    (0..=0x7ff8u32)
        .for_each(|high| [0, 1, 0x7fff, 0xffff].iter().for_each(|low| same(f32::from_bits(high << 16 | low))));
    assert_eq!(f8_of_single(f32::INFINITY).to_f32(), 448.0);
    // Doubles once, not by way of a single: just above what is halfway.
    for bits in 0..0x7e {
        let (low, high) = (WithDType::to_f64(F8E4M3::from_bits(bits)), WithDType::to_f64(F8E4M3::from_bits(bits + 1)));
        let half = low + (high - low) / 2.0;
        for x in [half.next_down(), half, half.next_up(), half * (1.0 + 1e-12)] {
            assert_eq!(<F8E4M3 as WithDType>::from_f64(x).to_bits(), F8E4M3::from_f64(x).to_bits(), "{x:e}");
        }
    }
    let odd = [i128::MAX, i128::MIN, 465, 464, 463, 17, 18, 19, -17, 0, 1 << 90];
    for x in odd {
        assert_eq!(F8E4M3::from_i128(x).to_bits(), F8E4M3::from_f64(x as f64).to_bits(), "{x}");
    }
}

#[test]
fn an_integer_is_rounded_to_a_half_once() {
    // Halfway between two numbers of 8 bits, and one more: in two steps it would be a tie.
    let tie = (1i128 << 62) + (1 << 54);
    assert_eq!(bf16::from_i128(tie).to_i128(), 1 << 62);
    assert_eq!(bf16::from_i128(tie + 1).to_i128(), (1 << 62) + (1 << 55));
    assert_eq!(bf16::from_i128(-tie - 1).to_i128(), -(1 << 62) - (1 << 55));
    assert_eq!((f16::from_i128(-2049).to_f64(), f16::from_i128(2051).to_f64()), (-2048.0, 2052.0));
    assert_eq!((f16::from_i128(0).to_bits(), bf16::from_i128(i128::MAX).to_f64()), (0, 2f64.powi(127)));
}
