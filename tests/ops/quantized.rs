//! Weights in blocks: against a decoder that looks up one number at a time, and products against sums in f64.

use std::sync::Arc;

use ndgc::quantized::k_quants::GgmlType as _;
use ndgc::quantized::{GgmlDType, QMatMul, QStorage, QTensor, k_quants};
use ndgc::{CpuStorage, CustomOp1 as _, DType, Device, Error, Layout, NdManager, Shape, Tensor, Var, bf16, f16, gc};

use crate::common::{alone, each_case};

/// The formats that have blocks.
fn blocks() -> impl Iterator<Item = GgmlDType> {
    GgmlDType::ALL.into_iter().filter(|dtype| dtype.block_size() > 1)
}

/// Numbers in -1..1, of a fixed sequence.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn half(b: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f64()
}

/// Number `i` of a block.
fn number(dtype: GgmlDType, b: &[u8], i: usize) -> f64 {
    let nibble = |from: usize| f64::from(b[from + i % 16] >> (i / 16 * 4) & 15);
    let fifth = |from: usize| f64::from(b[from + i / 8] >> (i % 8) & 1) * 16.0;
    let pair = |from: usize| b[from + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    let signed = |byte: u8| f64::from(byte as i8);
    // Scale and base of six bits.
    let six = || {
        let (s, part) = (&b[4..16], i / 32);
        let (scale, base) = match part < 4 {
            true => (s[part] & 63, s[part + 4] & 63),
            false => (s[part + 4] & 15 | (s[part - 4] >> 6) << 4, s[part + 4] >> 4 | (s[part] >> 6) << 4),
        };
        (half(b, 0) * f64::from(scale), half(b, 2) * f64::from(base))
    };
    let plane = |from: usize| b[from + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
    match dtype {
        GgmlDType::Q4_0 => half(b, 0) * (nibble(2) - 8.0),
        GgmlDType::Q4_1 => half(b, 0) * nibble(4) + half(b, 2),
        GgmlDType::Q5_0 => half(b, 0) * (nibble(6) + fifth(2) - 16.0),
        GgmlDType::Q5_1 => half(b, 0) * (nibble(8) + fifth(4)) + half(b, 2),
        GgmlDType::Q8_0 => half(b, 0) * signed(b[2 + i]),
        GgmlDType::Q8_1 => half(b, 0) * signed(b[4 + i]),
        GgmlDType::Q2K => {
            let scale = b[i / 16];
            half(b, 80) * f64::from(scale & 15) * f64::from(pair(16)) - half(b, 82) * f64::from(scale >> 4)
        }
        GgmlDType::Q3K => {
            let (s, part) = (&b[96..108], i / 16);
            let low = s[part % 8] >> (part / 8 * 4) & 15;
            let scale = f64::from(low | (s[8 + part % 4] >> (part / 4 * 2) & 3) << 4) - 32.0;
            let third = if b[i % 32] >> (i / 32) & 1 == 1 { 0.0 } else { 4.0 };
            half(b, 108) * scale * (f64::from(pair(32)) - third)
        }
        GgmlDType::Q4K => {
            let (scale, base) = six();
            scale * f64::from(plane(16)) - base
        }
        GgmlDType::Q5K => {
            let (scale, base) = six();
            scale * f64::from(plane(48) | (b[16 + i % 32] >> (i / 32) & 1) << 4) - base
        }
        GgmlDType::Q6K => {
            let (h, p, l) = (i / 128, i % 128 / 32, i % 32);
            let low = b[64 * h + 32 * (p % 2) + l] >> (p / 2 * 4) & 15;
            let q = low | (b[128 + 32 * h + l] >> (2 * p) & 3) << 4;
            half(b, 208) * signed(b[192 + i / 16]) * (f64::from(q) - 32.0)
        }
        GgmlDType::Q8K => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])) * signed(b[4 + i]),
        dtype => panic!("{dtype} has no blocks"),
    }
}

