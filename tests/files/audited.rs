//! What an audit of files found: sizes and names that cannot be read again, or that no memory has room for.

use std::fs;
use std::io::Cursor;

use ndgc::quantized::{GgmlDType, QMatMul, QTensor, ggml_file, gguf_file};
use ndgc::{DType, Device, Error, NdManager, Tensor, npz, safetensors};

use crate::common::alone;
use crate::files::support::Folder;

fn ones(dims: &[usize]) -> Tensor {
    Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap()
}

fn why<T>(result: ndgc::Result<T>) -> String {
    match result.map(drop) {
        Err(error) => error.to_string(),
        Ok(()) => panic!("it was taken"),
    }
}

#[test]
fn arrays_without_elements_are_printed_and_read_whatever_their_other_axes() {
    alone(|| {
        let long = Tensor::zeros((1usize << 40, 0), DType::F32, &Device::Cpu).unwrap();
        assert!(format!("{long}").len() < 1000);
        assert!(matches!(long.to_vec2::<f32>(), Err(Error::OutOfMemory(_))));
        let deep = Tensor::zeros((1usize << 40, 1, 0), DType::F32, &Device::Cpu).unwrap();
        assert!(format!("{deep}").len() < 1000);
        assert!(matches!(deep.to_vec3::<f32>(), Err(Error::OutOfMemory(_))));
        assert_eq!(Tensor::zeros((2, 0), DType::F32, &Device::Cpu).unwrap().to_vec2::<f32>().unwrap().len(), 2);
    });
}

#[test]
fn an_alignment_of_gguf_is_a_power_of_two_that_memory_has() {
    alone(|| {
        let blocks = QTensor::quantize(&ones(&[1, 32]), GgmlDType::Q4_0).unwrap();
        for bytes in [1u64 << 40, 1 << 62, u64::MAX, 48] {
            let value = gguf_file::Value::U64(bytes);
            let mut to = Cursor::new(Vec::new());
            let tensors = [("a", &blocks), ("b", &blocks)];
            let text = why(gguf_file::write(&mut to, &[("general.alignment", &value)], &tensors));
            assert!(text.contains("no power of two"), "{text}");
            assert!(to.into_inner().is_empty());
        }
        let value = gguf_file::Value::U64(64);
        gguf_file::write(&mut Cursor::new(Vec::new()), &[("general.alignment", &value)], &[]).unwrap();
    });
}

#[test]
fn what_gguf_could_not_read_again_is_not_written() {
    alone(|| {
        let (blocks, value) = (QTensor::quantize(&ones(&[32]), GgmlDType::Q4_0).unwrap(), gguf_file::Value::U8(1));
        let five = QTensor::quantize(&ones(&[1, 1, 1, 1, 32]), GgmlDType::Q4_0).unwrap();
        let nested = |depth: usize| (0..depth).fold(value.clone(), |all, _| gguf_file::Value::Array(vec![all]));
        let (deepest, deeper) = (nested(64), nested(65));
        let write = |metadata: &[(&str, &gguf_file::Value)], tensors: &[(&str, &QTensor)]| {
            let mut to = Cursor::new(Vec::new());
            gguf_file::write(&mut to, metadata, tensors)?;
            to.set_position(0);
            gguf_file::Content::read(&mut to).map(drop)
        };
        assert!(why(write(&[("a", &value), ("a", &value)], &[])).contains("value `a` comes twice"));
        assert!(why(write(&[], &[("a", &blocks), ("a", &blocks)])).contains("tensor `a` comes twice"));
        assert!(why(write(&[], &[("a\0", &blocks)])).contains("ends with a zero"));
        assert!(why(write(&[], &[("a", &five)])).contains("more than 4 dimensions"));
        assert!(why(write(&[("a", &deeper)], &[])).contains("nesting depth"));
        write(&[("a", &deepest)], &[("a", &blocks)]).unwrap();
    });
}

