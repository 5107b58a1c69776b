//! PyTorch's `.pt` and `.pth`: the tensors of a `state_dict`, as `torch.save` writes it since 1.6 (a zip archive of a
//! pickle and the storages). Nothing that the pickle names is run; files that need more than tensors are refused. What
//! is read is there to be kept: no workspace takes it.

mod machine;

use std::collections::{HashMap, HashSet};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use super::element::{Order, Stored};
use super::input::Input;
use super::npz::{self, ZipEntry};
use super::{Loaded, by_name, sort_by_name};
use crate::base::heap;
use crate::{DType, Device, Error, MAX_RANK, Place, Result, Shape, Tensor, Workspace};
use machine::{Machine, Made, Room, Value};

/// Bytes that a pickle may make of each byte that it has in the file, and those of small ones. What `torch.save` writes
/// takes no more than two thirds of that, also of lists without a tensor.
const MADE_PER_BYTE: u64 = 128;
const MADE_FREE: u64 = 64 << 20;
/// Bytes that one of a packed pickle counts as at most. It may stand for ten, of which real ones make less.
const PACKED: u64 = 4;

/// A tensor of a file, as its pickle describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
    /// Size along each axis.
    pub dims: Vec<usize>,
    /// Elements of the storage from one index to the next, for each axis.
    pub strides: Vec<usize>,
    /// Elements of the storage before the first one.
    pub offset: usize,
    /// The entry of the archive.
    pub path: String,
    /// Elements of the storage.
    pub storage_size: usize,
}

impl TensorInfo {
    fn elem_count(&self) -> usize {
        self.dims.iter().product()
    }

    fn is_contiguous(&self) -> bool {
        let mut step = 1;
        self.dims.iter().zip(&self.strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == step;
            step *= dim;
            fits
        })
    }

    /// The place of each element in the storage, in row-major order.
    fn places(&self) -> Result<Vec<i64>> {
        let count = self.elem_count();
        let mut places = heap::room("pickle", count)?;
        for number in 0..count {
            let (mut rest, mut at) = (number, self.offset);
            for (&dim, &stride) in self.dims.iter().zip(&self.strides).rev() {
                at += rest % dim * stride;
                rest /= dim;
            }
            places.push(at as i64);
        }
        Ok(places)
    }
}

/// Reads every tensor of a file to the host, in the file's order.
///
/// # Errors
/// [`Error::File`]; as [`Tensor::zeros`].
#[track_caller]
pub fn read_all<P: AsRef<Path>>(path: P) -> Result<Vec<(String, Tensor)>> {
    read_all_with_key(path, None)
}

/// As [`read_all`], of the dict that the file's dict has under `key`.
///
/// # Errors
/// As [`read_all`]; [`Error::File`] if there is no such key.
#[track_caller]
pub fn read_all_with_key<P: AsRef<Path>>(path: P, key: Option<&str>) -> Result<Vec<(String, Tensor)>> {
    all(&mut Input::open(path.as_ref())?, key, &Device::Cpu)
}

/// Reads every tensor of the bytes of a file.
///
/// # Errors
/// As [`read_all_with_key`].
#[track_caller]
pub fn decode<P: Place + ?Sized>(bytes: &[u8], key: Option<&str>, at: &P) -> Result<Vec<(String, Tensor)>> {
    all(&mut Input::new(std::io::Cursor::new(bytes), None, bytes.len() as u64), key, at)
}

#[track_caller]
fn all<R: Read + Seek, P: Place + ?Sized>(
    input: &mut Input<R>,
    key: Option<&str>,
    at: &P,
) -> Result<Vec<(String, Tensor)>> {
    let archive = TorchArchive::read(input, key)?;
    let mut loaded = Loaded::default();
    for info in &archive.tensors {
        loaded.push(info.name.clone(), archive.load(input, info, at)?);
    }
    Ok(loaded.done())
}

/// What is in a file.
#[derive(Clone, Debug)]
struct TorchArchive {
    tensors: Vec<TensorInfo>,
    /// By name.
    entries: Vec<(String, ZipEntry)>,
    order: Order,
}