/// Blocks of any bits, but for the factors that all numbers share, which are small.
fn any_blocks(dtype: GgmlDType, count: usize, seed: u64) -> Vec<u8> {
    let factors: &[usize] = match dtype {
        GgmlDType::Q4_0 | GgmlDType::Q5_0 | GgmlDType::Q8_0 => &[0],
        GgmlDType::Q2K => &[80, 82],
        GgmlDType::Q3K => &[108],
        GgmlDType::Q6K => &[208],
        _ => &[0, 2],
    };
    let mut all: Vec<u8> = numbers(count * dtype.type_size(), seed).iter().map(|x| (x * 128.0) as i8 as u8).collect();
    for (block, factor) in all.chunks_exact_mut(dtype.type_size()).zip(numbers(count, seed + 1)) {
        if dtype == GgmlDType::Q8K {
            block[..4].copy_from_slice(&factor.to_le_bytes());
            continue;
        }
        for &at in factors {
            block[at..at + 2].copy_from_slice(&f16::from_f32(factor / (at + 1) as f32).to_le_bytes());
        }
    }
    all
}

fn tensor(dtype: GgmlDType, bytes: Vec<u8>, dims: [usize; 2]) -> QTensor {
    QTensor::new(QStorage::from_data(bytes.into(), &Device::Cpu, dtype).unwrap(), dims).unwrap()
}

/// As the products round them: numbers of 8 bits, with a scale for each block.
fn rounded(x: &[f32], block: usize) -> Vec<f64> {
    let one = |x: &[f32]| -> Vec<f64> {
        let far = x.iter().fold(0f32, |far, &x| if x.abs() > far.abs() { x } else { far });
        if far == 0.0 {
            return vec![0.0; x.len()];
        }
        let (by, scale) = match block {
            256 => (-127.0 / far, 1.0 / (-127.0 / far)),
            _ => (1.0 / (far.abs() / 127.0), f16::from_f32(far.abs() / 127.0).to_f32()),
        };
        x.iter().map(|x| f64::from((by * x).round()) * f64::from(scale)).collect()
    };
    x.chunks(block).flat_map(one).collect()
}

#[test]
fn blocks_of_any_bits_are_read_number_by_number() {
    each_case(&[false], |device| {
        for dtype in blocks() {
            let (len, size) = (dtype.block_size(), dtype.type_size());
            let bytes = any_blocks(dtype, 40, 7);
            let at = |i: usize| number(dtype, &bytes[i / len * size..][..size], i % len) as f32;
            let want: Vec<f32> = (0..40 * len).map(at).collect();
            let got = tensor(dtype, bytes.clone(), [8, 5 * len]).dequantize(device).unwrap();
            assert_eq!(got.device(), device);
            assert_eq!(got.to_vec::<f32>().unwrap(), want, "{dtype}");
        }
    });
}

