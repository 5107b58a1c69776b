//! GGUF and its predecessors: round trips, what is refused and how that is said, mapped files.

use std::io::Cursor;

use ndgc::quantized::ggml_file;
use ndgc::quantized::gguf_file::{self, Content, MmapedContent, Value, VersionedMagic};
use ndgc::quantized::{GgmlDType, QMatMul, QTensor};
use ndgc::{DType, Device, Error, NdManager, Tensor, Workspace, WorkspaceConfig, gc};

use crate::common::{alone, each_case};
use crate::files::fixtures::{GGML, GGUF};
use crate::files::support::{Folder, why};

fn weights(rows: usize, dtype: GgmlDType) -> QTensor {
    let x = Tensor::arange(0f32, (rows * 256) as f32, &Device::Cpu).unwrap().reshape((rows, 256)).unwrap();
    QTensor::quantize(&x, dtype).unwrap()
}

fn read(bytes: &[u8]) -> ndgc::Result<Content> {
    Content::read(&mut Cursor::new(bytes))
}

#[test]
fn what_is_written_is_read() {
    each_case(&[false, true], |device| {
        let all: Vec<(String, QTensor)> =
            GgmlDType::ALL.iter().map(|&dtype| (format!("blk.{dtype}"), weights(2, dtype))).collect();
        let nested = Value::Array(vec![Value::Array(vec![Value::U8(1)]), Value::Array(vec![])]);
        let values = [
            ("u8", Value::U8(200)),
            ("i8", Value::I8(-3)),
            ("u16", Value::U16(60_000)),
            ("i16", Value::I16(-300)),
            ("u32", Value::U32(4_000_000_000)),
            ("i32", Value::I32(-70_000)),
            ("u64", Value::U64(1 << 40)),
            ("i64", Value::I64(-(1 << 40))),
            ("f32", Value::F32(0.5)),
            ("f64", Value::F64(0.1)),
            ("bool", Value::Bool(true)),
            ("text", Value::String("größer".into())),
            ("list", Value::Array(vec![Value::String("a".into()), Value::String(String::new())])),
            ("nested", nested),
        ];
        let metadata: Vec<(&str, &Value)> = values.iter().map(|(name, value)| (*name, value)).collect();
        let tensors: Vec<(&str, &QTensor)> = all.iter().map(|(name, tensor)| (&name[..], tensor)).collect();
        let mut file = Cursor::new(Vec::new());
        gguf_file::write(&mut file, &metadata, &tensors).unwrap();
        file.set_position(0);
        let content = Content::read(&mut file).unwrap();
        assert_eq!(content.magic, VersionedMagic::GgufV2);
        assert_eq!((content.metadata.len(), content.tensor_infos.len()), (values.len(), all.len()));
        for (name, value) in &values {
            // An empty array is one of any type.
            assert_eq!(&content.metadata[*name], value);
        }
        assert_eq!(content.metadata["u8"].to_u64().unwrap(), 200);
        assert_eq!(content.metadata["text"].to_string().unwrap(), "größer");
        assert_eq!(content.metadata["list"].to_vec().unwrap().len(), 2);
        assert!(content.metadata["i8"].to_u8().is_err() && content.metadata["i8"].to_u64().is_err());
        for (name, tensor) in &all {
            let found = content.tensor(&mut file, name, device).unwrap();
            assert_eq!((found.dtype(), found.shape()), (tensor.dtype(), tensor.shape()));
            assert_eq!(found.device(), *device);
            assert_eq!(found.data().unwrap(), tensor.data().unwrap());
        }
        let missing = content.tensor(&mut file, "blk.Q9", device);
        assert!(matches!(missing, Err(Error::CannotFindTensor { path, .. }) if path == "blk.Q9"));
    });
}

#[test]
fn a_file_written_by_hand_is_read() {
    alone(|| {
        let mut file = Cursor::new(GGUF);
        let content = Content::read(&mut file).unwrap();
        assert_eq!(content.magic, VersionedMagic::GgufV3);
        assert_eq!(content.metadata["general.name"].to_string().unwrap(), "hand");
        assert_eq!(content.tensor_data_offset % 32, 0);
        let w = content.tensor(&mut file, "w", &Device::Cpu).unwrap();
        assert_eq!(w.shape().dims(), [1, 32]);
        // The scale is 0.5, and each nibble 9.
        assert_eq!(w.dequantize(&Device::Cpu).unwrap().to_vec::<f32>().unwrap(), [0.5; 32]);
        let b = content.tensor(&mut file, "b", &Device::Cpu).unwrap();
        let want: Vec<f32> = (0..8).map(|i| i as f32).collect();
        assert_eq!(b.dequantize(&Device::Cpu).unwrap().to_vec::<f32>().unwrap(), want);
        assert_eq!(b.shape().dims(), [2, 4]);
    });
}

