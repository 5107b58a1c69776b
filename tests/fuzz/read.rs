//! What the fuzz targets and `tests/files/hostile.rs` do with bytes: each reader gives arrays, or [`Error::File`].
#![allow(dead_code)] // each program uses a part

use ndgc::{Device, Error, Result};

/// A reader.
pub(crate) type Read = fn(&[u8]) -> Result<()>;

pub(crate) fn npy(bytes: &[u8]) -> Result<()> {
    ndgc::npy::decode(bytes, &Device::Cpu).map(drop)
}

pub(crate) fn npz(bytes: &[u8]) -> Result<()> {
    ndgc::npz::decode(bytes, &Device::Cpu).map(drop)
}

/// All at once, and one by one through an index.
pub(crate) fn safetensors(bytes: &[u8]) -> Result<()> {
    let all = ndgc::safetensors::load_buffer(bytes, &Device::Cpu).map(drop);
    if let Ok(file) = ndgc::safetensors::SliceSafetensors::new(bytes) {
        for (name, _) in file.tensors() {
            let _ = file.load(&name, &Device::Cpu);
        }
    }
    all
}

pub(crate) fn ndar(bytes: &[u8]) -> Result<()> {
    ndgc::ndar::decode(bytes, &Device::Cpu).map(drop)
}

pub(crate) fn ndlist(bytes: &[u8]) -> Result<()> {
    ndgc::ndar::decode_list(bytes, &Device::Cpu).map(drop)
}

pub(crate) fn pickle(bytes: &[u8]) -> Result<()> {
    ndgc::pickle::decode(bytes, None, &Device::Cpu).map(drop)
}

/// The header, and every tensor of it.
pub(crate) fn gguf(bytes: &[u8]) -> Result<()> {
    let mut file = std::io::Cursor::new(bytes);
    let content = ndgc::quantized::gguf_file::Content::read(&mut file)?;
    let read = |name| content.tensor(&mut file.clone(), name, &Device::Cpu).map(drop);
    content.tensor_infos.keys().try_for_each(|name| read(name))
}

pub(crate) fn ggml(bytes: &[u8]) -> Result<()> {
    let content = ndgc::quantized::ggml_file::Content::read(&mut std::io::Cursor::new(bytes), &Device::Cpu)?;
    // A file may end before its first tensor.
    let why = "has no tensor".to_owned();
    if content.tensors.is_empty() { Err(Error::file(None, None, why)) } else { Ok(()) }
}

/// Whether the bytes are a file; any error but one about a file is a failure.
pub(crate) fn check(read: Read, bytes: &[u8]) -> bool {
    match read(bytes) {
        Ok(()) => true,
        Err(Error::File { .. }) => false,
        Err(error) => panic!("not an error about a file: {error}: {}", bytes.escape_ascii()),
    }
}
