//! GGML, GGMF and GGJT: what came before GGUF. Numbers of one kind of model, a vocabulary, tensors with their names.
//!
//! As with [`gguf_file`](super::gguf_file), sizes are compared with the bytes that are there before memory is taken.

use std::collections::HashMap;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::panic::Location;

use super::gguf_file::unreadable;
use super::tensor::{QTensor, bytes_of};
use crate::base::{
    call::Call,
    error::{Error, Result},
    ggml::GgmlDType,
    shape::Shape,
};
use crate::device::Device;
use crate::io::input::Input;
use crate::memory::proxy::Proxy;
use crate::ops::call::{
    compose::composite_at,
    exec::{kept, once},
    place::Place,
};

const DIMS_MAX: u32 = 4;
/// Data of tensors begin at multiples of it, from GGJT on.
const ALIGNMENT: u64 = 32;

/// The kind and version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionedMagic {
    /// GGML.
    GgmlUnversioned,
    /// GGMF 1.
    GgmfV1,
    /// GGJT 1.
    GgjtV1,
    /// GGJT 2.
    GgjtV2,
    /// GGJT 3.
    GgjtV3,
}

/// The model's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the model's own words
pub struct HParams {
    pub n_vocab: u32,
    pub n_embd: u32,
    pub n_mult: u32,
    pub n_head: u32,
    pub n_layer: u32,
    pub n_rot: u32,
    pub ftype: u32,
}

/// The tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Vocab {
    /// Bytes and score of each.
    pub token_score_pairs: Vec<(Vec<u8>, f32)>,
}

/// A file.
#[derive(Debug)]
pub struct Content {
    /// Its kind.
    pub magic: VersionedMagic,
    /// The model's numbers.
    pub hparams: HParams,
    /// The tokens.
    pub vocab: Vocab,
    /// Tensors by name.
    pub tensors: HashMap<String, QTensor>,
    /// Where they are.
    pub device: Device,
}

impl Content {
    /// Reads a whole file, from its start, whose tensors are put at a place.
    ///
    /// # Errors
    /// [`Error::File`]; as [`Proxy::zeros`].
    #[track_caller]
    pub fn read<R: Read + Seek, P: Place + ?Sized>(reader: &mut R, at: &P) -> Result<Content> {
        let site = Location::caller();
        let unreadable = unreadable(site);
        let end = reader.seek(SeekFrom::End(0)).map_err(&unreadable)?;
        reader.seek(SeekFrom::Start(0)).map_err(&unreadable)?;
        let mut input = Input::new(BufReader::new(reader), None, end);
        let magic = magic(&mut input)?;
        let hparams = hparams(&mut input)?;
        let vocab = vocab(&mut input, hparams.n_vocab, magic)?;
        let device = at.device_of_place().clone();
        let tensors = kept(site, || {
            let mut tensors = Tensors(HashMap::new());
            while input.at() != end {
                let start = input.at();
                let (name, tensor) = tensor(&mut input, magic, at)?;
                if let Some(first) = tensors.0.insert(name, tensor) {
                    first.blocks().close();
                    return Err(input.fail_at(start, "a tensor of this name came before"));
                }
            }
            Ok(std::mem::take(&mut tensors.0))
        })?;
        Ok(Content { magic, hparams, vocab, tensors, device })
    }

    /// Takes a tensor out.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`].
    #[track_caller]
    pub fn remove(&mut self, name: &str) -> Result<QTensor> {
        match self.tensors.remove(name) {
            Some(tensor) => Ok(tensor),
            None => Err(Error::no_tensor(name, None, self.tensors.keys())),
        }
    }
}

/// What was read so far. A failed read closes it, also where a manager has it.
struct Tensors(HashMap<String, QTensor>);

impl Drop for Tensors {
    fn drop(&mut self) {
        self.0.values().for_each(|tensor| tensor.blocks().close());
    }
}

fn number<R: Read>(input: &mut Input<R>, what: &str) -> Result<u32> {
    Ok(u32::from_le_bytes(input.array(what)?))
}