impl TorchArchive {
    fn read<R: Read + Seek>(input: &mut Input<R>, key: Option<&str>) -> Result<Self> {
        let mut entries: Vec<_> = npz::entries(input)?.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        sort_by_name(&mut entries);
        let pickle = entries.iter().find(|(name, _)| *name == "data.pkl" || name.ends_with("/data.pkl"));
        let Some((name, pickle)) = pickle else {
            return Err(input.fail_at(0, "this is no file of PyTorch's: the archive has no data.pkl"));
        };
        let folder = name.strip_suffix("data.pkl").unwrap_or_default().to_owned();
        let order = match by_name(&entries, &format!("{folder}byteorder")) {
            None => Order::Little,
            Some((_, entry)) => match &whole(input, entry)?[..] {
                b"little" => Order::Little,
                b"big" => Order::Big,
                _ => return Err(input.fail_at(0, "the archive's byteorder is neither little nor big")),
            },
        };
        let program = whole(input, pickle)?;
        let text = input.entry(&program[..], name, program.len() as u64);
        let tensors = tensors(text, room_of(pickle), key, &folder)?;
        Ok(TorchArchive { tensors, entries, order })
    }

    #[track_caller]
    fn load<R: Read + Seek, P: Place + ?Sized>(
        &self,
        input: &mut Input<R>,
        info: &TensorInfo,
        at: &P,
    ) -> Result<Tensor> {
        let Some((_, entry)) = by_name(&self.entries, &info.path) else {
            return Err(input.fail_at(0, format!("the archive has no entry `{}`", info.path.escape_debug())));
        };
        let mut content = npz::content(input, entry)?;
        let bytes = (info.storage_size as u64).checked_mul(info.dtype.size_in_bytes() as u64);
        if bytes != Some(content.end()) {
            let (dtype, count) = (info.dtype, info.storage_size);
            return Err(
                content.fail(format!("{count} elements of {dtype} take other than its {} bytes", content.end()))
            );
        }
        let stored = Stored { order: self.order, ..Stored::little(info.dtype) };
        // A weight outlives the cycle in which it is read.
        let _out = Workspace::scope_out();
        let flat = content.tensor(stored, &[info.storage_size], false, at)?;
        let view = npz::finish(&mut content, entry).and_then(|()| shaped(&flat, info));
        match &view {
            Ok(view) if view.is_same(&flat) => {}
            _ => flat.close(),
        }
        view
    }
}

/// A storage seen as a tensor; a copy if the tensor is not the whole of it.
#[track_caller]
fn shaped(flat: &Tensor, info: &TensorInfo) -> Result<Tensor> {
    let count = info.elem_count();
    flat.compose("pickle", || {
        if info.is_contiguous() && count == info.storage_size {
            return flat.reshape(&info.dims[..]);
        }
        if info.is_contiguous() || count == 0 {
            return flat.narrow(0, if count == 0 { 0 } else { info.offset }, count)?.copy()?.reshape(&info.dims[..]);
        }
        let places = Tensor::from_vec(info.places()?, count, flat.device())?;
        flat.index_select(&places, 0)?.reshape(&info.dims[..])
    })
}

/// What may be made of an entry: of a packed one less than it could unpack to.
fn room_of(entry: &ZipEntry) -> Room {
    let bytes = entry.unpacked.min(entry.packed.saturating_mul(PACKED));
    Room(bytes.saturating_mul(MADE_PER_BYTE).saturating_add(MADE_FREE))
}

/// An entry's bytes.
fn whole<R: Read + Seek>(input: &mut Input<R>, entry: &ZipEntry) -> Result<Vec<u8>> {
    let mut content = npz::content(input, entry)?;
    let (bytes, Room(most)) = (content.end(), room_of(entry));
    if bytes > most {
        return Err(
            content.fail(format!("it would unpack to {bytes} bytes; of an entry of its size at most {most} are read"))
        );
    }
    let bytes = content.bytes(content.end(), "the entry")?;
    npz::finish(&mut content, entry)?;
    Ok(bytes)
}