/// Bytes worked out by hand, of numbers that the formats hold as they are.
#[test]
fn small_numbers_become_the_blocks_that_one_writes_by_hand() {
    let block = |dtype, f: &dyn Fn(i32) -> i32| {
        let x: Vec<f32> = (0..32).map(|i| f(i) as f32).collect();
        let x = Tensor::from_vec(x, (1, 32), &Device::Cpu).unwrap();
        let made = QTensor::quantize(&x, dtype).unwrap();
        assert_eq!(made.dequantize(&Device::Cpu).unwrap().to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
        made.data().unwrap().into_owned()
    };
    alone(|| {
        // 1.0 as a half is 0x3C00; -8 to 7, then 7 to -8.
        let up_and_down = |i: i32| if i < 16 { i - 8 } else { 23 - i };
        let nibbles: Vec<u8> = (0..16).map(|j| j | (15 - j) << 4).collect();
        assert_eq!(block(GgmlDType::Q4_0, &up_and_down), [&[0x00, 0x3C][..], &nibbles].concat());
        assert_eq!(block(GgmlDType::Q4_1, &up_and_down), [&[0x00, 0x3C, 0x00, 0xC8][..], &nibbles].concat());
        // -16 to 15: the fifth bit is that of the upper half.
        let both: Vec<u8> = (0..16).map(|j| j | j << 4).collect();
        assert_eq!(block(GgmlDType::Q5_0, &|i| i - 16), [&[0x00, 0x3C, 0, 0, 0xFF, 0xFF][..], &both].concat());
        let least = [0x00, 0x3C, 0x00, 0xCC, 0, 0, 0xFF, 0xFF];
        assert_eq!(block(GgmlDType::Q5_1, &|i| i - 16), [&least[..], &both].concat());
        // 127 makes the scale 1.
        let bytes: Vec<u8> = (0..32u8).map(|i| 127 - i).collect();
        assert_eq!(block(GgmlDType::Q8_0, &|i| 127 - i), [&[0x00, 0x3C][..], &bytes].concat());
        // The sum, 3568, is 0x6AF8 as a half.
        assert_eq!(block(GgmlDType::Q8_1, &|i| 127 - i), [&[0x00, 0x3C, 0xF8, 0x6A][..], &bytes].concat());
    });
}

#[test]
fn floats_come_back_as_near_as_the_bits_allow() {
    alone(|| {
        let x = Tensor::from_vec(numbers(4 * 1024, 3), (4, 1024), &Device::Cpu).unwrap();
        for dtype in GgmlDType::ALL {
            // Parts of the range from -1 to 1 that a number may be off; less than a step.
            let most = match dtype {
                GgmlDType::F32 => 0.0,
                GgmlDType::F16 => 0.0005,
                GgmlDType::BF16 => 0.004,
                GgmlDType::Q2K => 0.5,
                GgmlDType::Q3K => 0.3,
                GgmlDType::Q4_0 | GgmlDType::Q4_1 | GgmlDType::Q4K => 0.14,
                GgmlDType::Q5_0 | GgmlDType::Q5_1 | GgmlDType::Q5K => 0.07,
                GgmlDType::Q6K => 0.04,
                _ => 0.0043,
            };
            let made = QTensor::quantize(&x, dtype).unwrap();
            let bytes = 4 * 1024 / dtype.block_size() * dtype.type_size();
            assert_eq!((made.storage_size_in_bytes(), made.dims_of()), (bytes, vec![4, 1024]), "{dtype}");
            let back = made.dequantize(&Device::Cpu).unwrap().to_vec::<f32>().unwrap();
            let off = back.iter().zip(x.to_vec::<f32>().unwrap()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off <= most, "{dtype}: {off} is more than {most}");
            // Zeros, and one number for all.
            for same in [0.0, 0.75] {
                let x = Tensor::full(same as f32, (1, 256), &Device::Cpu).unwrap();
                let back = QTensor::quantize(&x, dtype).unwrap().dequantize(&Device::Cpu).unwrap();
                let based = matches!(dtype, GgmlDType::Q2K | GgmlDType::Q4K | GgmlDType::Q5K);
                let want = if based { 0.0 } else { same };
                assert!(
                    back.to_vec::<f32>().unwrap().iter().all(|x| (x - want as f32).abs() < 0.005),
                    "{dtype} {same}"
                );
            }
        }
    });
}

trait DimsOf {
    fn dims_of(&self) -> Vec<usize>;
}

impl DimsOf for QTensor {
    fn dims_of(&self) -> Vec<usize> {
        self.shape().dims().to_vec()
    }
}

fn check_product(dtype: GgmlDType, [m, k, n]: [usize; 3]) {
    let (len, size) = (dtype.block_size(), dtype.type_size());
    let bytes = any_blocks(dtype, n * k / len, 11);
    let x = numbers(m * k, 5);
    let weights: Vec<f64> = (0..n * k).map(|i| number(dtype, &bytes[i / len * size..][..size], i % len)).collect();
    let near = rounded(&x, len);
    let module = QMatMul::from_qtensor(tensor(dtype, bytes, [n, k])).unwrap();
    assert!(matches!(module, QMatMul::QTensor(_)));
    let got = module.forward(&Tensor::from_vec(x, (m, k), &Device::Cpu).unwrap()).unwrap();
    assert_eq!(got.dims(), [m, n]);
    for (i, got) in got.to_vec::<f32>().unwrap().into_iter().enumerate() {
        let (x, w) = (&near[i / n * k..][..k], &weights[i % n * k..][..k]);
        let want: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
        let terms: f64 = x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
        // A base times sum and a scale times product may both be larger than what is left.
        assert!((f64::from(got) - want).abs() <= 1e-5 * (terms + 1.0), "{dtype} {m} {k} {n}: {got} {want}");
    }
}

#[test]
fn products_are_those_of_the_numbers_in_the_blocks() {
    alone(|| {
        for dtype in blocks() {
            check_product(dtype, [1, 256, 1]);
            check_product(dtype, [1, 512, 37]);
            check_product(dtype, [5, 256, 20]);
        }
    });
}

/// Enough for all threads.
#[test]
fn large_products_are_the_same() {
    if crate::common::ran_apart() {
        return;
    }
    alone(|| {
        for dtype in [GgmlDType::Q4_0, GgmlDType::Q5_1, GgmlDType::Q3K, GgmlDType::Q4K, GgmlDType::Q6K] {
            check_product(dtype, [1, 2048, 600]);
            check_product(dtype, [3, 1024, 401]);
        }
    });
}

/// Whole numbers with scales that are powers of two: nothing is rounded, whatever the order of the sums.
#[test]
fn products_of_the_largest_numbers_are_exact() {
    alone(|| {
        for dtype in [GgmlDType::Q4_0, GgmlDType::Q5_0, GgmlDType::Q8_0] {
            for [m, n] in [[1, 1], [1, 16], [1, 33], [2, 15], [5, 17], [17, 40]] {
                let (k, size) = (96, dtype.type_size());
                let mut bytes = any_blocks(dtype, n * k / 32, (m + n) as u64);
                for (i, block) in bytes.chunks_exact_mut(size).enumerate() {
                    block[..2].copy_from_slice(&f16::from_f32([1.0, -0.5, 4.0][i % 3]).to_le_bytes());
                    // Blocks of nothing but the ends of the range among them.
                    match i % 4 {
                        0 => block[2..].fill(if dtype == GgmlDType::Q8_0 { 0x80 } else { 0 }),
                        1 => block[2..].fill(if dtype == GgmlDType::Q8_0 { 0x7f } else { 0xff }),
                        _ => (),
                    }
                }
                // One of each 32 is 127, so that they are multiplied as they are.
                let whole = |(i, x): (usize, f32)| match i % 32 {
                    0 => 127.0,
                    _ if i / 32 % 2 == 0 => {
                        if i % 3 == 0 {
                            -127.0
                        } else {
                            127.0
                        }
                    }
                    _ => (x * 127.0).round(),
                };
                let x: Vec<f32> = numbers(m * k, 3).into_iter().enumerate().map(whole).collect();
                let weights = |i: usize| number(dtype, &bytes[i / 32 * size..][..size], i % 32);
                let product = |i: usize| {
                    let (x, row) = (&x[i / n * k..][..k], i % n * k);
                    x.iter().enumerate().map(|(j, x)| f64::from(*x) * weights(row + j)).sum::<f64>() as f32
                };
                let want: Vec<f32> = (0..m * n).map(product).collect();
                let module = QMatMul::from_qtensor(tensor(dtype, bytes.clone(), [n, k])).unwrap();
                let got = module.forward(&Tensor::from_vec(x.clone(), (m, k), &Device::Cpu).unwrap()).unwrap();
                assert_eq!(got.to_vec::<f32>().unwrap(), want, "{dtype} {m} {n}");
            }
        }
    });
}

#[test]
fn rows_do_not_depend_on_the_others_nor_on_the_form() {
    alone(|| {
        let weights = Tensor::from_vec(numbers(6 * 256, 1), (6, 256), &Device::Cpu).unwrap();
        let x = Tensor::from_vec(numbers(8 * 256, 2), (2, 4, 256), &Device::Cpu).unwrap();
        for dtype in blocks() {
            let module = QMatMul::from_qtensor(QTensor::quantize(&weights, dtype).unwrap()).unwrap();
            let all = module.forward(&x).unwrap();
            assert_eq!(all.dims(), [2, 4, 6]);
            let turned = x.transpose(0, 1).unwrap();
            let same = module.forward(&turned).unwrap().transpose(0, 1).unwrap();
            assert_eq!(same.to_vec::<f32>().unwrap(), all.to_vec::<f32>().unwrap());
            let one = module.forward(&x.get(1).unwrap().narrow(0, 2, 1).unwrap()).unwrap();
            assert_eq!(one.to_vec::<f32>().unwrap(), all.to_vec::<f32>().unwrap()[6 * 6..7 * 6]);
            for narrow in [DType::F16, DType::BF16, DType::F8E4M3] {
                let x = x.to_dtype(narrow).unwrap();
                let want = module.forward(&x.to_dtype(DType::F32).unwrap()).unwrap().to_dtype(narrow).unwrap();
                let got = module.forward(&x).unwrap();
                assert_eq!(got.dtype(), narrow);
                let [got, want] = [got, want].map(|y| y.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap());
                assert_eq!(got, want);
            }
        }
    });
}

#[test]
fn every_device_multiplies_and_looks_up() {
    each_case(&[false, true], |device| {
        let weights = Tensor::from_vec(numbers(8 * 256, 1), (8, 256), device).unwrap();
        let x = Tensor::from_vec(numbers(3 * 256, 2), (3, 256), device).unwrap();
        let ids = Tensor::new([[3u32, 1], [3, 7]], device).unwrap();
        for dtype in GgmlDType::ALL {
            let blocks = Arc::new(QTensor::quantize(&weights, dtype).unwrap());
            assert_eq!(blocks.device(), *device);
            let module = QMatMul::from_arc(Arc::clone(&blocks)).unwrap();
            let floats = blocks.dequantize(device).unwrap();
            let near = |got: &Tensor, want: &Tensor, most: f32| {
                assert_eq!((got.device(), got.dims()), (device, want.dims()));
                let (got, want) = (got.to_vec::<f32>().unwrap(), want.to_vec::<f32>().unwrap());
                assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= most), "{dtype}: {got:?} {want:?}");
            };
            let want = x.matmul(&floats.t().unwrap()).unwrap();
            near(&module.forward(&x).unwrap(), &want, 0.1);
            near(&blocks.matmul(&x).unwrap(), &want, 0.1);
            near(&module.forward_via_f16(&x).unwrap(), &want, 0.1);
            let rows = floats.index_select(&ids.flatten_all().unwrap(), 0).unwrap().reshape((2, 2, 256)).unwrap();
            near(&blocks.embedding(&ids).unwrap(), &rows, 0.0);
            near(&module.embedding(&ids).unwrap(), &rows, 0.0);
            let half = blocks.dequantize_f16(device).unwrap().to_dtype(DType::F32).unwrap();
            near(&half, &floats, 0.001);
        }
    });
}