#[test]
fn an_alignment_that_the_file_names_holds_for_both_sides() {
    alone(|| {
        let (a, b) = (weights(1, GgmlDType::Q4_0), weights(2, GgmlDType::Q6K));
        let alignment = Value::U32(256);
        let mut file = Cursor::new(Vec::new());
        gguf_file::write(&mut file, &[("general.alignment", &alignment)], &[("a", &a), ("b", &b)]).unwrap();
        let content = read(file.get_ref()).unwrap();
        assert_eq!((content.tensor_data_offset % 256, content.tensor_infos["b"].offset % 256), (0, 0));
        let found = content.tensor(&mut file, "b", &Device::Cpu).unwrap();
        assert_eq!(found.data().unwrap(), b.data().unwrap());
        for wrong in [Value::U32(0), Value::I32(-32), Value::String("32".into())] {
            let written = gguf_file::write(&mut Cursor::new(Vec::new()), &[("general.alignment", &wrong)], &[]);
            assert!(why(written).contains("general.alignment is no power of two"));
        }
    });
}

/// A header with these counts.
fn header(tensors: u64, values: u64) -> Vec<u8> {
    [&b"GGUF"[..], &3u32.to_le_bytes(), &tensors.to_le_bytes(), &values.to_le_bytes()].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn what_is_wrong_in_a_header_is_named_with_its_place() {
    let refused = |bytes: Vec<u8>, at: usize, words: &str| {
        let text = why(read(&bytes));
        assert!(text.contains(&format!("at byte {at}: ")) && text.contains(words), "{text}");
    };
    let value = |kind: u32, rest: &[u8]| [header(0, 1), text("k"), kind.to_le_bytes().into(), rest.to_vec()].concat();
    let tensor = |rest: &[u8]| [header(1, 0), text("t"), rest.to_vec(), vec![0; 64]].concat();
    alone(|| {
        refused(b"GGML\0\0\0\0".to_vec(), 0, "no GGUF file");
        refused([&b"GGUF"[..], &9u32.to_le_bytes()].concat(), 4, "version 9");
        refused(header(1 << 40, 0), 8, "tensor_count 1099511627776 takes");
        refused(header(0, u64::MAX), 16, "metadata_kv_count");
        refused([header(0, 1), vec![0xFF; 40]].concat(), 24, "the name of a value: string length");
        refused(value(13, &[0; 8]), 33, "value `k`: there is no value type 13");
        refused(value(7, &[2]), 37, "value `k`: 2 is no truth value");
        let long = [&0u32.to_le_bytes()[..], &(1u64 << 40).to_le_bytes()].concat();
        refused(value(9, &long), 41, "value `k`: array length");
        let nested = [9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0].repeat(70);
        refused(value(9, &nested), 37 + 64 * 12, "nesting depth");
        refused(
            [header(0, 2), text("k"), vec![0, 0, 0, 0, 1], text("k"), vec![0, 0, 0, 0, 1]].concat(),
            38,
            "comes twice",
        );
        refused(tensor(&5u32.to_le_bytes()), 33, "tensor `t`: 5 dimensions");
        let kind = [&1u32.to_le_bytes()[..], &32u64.to_le_bytes(), &4u32.to_le_bytes()].concat();
        refused(tensor(&kind), 45, "tensor `t`: blocks of type 4");
    });
}

#[test]
fn data_that_are_not_there_are_an_error_when_they_are_read() {
    let tensor = |dims: &[u64], kind: u32, offset: u64| {
        let dims: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        let rank = (dims.len() as u32 / 8).to_le_bytes();
        [header(1, 0), text("t"), rank.into(), dims, kind.to_le_bytes().into(), offset.to_le_bytes().into()].concat()
    };
    alone(|| {
        let refused = |bytes: Vec<u8>, words: &str| {
            let content = read(&bytes).unwrap();
            let found = why(content.tensor(&mut Cursor::new(&bytes), "t", &Device::Cpu));
            assert!(found.contains("tensor `t`") && found.contains("at byte ") && found.contains(words), "{found}");
        };
        refused(tensor(&[1 << 30], 0, 0), "take 4294967296 bytes, and 0 are remaining");
        refused(tensor(&[32], 2, u64::MAX), "0 are remaining");
        refused(tensor(&[u64::MAX, u64::MAX, 32], 2, 0), "tensor `t`");
        refused(tensor(&[31], 2, 0), "32 divides");
        refused(tensor(&[], 2, 0), "at least one axis");
    });
}

#[test]
fn mapped_blocks_are_the_files_own_bytes_as_long_as_one_of_them_lives() {
    alone(|| {
        let folder = Folder::new();
        let path = folder.file("model.gguf");
        let w = weights(64, GgmlDType::Q4K);
        gguf_file::write(&mut std::fs::File::create(&path).unwrap(), &[], &[("w", &w)]).unwrap();
        let before = Device::Cpu.memory().active;
        // SAFETY: nobody changes the file.
        #[allow(unsafe_code)]
        let mapped = unsafe { MmapedContent::new(&path) }.unwrap();
        assert_eq!(mapped.content().tensor_infos.len(), 1);
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let found = mapped.tensor("w", &manager).unwrap();
        assert_eq!((manager.array_count(), Device::Cpu.memory().active), (1, before));
        assert!(matches!(found.blocks().zero_(), Err(Error::ReadOnly { .. })));
        drop(mapped);
        let x = Tensor::ones((2, 256), DType::F32, &Device::Cpu).unwrap();
        let got = QMatMul::from_qtensor(found).unwrap().forward(&x).unwrap();
        assert_eq!(got.to_vec::<f32>().unwrap(), w.matmul(&x).unwrap().to_vec::<f32>().unwrap());
        // An error names the file.
        std::fs::write(&path, &GGUF[..60]).unwrap();
        // SAFETY: nobody changes the file while it is mapped.
        #[allow(unsafe_code)]
        let text = why(unsafe { MmapedContent::new(&path) });
        assert!(text.contains("model.gguf: at byte "), "{text}");
    });
}

#[test]
fn mapped_blocks_stay_when_a_cycle_ends_in_which_they_were_read() {
    // Broken by: the copy that another device than the host gets, as an array of the cycle.
    each_case(&[false], |device| {
        let folder = Folder::new();
        let path = folder.file("model.gguf");
        let w = weights(2, GgmlDType::Q8_0);
        gguf_file::write(&mut std::fs::File::create(&path).unwrap(), &[], &[("w", &w)]).unwrap();
        // SAFETY: nobody changes the file.
        #[allow(unsafe_code)]
        let mapped = unsafe { MmapedContent::new(&path) }.unwrap();
        let name = format!("LOOP on {device}");
        let cycle = Workspace::enter_on(device, &name, &WorkspaceConfig::default()).unwrap();
        let found = mapped.tensor("w", device).unwrap();
        assert!(!found.blocks().is_attached());
        cycle.leave();
        assert_eq!(found.data().unwrap(), w.data().unwrap());
    });
}

#[test]
fn what_came_before_gguf_is_read() {
    each_case(&[false], |device| {
        let mut content = ggml_file::Content::read(&mut Cursor::new(GGML), device).unwrap();
        assert_eq!(content.magic, ggml_file::VersionedMagic::GgjtV3);
        assert_eq!((content.hparams.n_vocab, content.hparams.ftype), (2, 2));
        assert_eq!(content.vocab.token_score_pairs, [(b"a".to_vec(), 0.5), (b"bc".to_vec(), -1.0)]);
        assert_eq!(content.device, *device);
        let w = content.remove("w").unwrap();
        assert_eq!((w.shape().dims(), w.dtype()), (&[1, 32][..], GgmlDType::Q4_0));
        assert_eq!(w.dequantize(device).unwrap().to_vec::<f32>().unwrap(), [0.5; 32]);
        assert!(matches!(content.remove("w"), Err(Error::CannotFindTensor { .. })));
    });
}

#[test]
fn a_file_of_the_older_kind_that_fails_leaves_nothing_with_its_manager() {
    alone(|| {
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        // The same tensor twice: what is said of it, up to a multiple of 32, its blocks.
        let twice = [GGML, &GGML[55..76], &[0; 25], &GGML[96..]].concat();
        let found = why(ggml_file::Content::read(&mut Cursor::new(&twice), &manager));
        assert!(found.contains("at byte 114: a tensor of this name came before"), "{found}");
        gc::collect();
        assert_eq!(manager.array_count(), 0);
    });
}
