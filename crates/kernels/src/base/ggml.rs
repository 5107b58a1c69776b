//! The formats that GGUF and GGML files store numbers in: blocks of small integers that share their scales.

use std::fmt;

/// How the numbers of a [`QTensor`](https://docs.rs/ndgc) are stored: as floats, or in blocks of 32 or 256 along the
/// last axis, each with scales of its own. The digit is the bits of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the formats' own names
pub enum GgmlDType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of a single.
    BF16,
    /// 32 numbers of 4 bits about 0.
    Q4_0,
    /// 32 numbers of 4 bits above their least one.
    Q4_1,
    /// 32 numbers of 5 bits about 0.
    Q5_0,
    /// 32 numbers of 5 bits above their least one.
    Q5_1,
    /// 32 numbers of 8 bits about 0.
    Q8_0,
    /// As `Q8_0`, with their sum.
    Q8_1,
    /// 256 numbers of 2 bits, 16 of them with a scale and a least number of 4 bits each.
    Q2K,
    /// 256 numbers of 3 bits about 0, 16 of them with a scale of 6 bits.
    Q3K,
    /// 256 numbers of 4 bits, 32 of them with a scale and a least number of 6 bits each.
    Q4K,
    /// 256 numbers of 5 bits, 32 of them with a scale and a least number of 6 bits each.
    Q5K,
    /// 256 numbers of 6 bits about 0, 16 of them with a scale of 8 bits.
    Q6K,
    /// 256 numbers of 8 bits about 0, with the sums of each 16.
    Q8K,
}

/// Format, number in files, numbers of a block, bytes of a block.
const FACTS: [(GgmlDType, u32, usize, usize); 15] = [
    (GgmlDType::F32, 0, 1, 4),
    (GgmlDType::F16, 1, 1, 2),
    (GgmlDType::BF16, 30, 1, 2),
    (GgmlDType::Q4_0, 2, 32, 18),
    (GgmlDType::Q4_1, 3, 32, 20),
    (GgmlDType::Q5_0, 6, 32, 22),
    (GgmlDType::Q5_1, 7, 32, 24),
    (GgmlDType::Q8_0, 8, 32, 34),
    (GgmlDType::Q8_1, 9, 32, 36),
    (GgmlDType::Q2K, 10, 256, 84),
    (GgmlDType::Q3K, 11, 256, 110),
    (GgmlDType::Q4K, 12, 256, 144),
    (GgmlDType::Q5K, 13, 256, 176),
    (GgmlDType::Q6K, 14, 256, 210),
    (GgmlDType::Q8K, 15, 256, 292),
];

impl GgmlDType {
    /// Every format.
    pub const ALL: [GgmlDType; 15] = {
        let mut all = [GgmlDType::F32; 15];
        let mut i = 0;
        while i < all.len() {
            all[i] = FACTS[i].0;
            assert!(FACTS[i].0 as usize == i, "the facts stand in the order of the enum");
            i += 1;
        }
        all
    };

    /// The format that has this number in files; none for a number that is not in use, or not known here.
    pub fn from_u32(number: u32) -> Option<Self> {
        FACTS.iter().find(|fact| fact.1 == number).map(|fact| fact.0)
    }

    /// Its number in files.
    pub const fn to_u32(self) -> u32 {
        FACTS[self as usize].1
    }

    /// Bytes of a block.
    pub const fn type_size(&self) -> usize {
        FACTS[*self as usize].3
    }

    /// Numbers of a block: 1 for floats, else 32 or 256.
    pub const fn block_size(&self) -> usize {
        FACTS[*self as usize].2
    }
}

impl fmt::Display for GgmlDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