#[test]
fn the_input_has_the_gradient_of_a_product_with_the_numbers() {
    alone(|| {
        let weights = Tensor::from_vec(numbers(6 * 64, 1), (6, 64), &Device::Cpu).unwrap();
        let blocks = QTensor::quantize(&weights, GgmlDType::Q4_0).unwrap();
        let floats = blocks.dequantize(&Device::Cpu).unwrap();
        let x = Var::from_vec(numbers(2 * 3 * 64, 2), (2, 3, 64), &Device::Cpu).unwrap();
        let y = blocks.matmul(&x).unwrap();
        let by = Tensor::from_vec(numbers(36, 4), (2, 3, 6), &Device::Cpu).unwrap();
        // What the gradient needs stays when the blocks are closed.
        blocks.blocks().close();
        let grads = y.mul(&by).unwrap().sum_all().unwrap().backward().unwrap();
        let got = grads.get(&x).unwrap();
        let want = by.reshape((6, 6)).unwrap().matmul(&floats).unwrap();
        assert_eq!(got.dims(), [2, 3, 64]);
        assert_eq!(got.to_vec::<f32>().unwrap(), want.to_vec::<f32>().unwrap());
    });
}

#[test]
fn blocks_have_an_owner_and_are_counted() {
    alone(|| {
        let before = Device::Cpu.memory().active;
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let weights = Tensor::from_vec(numbers(64 * 256, 1), (64, 256), &Device::Cpu).unwrap();
        let blocks = QTensor::quantize_onto(&weights, GgmlDType::Q4K, &manager).unwrap();
        drop(weights);
        gc::collect();
        let bytes = 64 * GgmlDType::Q4K.type_size();
        assert_eq!((manager.array_count(), manager.report().own_bytes()), (1, bytes as u64));
        assert!(Device::Cpu.memory().active - before >= bytes as u64);
        let module = QMatMul::from_qtensor(blocks).unwrap();
        let x = manager.zeros((1, 256), DType::F32).unwrap();
        // The result belongs to the owner of the input; nothing else is left.
        let y = module.forward(&x).unwrap();
        assert_eq!(manager.array_count(), 3);
        assert_eq!(y.to_vec::<f32>().unwrap(), [0.0; 64]);
        manager.close().unwrap();
        let x = Tensor::zeros((1, 256), DType::F32, &Device::Cpu).unwrap();
        assert!(matches!(module.forward(&x), Err(Error::StaleArray(_))));
        drop((x, y));
        gc::collect();
        assert_eq!(Device::Cpu.memory().active, before);
    });
}