#[test]
fn old_files_of_blocks_that_lay_otherwise_are_refused_and_old_words_have_no_scores() {
    alone(|| {
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let file = |magic: &[u8; 4], version: Option<u32>, scores: bool, kind: u32, bytes: usize| {
            let mut all = magic.iter().rev().copied().collect::<Vec<u8>>();
            all.extend(version.into_iter().flat_map(u32::to_le_bytes));
            [1u32, 0, 0, 0, 0, 0, 0].into_iter().for_each(|number| all.extend(number.to_le_bytes()));
            all.extend(2u32.to_le_bytes());
            all.extend(b"ab");
            all.extend(scores.then_some(1.5f32).into_iter().flat_map(f32::to_le_bytes));
            [1u32, 1, kind, 32].into_iter().for_each(|number| all.extend(number.to_le_bytes()));
            all.push(b'x');
            if version.is_some_and(|_| magic == b"ggjt") {
                all.resize(all.len().next_multiple_of(32), 0);
            }
            all.resize(all.len() + bytes, 0);
            ggml_file::Content::read(&mut Cursor::new(all), &manager)
        };
        let unversioned = file(b"ggml", None, false, 0, 128).unwrap();
        assert_eq!(unversioned.vocab.token_score_pairs, [(b"ab".to_vec(), 0.)]);
        assert_eq!(unversioned.tensors["x"].blocks().manager().unwrap().uuid(), manager.uuid());
        assert_eq!(file(b"ggmf", Some(1), true, 0, 128).unwrap().vocab.token_score_pairs, [(b"ab".to_vec(), 1.5)]);
        // Q4_0, Q5_0 of the first two versions, and of the third one.
        assert!(why(file(b"ggjt", Some(1), true, 2, 18)).contains("lay otherwise"));
        assert!(why(file(b"ggjt", Some(2), true, 2, 18)).contains("lay otherwise"));
        assert!(why(file(b"ggjt", Some(1), true, 6, 22)).contains("lay otherwise"));
        file(b"ggjt", Some(2), true, 6, 22).unwrap();
        file(b"ggjt", Some(3), true, 2, 18).unwrap();
    });
}

#[test]
fn blocks_that_were_exchanged_are_an_error() {
    alone(|| {
        let weights = ones(&[2, 32]);
        let blocks = QTensor::quantize(&weights, GgmlDType::Q8_0).unwrap();
        let ids = Tensor::new([0u32], &Device::Cpu).unwrap();
        assert!(matches!(blocks.embedding(&ones(&[1])), Err(Error::UnsupportedDType { .. })));
        blocks.blocks().intern(Tensor::zeros(5, DType::U8, &Device::Cpu).unwrap()).unwrap();
        assert!(matches!(blocks.dequantize(&Device::Cpu), Err(Error::ElementCount { .. })));
        assert!(matches!(blocks.embedding(&ids), Err(Error::ElementCount { .. })));
        let product = QMatMul::from_qtensor(blocks).unwrap();
        assert!(matches!(product.forward(&ones(&[1, 32])), Err(Error::ElementCount { .. })));
        let scalar = QMatMul::Tensor(Tensor::new(1f32, &Device::Cpu).unwrap());
        assert!(scalar.embedding(&ids).is_err());
    });
}

#[test]
fn names_that_safetensors_could_not_read_again_are_not_written() {
    if crate::common::ran_apart() {
        return;
    }
    alone(|| {
        let path = std::env::temp_dir().join(format!("ndgc-audited-{}.safetensors", std::process::id()));
        fs::write(&path, b"before").unwrap();
        let array = ones(&[1]);
        let huge = "n".repeat(100_000_001);
        assert!(why(array.save_safetensors(&huge, &path)).contains("a header of"));
        assert_eq!(fs::read(&path).unwrap(), b"before");
        let all = std::collections::HashMap::from([(Text("a", 1), array.clone()), (Text("a", 2), array)]);
        assert!(why(safetensors::save(&all, &path)).contains("two arrays have the name `a`"));
        assert_eq!(fs::read(&path).unwrap(), b"before");
        fs::remove_file(&path).unwrap();
    });
}

/// Keys that differ, and have one text.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Text(&'static str, u32);

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        self.0
    }
}