fn magic<R: Read>(input: &mut Input<R>) -> Result<VersionedMagic> {
    let magic = number(input, "the first four bytes")?.to_be_bytes();
    if &magic == b"ggml" {
        return Ok(VersionedMagic::GgmlUnversioned);
    }
    if !matches!(&magic, b"ggmf" | b"ggjt") {
        return Err(input.fail_at(0, format!("this is no GGML file: its kind is {}", magic.escape_ascii())));
    }
    match (&magic, number(input, "the version")?) {
        (b"ggmf", 1) => Ok(VersionedMagic::GgmfV1),
        (b"ggjt", 1) => Ok(VersionedMagic::GgjtV1),
        (b"ggjt", 2) => Ok(VersionedMagic::GgjtV2),
        (b"ggjt", 3) => Ok(VersionedMagic::GgjtV3),
        (magic, version) => {
            Err(input.fail_at(4, format!("version {version} of {}, which is not read", magic.escape_ascii())))
        }
    }
}

fn hparams<R: Read>(input: &mut Input<R>) -> Result<HParams> {
    Ok(HParams {
        n_vocab: number(input, "n_vocab")?,
        n_embd: number(input, "n_embd")?,
        n_mult: number(input, "n_mult")?,
        n_head: number(input, "n_head")?,
        n_layer: number(input, "n_layer")?,
        n_rot: number(input, "n_rot")?,
        ftype: number(input, "ftype")?,
    })
}

fn vocab<R: Read>(input: &mut Input<R>, count: u32, magic: VersionedMagic) -> Result<Vocab> {
    let has_scores = magic != VersionedMagic::GgmlUnversioned;
    // A token is a length at least, and a score where there are some.
    input.need(u64::from(count) * if has_scores { 8 } else { 4 }, "the vocabulary")?;
    let mut token_score_pairs = Vec::new();
    for _ in 0..count {
        let length = number(input, "the length of a token")?;
        let token = input.bytes(length.into(), "a token")?;
        let score = if has_scores { f32::from_le_bytes(input.array("the score of a token")?) } else { 0.0 };
        token_score_pairs.try_reserve(1).map_err(|_| input.fail(format!("no memory for {count} tokens")))?;
        token_score_pairs.push((token, score));
    }
    Ok(Vocab { token_score_pairs })
}

/// Whether blocks of this type lay in files of this version as they do today.
fn lies_as_today(dtype: GgmlDType, magic: VersionedMagic) -> bool {
    match dtype {
        GgmlDType::F32 | GgmlDType::F16 => true,
        // The second version changed the order of their halves; the third one the scales of the others.
        GgmlDType::Q5_0 | GgmlDType::Q5_1 => matches!(magic, VersionedMagic::GgjtV2 | VersionedMagic::GgjtV3),
        _ => magic == VersionedMagic::GgjtV3,
    }
}

#[track_caller]
fn tensor<R: Read + Seek, P: Place + ?Sized>(
    input: &mut Input<R>,
    magic: VersionedMagic,
    at: &P,
) -> Result<(String, QTensor)> {
    let start = input.at();
    let rank = number(input, "the rank of a tensor")?;
    if rank > DIMS_MAX {
        return Err(input.fail_at(start, format!("a tensor of {rank} dimensions; {DIMS_MAX} is the most")));
    }
    let length = number(input, "the length of a tensor's name")?;
    let place = input.at();
    let kind = number(input, "the type of a tensor's blocks")?;
    let unknown = || input.fail_at(place, format!("blocks of type {kind} cannot be read"));
    let dtype = GgmlDType::from_u32(kind).ok_or_else(unknown)?;
    if !lies_as_today(dtype, magic) {
        let why = format!("blocks of {dtype} lay otherwise in files of {magic:?}; convert the file to GGUF");
        return Err(input.fail_at(place, why));
    }
    let mut dims = Vec::new();
    for _ in 0..rank {
        dims.push(number(input, "a size of a tensor")? as usize);
    }
    // The file has the fastest axis first.
    dims.reverse();
    let name = String::from_utf8_lossy(&input.bytes(length.into(), "a tensor's name")?).into_owned();
    if !matches!(magic, VersionedMagic::GgmlUnversioned | VersionedMagic::GgmfV1) {
        input.seek(input.at().next_multiple_of(ALIGNMENT))?;
    }
    let field = format!("tensor `{}`", name.escape_debug());
    let shape = Shape::from(dims);
    let bytes = bytes_of("read", &shape, dtype).map_err(|error| input.fail(format!("{field}: {error}")))?;
    let data = input.bytes(bytes as u64, &field)?;
    let blocks =
        composite_at(Call::here("read"), &at, &mut once(|| Proxy::from_vec(data, bytes, at.device_of_place())))?;
    Ok((name, QTensor::from_blocks(blocks, dtype, shape)?))
}