#[test]
fn what_does_not_fit_is_an_error() {
    alone(|| {
        let at = &Device::Cpu;
        let floats = |dims: &[usize]| Tensor::zeros(dims, DType::F32, at).unwrap();
        let shape = |result: Result<QTensor, Error>| assert!(matches!(result, Err(Error::Shape { .. })));
        shape(QTensor::quantize(&floats(&[]), GgmlDType::Q4_0));
        shape(QTensor::quantize(&floats(&[64, 31]), GgmlDType::Q4_0));
        shape(QTensor::quantize(&floats(&[2, 128]), GgmlDType::Q4K));
        let bytes = |count| QStorage::from_data(vec![0; count].into(), at, GgmlDType::Q4_0);
        assert!(matches!(bytes(19), Err(Error::ElementCount { .. })));
        assert!(matches!(QTensor::new(bytes(36).unwrap(), (3, 32)), Err(Error::ElementCount { .. })));
        shape(QTensor::new(bytes(36).unwrap(), (64, 1)));
        shape(QTensor::new(bytes(36).unwrap(), ()));
        let wide = QTensor::from_blocks(floats(&[18]), GgmlDType::Q4_0, 32);
        assert!(matches!(wide, Err(Error::UnsupportedDType { .. })));

        let weights = QTensor::quantize(&floats(&[4, 64]), GgmlDType::Q8_0).unwrap();
        assert!(matches!(weights.matmul(&floats(&[64])), Err(Error::Shape { .. })));
        assert!(matches!(weights.matmul(&floats(&[])), Err(Error::Shape { .. })));
        assert!(matches!(weights.matmul(&floats(&[2, 32])), Err(Error::ShapeMismatch { .. })));
        let integers = Tensor::zeros((2, 64), DType::U32, at).unwrap();
        assert!(matches!(weights.matmul(&integers), Err(Error::UnsupportedDType { .. })));
        assert_eq!(weights.matmul(&floats(&[0, 64])).unwrap().dims(), [0, 4]);
        for outside in [4i64, -1] {
            let ids = Tensor::new([0i64, outside], at).unwrap();
            assert!(
                matches!(weights.embedding(&ids), Err(Error::IndexOutOfRange { index, dim: 4, .. }) if index == outside)
            );
        }
        let list = QTensor::quantize(&floats(&[64]), GgmlDType::Q8_0).unwrap();
        assert!(matches!(list.matmul(&floats(&[1, 64])), Err(Error::Shape { .. })));
        assert!(matches!(list.embedding(&integers), Err(Error::Shape { .. })));
        let simulated = Device::sim(ndgc::SimConfig::default());
        let there = QTensor::quantize_onto(&floats(&[4, 64]), GgmlDType::Q8_0, &simulated).unwrap();
        assert!(matches!(there.matmul(&floats(&[1, 64])), Err(Error::DeviceMismatch { .. })));
    });
}