#[cfg(unix)]
#[test]
fn pipes_are_refused_at_once_and_links_and_long_names_are_written() {
    alone(|| {
        let folder = std::env::temp_dir().join(format!("ndgc-audited-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if made.is_ok_and(|status| status.success()) {
            let (said, heard) = std::sync::mpsc::channel();
            let there = pipe.clone();
            std::thread::spawn(move || said.send(why(ndgc::npy::read(&there, &Device::Cpu))));
            let text = heard.recv_timeout(std::time::Duration::from_secs(20)).expect("no wait for a writer");
            assert!(text.contains("not a regular file"), "{text}");
        }
        let (link, target) = (folder.join("link"), folder.join("target.npy"));
        std::os::unix::fs::symlink("target.npy", &link).unwrap();
        ndgc::npy::write(&ones(&[2]), &link).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::metadata(&target).unwrap().is_file());
        // A link to a link that leads to no file yet.
        fs::remove_file(&target).unwrap();
        let first = folder.join("first");
        std::os::unix::fs::symlink("link", &first).unwrap();
        ndgc::npy::write(&ones(&[2]), &first).unwrap();
        for link in [&first, &link] {
            assert!(fs::symlink_metadata(link).unwrap().is_symlink(), "{}", link.display());
        }
        assert!(fs::symlink_metadata(&target).unwrap().is_file());
        // Links that lead to nothing but each other.
        let (here, there) = (folder.join("here"), folder.join("there"));
        std::os::unix::fs::symlink("there", &here).unwrap();
        std::os::unix::fs::symlink("here", &there).unwrap();
        let text = why(ndgc::npy::write(&ones(&[2]), &here));
        assert!(text.contains("a link to itself"), "{text}");
        assert!(here.is_symlink() && there.is_symlink());
        let long = folder.join("n".repeat(250));
        ndgc::npy::write(&ones(&[2]), &long).unwrap();
        assert_eq!(ndgc::npy::read(&long, &Device::Cpu).unwrap().dims(), [2]);
        fs::remove_dir_all(&folder).unwrap();
    });
}

#[test]
fn names_of_a_file_move_no_cursor() {
    // Broken by: a name as it is in the file, in the text of an error.
    alone(|| {
        let name = "a\n\u{1b}[2Jb";
        let bytes = npz::encode(&[(name, &ones(&[2]))]).unwrap();
        let changed = |at: usize, to: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = to;
            why(npz::decode(&bytes, &Device::Cpu))
        };
        let central = bytes.windows(4).position(|part| part == b"PK\x01\x02").unwrap();
        // The head of the entry, its place, and its numbers.
        for text in [changed(0, b'p'), changed(central + 45, 0x7f), changed(central - 1, 1)] {
            assert!(text.contains("`a\\n\\u{1b}[2Jb") && !text.contains(['\n', '\u{1b}']), "{text:?}");
        }
    });
}

/// As one that is written anew where it is: another process cuts it short, and then writes the rest.
#[test]
fn an_array_of_a_file_that_was_short_for_a_moment_is_read_from_its_beginning() {
    alone(|| {
        let folder = Folder::new();
        let path = folder.file("model.safetensors");
        let of = |first: f32| Tensor::arange(first, first + 10_000., &Device::Cpu).unwrap();
        let arrays = std::collections::HashMap::from([("a", of(0.)), ("b", of(100.))]);
        safetensors::save(&arrays, &path).unwrap();
        let bytes = fs::read(&path).unwrap();
        let file = safetensors::SafeTensorsFile::new(&path).unwrap();
        // The header, and half of `a`: more than is read ahead.
        fs::write(&path, &bytes[..bytes.len() - 60_000]).unwrap();
        assert!(why(file.load("a", &Device::Cpu)).contains("cannot be read"));
        fs::write(&path, &bytes).unwrap();
        for name in ["a", "b", "a"] {
            let (found, wanted) = (file.load(name, &Device::Cpu).unwrap(), &arrays[name]);
            assert_eq!(found.to_vec1::<f32>().unwrap(), wanted.to_vec1::<f32>().unwrap(), "{name}");
        }
    });
}
