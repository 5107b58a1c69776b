//! Every truncation of small files, and random changes of them: each reader gives arrays or [`Error::File`], and never
//! takes much more memory than the file has bytes, or can unpack to.
//!
//! The changes come from a fixed seed, so a failure repeats.

use ndgc::{Device, Result, gc, safetensors};

use crate::common::alone;
use crate::counting::peak;
use crate::files::fixtures::*;
use crate::files::pickles::{CHECKPOINT, MODEL};
use crate::files::read::{self, Read};

const CHANGES: usize = 20_000;
const PEAK_BYTES_MAX: usize = 64 << 20;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// One change: a byte, a bit, a run of bytes, or bytes that come in or go.
fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    let run = (random.below(8) + 1).min(bytes.len() - at);
    let byte = random.next() as u8;
    let extreme = [0, 1, 0x7F, 0x80, 0xFF][random.below(5)];
    match random.below(6) {
        _ if bytes.is_empty() => bytes.push(byte),
        0 => bytes[at] = byte,
        1 => bytes[at] ^= 1 << (byte % 8),
        2 => bytes[at..at + run].fill(extreme),
        3 => drop(bytes.drain(at..at + run)),
        4 => bytes.splice(at..at, std::iter::repeat_n(byte, run)).for_each(drop),
        _ => {
            let from = random.below(bytes.len() - run + 1);
            bytes.copy_within(from..from + run, at);
        }
    }
}

/// Runs a reader over all of that.
fn attack(files: &[&[u8]], read: Read) {
    alone(|| {
        let before = Device::Cpu.memory().active;
        let most = peak(|| {
            let attempt = |bytes: &[u8]| read::check(read, bytes);
            for file in files {
                assert!(attempt(file), "the file itself is read");
                for length in 0..file.len() {
                    assert!(!attempt(&file[..length]), "{length} bytes of {} are enough", file.len());
                }
            }
            let mut random = Random(20_251_121);
            for round in 0..CHANGES {
                let mut bytes = files[round % files.len()].to_vec();
                for _ in 0..random.below(4) + 1 {
                    change(&mut bytes, &mut random);
                }
                attempt(&bytes);
            }
        });
        assert!(most < PEAK_BYTES_MAX, "{most} bytes were live at a time");
        gc::collect();
        assert_eq!(Device::Cpu.memory().active, before);
    });
}

#[test]
fn npy_survives() {
    let files = [NPY_F32, NPY_SCALAR, NPY_BOOL, NPY_FORTRAN_3, NPY_BIG_ENDIAN, NPY_VERSION_2, NPY_VERSION_3];
    attack(&files, read::npy);
}

#[test]
fn npz_survives() {
    attack(&[NPZ_STORED, NPZ_DEFLATED], read::npz);
}

#[test]
fn safetensors_survives() {
    attack(&[SAFETENSORS], read::safetensors);
    // What it cannot hold as a dtype of ours, it still names.
    attack(&[SAFETENSORS, SAFETENSORS_OTHERS], |bytes: &[u8]| -> Result<()> {
        let file = safetensors::SliceSafetensors::new(bytes)?;
        for (name, _) in file.tensors() {
            let _ = file.load(&name, &Device::Cpu);
        }
        Ok(())
    });
}

#[test]
fn ndar_survives() {
    let files = [NDAR_1, NDAR_2, NDAR_3, NDAR_BIG_ENDIAN, NDAR_BOOL];
    attack(&files, read::ndar);
}

#[test]
fn lists_survive() {
    attack(&[ND_LIST], read::ndlist);
}

#[test]
fn pickles_survive() {
    attack(&[CHECKPOINT, MODEL], read::pickle);
}

#[test]
fn gguf_survives() {
    attack(&[GGUF], read::gguf);
}

#[test]
fn ggml_survives() {
    attack(&[GGML], read::ggml);
}