/// What a type of blocks does, beside arrays of them.
fn block_by_block<T: k_quants::GgmlType>(bytes: impl Fn(&[T]) -> Vec<u8>) {
    let (m, k, n) = (3, 512, 5);
    let (x, w) = (numbers(m * k, 1), numbers(n * k, 2));
    let weights = QTensor::quantize(&Tensor::from_slice(&w, (n, k), &Device::Cpu).unwrap(), T::DTYPE).unwrap();
    let mut blocks = vec![T::zeros(); n * k / T::BLCK_SIZE];
    T::from_float(&w, &mut blocks);
    assert_eq!(bytes(&blocks), weights.data().unwrap().to_vec(), "{}", T::DTYPE);
    let mut back = vec![0.0; n * k];
    T::to_float(&blocks, &mut back);
    assert_eq!(back, weights.dequantize(&Device::Cpu).unwrap().to_vec::<f32>().unwrap());

    let mut all = vec![f32::NAN; m * n + 1];
    k_quants::matmul((m, k, n), &x, &blocks, &mut all).unwrap();
    assert!(all[m * n].is_nan(), "what is not asked for stays");
    let mut other = vec![T::VecDotType::zeros(); k / T::VecDotType::BLCK_SIZE];
    for (i, (x, found)) in x.chunks(k).zip(all.chunks(n)).enumerate() {
        T::VecDotType::from_float(x, &mut other);
        let mut rounded = vec![0.0; k];
        T::VecDotType::to_float(&other, &mut rounded);
        for (j, found) in found.iter().enumerate().take(n) {
            let row = &blocks[j * k / T::BLCK_SIZE..(j + 1) * k / T::BLCK_SIZE];
            let want: f64 = rounded.iter().zip(&back[j * k..]).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
            for found in [*found, T::vec_dot(k, row, &other), T::vec_dot_unopt(k, row, &other)] {
                assert!((f64::from(found) - want).abs() < 1e-3, "{} {i} {j}: {found}, not {want}", T::DTYPE);
            }
        }
    }
    // The operation that candle has: the same for a row by itself.
    let input = Tensor::from_slice(&x, (m, k), &Device::Cpu).unwrap();
    let found = input.apply_op1_no_bwd(&weights).unwrap();
    for i in 0..m {
        let row = input.narrow(0, i, 1).unwrap().apply_op1_no_bwd(&weights).unwrap();
        assert!(row.content_equals(&found.narrow(0, i, 1).unwrap()).unwrap());
    }
    let near = found.sub(&weights.matmul(&input).unwrap()).unwrap().abs().unwrap().max_all().unwrap();
    assert!(near.to_scalar::<f32>().unwrap() < 0.1, "{near}");
}

