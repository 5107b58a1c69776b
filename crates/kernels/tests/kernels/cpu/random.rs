//! The generator against one that gives the published answers, and what fills promise.

use ndgc_kernels::base::dtype::DType;
use ndgc_kernels::cpu::threads;
use ndgc_kernels::kernel::Kernel;

use super::arrays::{Array, FLOATS, NUMBERS, run, run_again, tolerance};

/// Philox4x32-10: what becomes of one counter, one word after the other.
fn plain(counter: [u32; 4], seed: u64) -> [u32; 4] {
    let mut words = counter;
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let p = u64::from(words[0]) * 0xD251_1F53;
        let q = u64::from(words[2]) * 0xCD9E_8D57;
        words = [(q >> 32) as u32 ^ words[1] ^ key[0], q as u32, (p >> 32) as u32 ^ words[3] ^ key[1], p as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    words
}

/// The answers that come with the generator, to three counters and keys.
#[test]
fn philox_gives_the_published_answers() {
    assert_eq!(plain([0; 4], 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(plain([u32::MAX; 4], u64::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    assert_eq!(plain(counter, 0x299f_31d0_a409_3822), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
}

/// The highest 24 bits of a word as a number in `[0, 1)`.
fn unit32(word: u32) -> f64 {
    f64::from(word >> 8) / f64::from(1 << 24)
}

/// The highest 53 bits of two words as a number in `[0, 1)`.
fn unit64(low: u32, high: u32) -> f64 {
    let bits = u64::from(high) << 32 | u64::from(low);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Every lane, with every word of the counter and of the key other than 0 in the last case.
#[test]
fn every_element_is_the_word_that_its_place_says() {
    let far = (0x0370_7344_85a3_08d3, 0x299f_31d0_a409_3822, 0x243f_6a88);
    for (first, seed, replays) in [(0, 7, 0), (3, 7, 0), (64 * 1024 + 17, 7, 0), far] {
        let counter = |block: u64, width: u32| [block as u32, (block >> 32) as u32, width, replays];
        let numbers = |dtype: DType| {
            let mut array = Array::new(dtype, &[1000]);
            let kernel = Kernel::Uniform { dst: array.view(), seed, first, low: 0.0, high: 1.0 };
            run_again(&kernel, replays.into()).expect("supported");
            (first..).zip(array.values())
        };
        for (element, value) in numbers(DType::F32) {
            let word = plain(counter(element / 4, 1), seed)[element as usize % 4];
            assert_eq!(value, unit32(word), "element {element}");
        }
        for (element, value) in numbers(DType::F64) {
            let block = plain(counter(element / 2, 2), seed);
            let place = 2 * (element as usize % 2);
            assert_eq!(value, unit64(block[place], block[place + 1]), "element {element}");
        }
    }
}

fn drawn(dtype: DType, normal: bool, first: u64, n: usize) -> Vec<f64> {
    let mut array = Array::new(dtype, &[n]);
    let dst = array.view();
    let kernel = match normal {
        true => Kernel::Normal { dst, seed: 7, first, mean: 1.0, std: 2.0 },
        false => Kernel::Uniform { dst, seed: 7, first, low: -3.0, high: 5.0 },
    };
    run(&kernel).expect("supported");
    array.values()
}

#[test]
fn a_fill_is_the_same_cut_anywhere() {
    let cases = NUMBERS.map(|dtype| (dtype, false)).into_iter().chain(FLOATS.map(|dtype| (dtype, true)));
    for (dtype, normal) in cases {
        for first in [0, 5, u64::from(u32::MAX) - 70] {
            let whole = drawn(dtype, normal, first, 300);
            for cut in [1, 2, 3, 63, 64, 65, 131, 299] {
                let head = drawn(dtype, normal, first, cut);
                let tail = drawn(dtype, normal, first + cut as u64, 300 - cut);
                assert_eq!([head, tail].concat(), whole, "{dtype} normal {normal} first {first} cut {cut}");
            }
        }
    }
}

#[test]
fn a_fill_on_several_threads_is_the_same() {
    let n = threads::ELEMENTS_MIN + 333;
    for normal in [false, true] {
        let whole = drawn(DType::F32, normal, 3, n);
        for start in [0, 1000, n / 2 + 1, n - 100] {
            assert_eq!(drawn(DType::F32, normal, 3 + start as u64, 100), whole[start..start + 100]);
        }
    }
}

#[test]
fn uniform_numbers_fill_their_range_and_never_reach_its_end() {
    for dtype in FLOATS {
        let values = drawn(dtype, false, 0, 100_000);
        assert!(values.iter().all(|&x| (-3.0..5.0).contains(&x)));
        let (low, high) = values.iter().fold((9.0f64, -9.0f64), |(low, high), &x| (low.min(x), high.max(x)));
        let end = 4.999 - 4.0 * tolerance(dtype);
        assert!(low < -2.999 && high > end, "{dtype}: {low} {high}");
        let mean = values.iter().sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
    }
    let whole = drawn(DType::I64, false, 0, 10_000);
    assert!((-3..5).all(|n| whole.contains(&f64::from(n))) && whole.iter().all(|x| x.fract() == 0.0 && *x < 5.0));
    // Between neighbours there is only the lower one.
    let mut narrow = Array::new(DType::F32, &[1000]);
    let high = f64::from(1f32.next_up());
    run(&Kernel::Uniform { dst: narrow.view(), seed: 1, first: 0, low: 1.0, high }).expect("floats");
    assert!(narrow.values().iter().all(|&x| x == 1.0));
    run(&Kernel::Uniform { dst: narrow.view(), seed: 1, first: 0, low: 2.0, high: 2.0 }).expect("floats");
    assert!(narrow.values().iter().all(|&x| x == 2.0));
    let mut wide = Array::new(DType::F64, &[1000]);
    run(&Kernel::Uniform { dst: wide.view(), seed: 1, first: 0, low: f64::MIN, high: f64::MAX }).expect("floats");
    assert!(wide.values().iter().all(|x| x.is_finite()));
}

#[test]
fn normal_numbers_have_their_moments() {
    for dtype in FLOATS {
        let values: Vec<f64> = drawn(dtype, true, 0, 200_000).iter().map(|x| (x - 1.0) / 2.0).collect();
        let moment = |n: i32| values.iter().map(|x| x.powi(n)).sum::<f64>() / values.len() as f64;
        let found = [moment(1), moment(2) - 1.0, moment(3), moment(4) - 3.0];
        assert!(found.iter().zip([0.01, 0.02, 0.04, 0.12]).all(|(m, limit)| m.abs() < limit), "{dtype} {found:?}");
        let pairs = values.chunks(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / 1e5;
        assert!(pairs.abs() < 0.02, "both of a pair are independent: {pairs}");
    }
}

#[test]
fn fills_of_different_width_share_no_bits() {
    let bits = |x: f64| (x + 3.0) / 8.0;
    let single: Vec<u32> = drawn(DType::F32, false, 0, 64).iter().map(|&x| (bits(x) * 4096.0) as u32).collect();
    let double: Vec<u32> = drawn(DType::F64, false, 0, 64).iter().map(|&x| (bits(x) * 4096.0) as u32).collect();
    let equal = single.iter().zip(&double).filter(|(a, b)| a == b).count();
    assert!(equal < 3, "{equal} of 64 begin with the same 12 bits");
}