/// The tensors that a pickle's dict has under texts.
fn tensors<R: Read>(program: Input<R>, room: Room, key: Option<&str>, folder: &str) -> Result<Vec<TensorInfo>> {
    let Made { values, top, input: program, mut room } = Machine::new(program, room).run()?;
    let entries = |id: u32| match &values[id as usize] {
        Value::Dict(entries) => Some(entries),
        _ => None,
    };
    let is_key = |id: u32, name: &str| matches!(&values[id as usize], Value::Text(text) if text == name);
    let mut dict = entries(top);
    if let (Some(key), Some(entries_of_top)) = (key, dict) {
        let under = entries_of_top.iter().find(|(name, _)| is_key(*name, key));
        dict = under.and_then(|(_, id)| entries(*id));
        if dict.is_none() {
            return Err(program.fail_at(0, format!("the pickle has no dict `{}`", key.escape_debug())));
        }
    }
    let Some(dict) = dict else { return Err(program.fail_at(0, "the pickle is no dict of tensors")) };
    let (mut found, mut names) = (Vec::new(), HashSet::new());
    for (name, id) in dict {
        let (Value::Text(name), Value::Tensor(view)) = (&values[*name as usize], &values[*id as usize]) else {
            continue;
        };
        if !names.insert(name) {
            return Err(program.fail_at(0, format!("two tensors have the name `{}`", name.escape_debug())));
        }
        let wrong = |why: &str| program.fail_at(0, format!("tensor `{}` {why}", name.escape_debug()));
        let Value::Storage(dtype, key, count) = &values[view.storage as usize] else {
            return Err(wrong("has no storage"));
        };
        // Of one view there can be many, under names of a byte or two.
        let beside = name.len() + folder.len() + key.len() + 2 * size_of::<usize>() * view.dims.len();
        room.take(&program, size_of::<TensorInfo>() + beside)?;
        // Whoever says it: the storage, or its tensors, for which it is bytes.
        let (dtype, count) = match (dtype, view.dtype) {
            (Some(dtype), None) => (*dtype, *count),
            (None, Some(dtype)) => (dtype, count / dtype.size_in_bytes() as u64),
            _ => return Err(wrong("has not one dtype")),
        };
        let sizes = |all: &[i64]| all.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<Vec<usize>>>();
        let (dims, strides) = (sizes(&view.dims), sizes(&view.strides));
        let (Some(dims), Some(strides), Ok(offset)) = (dims, strides, usize::try_from(view.offset)) else {
            return Err(wrong("has a negative size, stride or offset"));
        };
        let storage_size = usize::try_from(count).map_err(|_| wrong("has a storage too large for an address"))?;
        let path = format!("{folder}data/{key}");
        let info = TensorInfo { name: name.clone(), dtype, dims, strides, offset, path, storage_size };
        check(&info).map_err(wrong)?;
        found.push(info);
    }
    Ok(found)
}

/// Whether a tensor lies in its storage, and is no larger.
fn check(info: &TensorInfo) -> std::result::Result<(), &'static str> {
    if info.dims.len() > MAX_RANK {
        return Err("has more axes than an array can have");
    }
    // Also of sizes of which one is 0: others are multiplied.
    match Shape::from(&info.dims[..]).check("pickle", info.dtype.size_in_bytes()) {
        Ok(0) => return Ok(()),
        Ok(count) if count <= info.storage_size => {}
        _ => return Err("has more elements than its storage"),
    }
    let reach = info
        .dims
        .iter()
        .zip(&info.strides)
        .try_fold(info.offset, |at, (&dim, &stride)| at.checked_add((dim - 1).checked_mul(stride)?));
    match reach {
        Some(last) if last < info.storage_size => Ok(()),
        _ => Err("leaves its storage"),
    }
}

/// The tensors of a file, read when they are asked for. The file is opened each time and must not change.
#[derive(Clone, Debug)]
pub struct PthTensors {
    path: PathBuf,
    bytes: u64,
    archive: TorchArchive,
    infos: HashMap<String, TensorInfo>,
}

impl PthTensors {
    /// Reads the pickle of a file; of the dict under `key` in it, if there is one.
    ///
    /// # Errors
    /// [`Error::File`].
    #[track_caller]
    pub fn new<P: AsRef<Path>>(path: P, key: Option<&str>) -> Result<Self> {
        let mut input = Input::open(path.as_ref())?;
        let mut archive = TorchArchive::read(&mut input, key)?;
        let tensors = std::mem::take(&mut archive.tensors);
        let infos = tensors.into_iter().map(|info| (info.name.clone(), info)).collect();
        Ok(PthTensors { path: path.as_ref().to_owned(), bytes: input.end(), archive, infos })
    }

    /// The tensors' descriptions, by name.
    pub fn tensor_infos(&self) -> &HashMap<String, TensorInfo> {
        &self.infos
    }

    /// What is said where there is no tensor of this name.
    #[track_caller]
    pub(crate) fn missing(&self, name: &str) -> Error {
        Error::no_tensor(name, Some(&self.path), self.infos.keys())
    }

    /// A tensor on the host; none if there is none of this name.
    ///
    /// # Errors
    /// As [`read_all`].
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<Option<Tensor>> {
        self.load(name, &Device::Cpu)
    }

    /// A tensor; none if there is none of this name.
    ///
    /// # Errors
    /// As [`read_all`].
    #[track_caller]
    pub fn load<P: Place + ?Sized>(&self, name: &str, at: &P) -> Result<Option<Tensor>> {
        let Some(info) = self.infos.get(name) else { return Ok(None) };
        let mut input = Input::open(&self.path)?;
        if input.end() != self.bytes {
            let why = format!("had {} bytes before, and has {} now", self.bytes, input.end());
            return Err(Error::file(Some(&self.path), None, why));
        }
        self.archive.load(&mut input, info, at).map(Some)
    }
}