#[test]
fn blocks_by_themselves_are_those_of_arrays() {
    alone(|| {
        block_by_block::<k_quants::BlockQ4_0>(|b| b.as_flattened().to_vec());
        block_by_block::<k_quants::BlockQ4_1>(|b| b.as_flattened().to_vec());
        block_by_block::<k_quants::BlockQ5_0>(|b| b.as_flattened().to_vec());
        block_by_block::<k_quants::BlockQ5_1>(|b| b.as_flattened().to_vec());
        block_by_block::<k_quants::BlockQ8_0>(|b| b.as_flattened().to_vec());
        block_by_block::<k_quants::BlockQ8_1>(|b| b.as_flattened().to_vec());
        block_by_block::<k_quants::BlockQ2K>(|b| b.as_flattened().to_vec());
        block_by_block::<k_quants::BlockQ3K>(|b| b.as_flattened().to_vec());
        block_by_block::<k_quants::BlockQ4K>(|b| b.as_flattened().to_vec());
        block_by_block::<k_quants::BlockQ5K>(|b| b.as_flattened().to_vec());
        block_by_block::<k_quants::BlockQ6K>(|b| b.as_flattened().to_vec());
        block_by_block::<k_quants::BlockQ8K>(|b| b.as_flattened().to_vec());
        block_by_block::<f32>(|b| b.iter().flat_map(|x| x.to_le_bytes()).collect());
        block_by_block::<f16>(|b| b.iter().flat_map(|x| x.to_le_bytes()).collect());
        block_by_block::<bf16>(|b| b.iter().flat_map(|x| x.to_le_bytes()).collect());
    });
}

#[test]
fn a_product_with_no_rows_of_weights_or_of_the_input_is_empty() {
    alone(|| {
        let of = |dims: (usize, usize)| Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
        for dtype in GgmlDType::ALL {
            for (m, n) in [(2, 0), (0, 2), (0, 0)] {
                let weights = QTensor::quantize(&of((n, 256)), dtype).unwrap();
                assert_eq!(weights.matmul(&of((m, 256))).unwrap().dims(), [m, n], "{dtype}");
                assert_eq!(of((m, 256)).apply_op1_no_bwd(&weights).unwrap().dims(), [m, n], "{dtype}");
            }
        }
    });
}

#[test]
#[should_panic(expected = "dst too small")]
fn a_product_of_blocks_does_not_write_beyond_the_end() {
    let _ = k_quants::matmul((2, 32, 4), &[1.0; 64], &[k_quants::BlockQ4_0::zeros(); 4], &mut [0.0; 4]);
}

#[test]
#[should_panic(expected = "rows of whole blocks: 63 numbers, 32 a block")]
fn a_product_of_rows_leaves_no_number_of_a_block_out() {
    use k_quants::{BlockQ4_0, BlockQ8_0};
    let _ = BlockQ4_0::vec_dot(63, &[BlockQ4_0::zeros(); 2], &[BlockQ8_0::zeros(); 2]);
}

#[test]
fn an_error_matters_by_the_importance_of_its_place() {
    use GgmlDType::{Q2K, Q3K, Q4K, Q5K, Q6K, Q8K};
    alone(|| {
        let (rows, k) = (64, 512);
        let w = numbers(rows * k, 7);
        let x = Tensor::from_slice(&w, (rows, k), &Device::Cpu).unwrap();
        let important: Vec<f32> = (0..k).map(|i| if i % 5 == 0 { 100.0 } else { 1.0 }).collect();
        for dtype in [Q2K, Q3K, Q4K, Q5K, Q6K] {
            let plain = QTensor::quantize(&x, dtype).unwrap();
            let weighed = QTensor::quantize_imatrix(&x, &important, dtype).unwrap();
            let onto = QTensor::quantize_imatrix_onto(&x, &important, dtype, &Device::Cpu).unwrap();
            assert_eq!(weighed.data().unwrap(), onto.data().unwrap());
            let error = |of: &QTensor| -> f64 {
                let all = of.dequantize(&Device::Cpu).unwrap().to_vec::<f32>().unwrap();
                let each = all.iter().zip(&w).zip(important.iter().cycle());
                each.map(|((a, b), w)| f64::from(w * (a - b) * (a - b))).sum()
            };
            let (plain, weighed) = (error(&plain), error(&weighed));
            assert!(weighed < plain, "{dtype}: {weighed} with importance, {plain} without");
            let zeros = QTensor::quantize_imatrix(&x.zeros_like().unwrap(), &important, dtype).unwrap();
            assert!(zeros.dequantize(&Device::Cpu).unwrap().to_vec::<f32>().unwrap().iter().all(|x| *x == 0.0));
            let unimportant = QTensor::quantize_imatrix(&x, &vec![0.0; k], dtype).unwrap();
            let all = unimportant.dequantize(&Device::Cpu).unwrap().to_vec::<f32>().unwrap();
            assert!(all.iter().all(|x| x.abs() < 2.0), "{dtype}");
        }
        let refused = QTensor::quantize_imatrix(&x, &important, Q8K);
        assert!(matches!(refused, Err(Error::Argument { argument: "dtype", .. })), "{refused:?}");
        let refused = QTensor::quantize_imatrix(&x, &important[1..], Q4K);
        assert!(matches!(refused, Err(Error::ElementCount { given: 511, .. })), "{refused:?}");
    });
}

#[test]
fn numbers_that_their_layout_is_not_of_are_refused() {
    alone(|| {
        let weights = Tensor::zeros((2, 32), DType::F32, &Device::Cpu).unwrap();
        let weights = QTensor::quantize(&weights, GgmlDType::Q8_0).unwrap();
        let layout = Layout::contiguous(Shape::from((3, 32)));
        for count in [0, 1, 95, 97, 128] {
            let error = weights.cpu_fwd(&CpuStorage::F32(vec![0.; count]), &layout).unwrap_err();
            assert!(matches!(error, Error::ElementCount { .. }), "{count}: {error}");
        }
        assert_eq!(weights.cpu_fwd(&CpuStorage::F32(vec![0.; 96]), &layout).unwrap().1.dims(), [3, 2]);
    });
}
