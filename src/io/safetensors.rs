//! safetensors: arrays with names behind a JSON header. Writes byte for byte what the format's own library writes.
//!
//! # Invariants
//! - The header has at most 100 MB and is not longer than the file; each array's bytes are exactly those of its shape
//!   and dtype; together they cover the data without gap or overlap.
//! - A file may hold arrays of dtypes that ndgc does not have; reading one of those is an error that names the dtype.
//!
//! A mapping changes when somebody else writes the file, which safe code must not see: making [`MmapedSafetensors`] is
//! unsafe. [`SafeTensorsFile`] reads single arrays, and takes memory for nothing else. What is read is there to be
//! kept: no workspace takes it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{BufReader, Read};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_core::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::element::{READABLE, Stored};
use super::input::Input;
use super::{Loaded, by_name, output, sort_by_name};
use crate::base::order::sort_by_key;
use crate::ops::call::exec::kept;
use crate::{DType, Error, Place, Result, Shape, Tensor, Workspace};

/// As the format's own library.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// More than any array has; keeps a header of sizes from growing in memory.
const RANK_MAX: usize = 64;

/// Reads every array of a file.
///
/// # Errors
/// [`Error::File`]; as [`Tensor::zeros`].
///
/// ```
/// # use ndgc::{safetensors, Device, Tensor};
/// # use std::collections::HashMap;
/// let path = std::env::temp_dir().join(format!("ndgc-{}.safetensors", std::process::id()));
/// let w = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// safetensors::save(&HashMap::from([("w", w)]), &path)?;
/// let arrays = safetensors::load(&path, &Device::Cpu)?;
/// assert_eq!(arrays["w"].to_vec2::<f32>()?, [[1., 2.], [3., 4.]]);
/// # std::fs::remove_file(&path).map_err(ndgc::Error::msg)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn load<F: AsRef<Path>, P: Place + ?Sized>(path: F, at: &P) -> Result<HashMap<String, Tensor>> {
    let mut input = Input::open(path.as_ref())?;
    let index = Index::read(&mut input)?;
    kept(Location::caller(), || {
        let mut loaded = Loaded::default();
        for (name, info) in index.in_order() {
            input.seek(index.start + info.begin)?;
            loaded.push(name.clone(), info.load(name, &mut input, at)?);
        }
        Ok(loaded.done().into_iter().collect())
    })
}

/// Reads every array from the bytes of a file.
///
/// # Errors
/// As [`load`].
///
/// ```
/// # use ndgc::{safetensors, Device, Tensor};
/// # let path = std::env::temp_dir().join(format!("ndgc-buffer-{}.safetensors", std::process::id()));
/// Tensor::new(&[1f32, 2.], &Device::Cpu)?.save_safetensors("w", &path)?;
/// let bytes = std::fs::read(&path).map_err(ndgc::Error::msg)?;
/// let arrays = safetensors::load_buffer(&bytes, &Device::Cpu)?;
/// assert_eq!(arrays["w"].to_vec1::<f32>()?, [1., 2.]);
/// assert!(safetensors::load_buffer(&bytes[..bytes.len() - 1], &Device::Cpu).is_err()); // a byte is missing
/// # std::fs::remove_file(&path).map_err(ndgc::Error::msg)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn load_buffer<P: Place + ?Sized>(data: &[u8], at: &P) -> Result<HashMap<String, Tensor>> {
    let tensors = SliceSafetensors::new(data)?;
    kept(Location::caller(), || {
        let mut loaded = Loaded::default();
        for (name, view) in tensors.tensors() {
            let array = view.load(at)?;
            loaded.push(name, array);
        }
        Ok(loaded.done().into_iter().collect())
    })
}

/// Writes arrays of any layout: the widest dtypes first, by name within a dtype, so that all are aligned. Replaces a
/// file of this name when it is complete.
///
/// # Errors
/// [`Error::File`], also for the name `__metadata__`, which the format keeps for itself; as [`Tensor::to_vec`].
#[track_caller]
pub fn save<K: AsRef<str> + Ord + Display, F: AsRef<Path>>(tensors: &HashMap<K, Tensor>, path: F) -> Result<()> {
    write(tensors.iter().map(|(name, array)| (name.as_ref(), array)).collect(), path.as_ref())
}

/// # Files: safetensors
impl Tensor {
    /// Writes one array under a name. See [`safetensors::save`](save).
    ///
    /// # Errors
    /// As [`safetensors::save`](save).
    #[track_caller]
    pub fn save_safetensors<F: AsRef<Path>>(&self, name: &str, path: F) -> Result<()> {
        write(vec![(name, self)], path.as_ref())
    }
}

#[track_caller]
fn write(tensors: Vec<(&str, &Tensor)>, path: &Path) -> Result<()> {
    let mut all = Vec::new();
    for (name, array) in tensors {
        let says = (array.dtype(), array.dims());
        all.push((kind_of(says.0), name, array, says));
    }
    sort_by_key(&mut all, |&(kind, name, ..)| (std::cmp::Reverse(kind), name));
    let (mut text, mut end, mut names) = (String::from("{"), 0usize, HashSet::new());
    let refuse = |why: String| Err(Error::file(Some(path), None, why));
    for (kind, name, _, (dtype, dims)) in &all {
        if *name == METADATA {
            return refuse(format!("no array can have the name `{METADATA}`"));
        }
        if !names.insert(*name) {
            return refuse(format!("two arrays have the name `{}`", name.escape_debug()));
        }
        let begin = end;
        end = match end.checked_add(dims.iter().product::<usize>() * dtype.size_in_bytes()) {
            Some(end) => end,
            None => return refuse("the arrays have more bytes than can be counted".into()),
        };
        let quoted = serde_json::to_string(name).map_err(Error::msg)?;
        let shape: Vec<String> = dims.iter().map(usize::to_string).collect();
        let comma = if text.len() > 1 { "," } else { "" };
        let (dtype, shape) = (KINDS[*kind].0, shape.join(","));
        text.push_str(&format!(
            r#"{comma}{quoted}:{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#
        ));
    }
    text.push('}');
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    if text.len() as u64 > HEADER_BYTES_MAX {
        return refuse(format!("a header of {} bytes; at most {HEADER_BYTES_MAX} are read again", text.len()));
    }
    output::save(path, |out| {
        out.put(&(text.len() as u64).to_le_bytes())?;
        out.put(text.as_bytes())?;
        all.iter().try_for_each(|&(_, _, array, says)| out.elements(array, says))
    })
}

/// The key of the header under which there is no array.
const METADATA: &str = "__metadata__";

/// The format's dtypes in its order: name, bits, what it is here.
const KINDS: [(&str, u64, Option<DType>); 22] = [
    ("BOOL", 8, Some(DType::Bool)),
    ("F4", 4, None),
    ("F6_E2M3", 6, None),
    ("F6_E3M2", 6, None),
    ("U8", 8, Some(DType::U8)),
    ("I8", 8, Some(DType::I8)),
    ("F8_E5M2", 8, None),
    ("F8_E4M3", 8, Some(DType::F8E4M3)),
    ("F8_E8M0", 8, None),
    ("F8_E4M3FNUZ", 8, None),
    ("F8_E5M2FNUZ", 8, None),
    ("I16", 16, Some(DType::I16)),
    ("U16", 16, Some(DType::U16)),
    ("F16", 16, Some(DType::F16)),
    ("BF16", 16, Some(DType::BF16)),
    ("I32", 32, Some(DType::I32)),
    ("U32", 32, Some(DType::U32)),
    ("F32", 32, Some(DType::F32)),
    ("C64", 64, None),
    ("F64", 64, Some(DType::F64)),
    ("I64", 64, Some(DType::I64)),
    ("U64", 64, Some(DType::U64)),
];

fn kind_of(dtype: DType) -> usize {
    KINDS.iter().position(|kind| kind.2 == Some(dtype)).expect("every dtype of the crate has a row")
}

/// An array of a file, as its header describes it.
#[derive(Clone, Debug)]
struct Info {
    kind: usize,
    dims: Vec<usize>,
    /// From the start of the data.
    begin: u64,
    end: u64,
}

impl Info {
    fn dtype(&self, name: &str) -> std::result::Result<Stored, String> {
        let (kind, _, dtype) = KINDS[self.kind];
        let Some(dtype) = dtype else {
            return Err(format!("array `{}` has dtype {kind}; {READABLE} can be read", name.escape_debug()));
        };
        Ok(Stored::little(dtype))
    }

    /// Reads the array, which is what comes next.
    #[track_caller]
    fn load<R: Read, P: Place + ?Sized>(&self, name: &str, input: &mut Input<R>, at: &P) -> Result<Tensor> {
        let stored = self.dtype(name).map_err(|why| input.fail(why))?;
        kept(Location::caller(), || input.tensor(stored, &self.dims, false, at))
    }

    /// Whether its bytes are those of its shape.
    fn check(&self) -> std::result::Result<(), String> {
        let (kind, bits, _) = KINDS[self.kind];
        let count = self.dims.iter().try_fold(1u64, |count, dim| count.checked_mul(*dim as u64));
        let bits = count.and_then(|count| count.checked_mul(bits));
        let Some(bits) = bits else {
            return Err(format!("a shape {:?} of more elements than can be counted", self.dims));
        };
        let given = self.end.checked_sub(self.begin).and_then(|bytes| bytes.checked_mul(8));
        if given == Some(bits) {
            return Ok(());
        }
        let (dims, begin, end) = (&self.dims, self.begin, self.end);
        let takes = match bits % 8 {
            0 => format!("{} bytes", bits / 8),
            _ => format!("{bits} bits"),
        };
        Err(format!("{kind} of shape {dims:?} takes {takes}, and it has the bytes {begin} to {end}"))
    }
}

/// What is where in a file.
#[derive(Clone, Debug)]
struct Index {
    /// By name.
    tensors: Vec<(String, Info)>,
    metadata: BTreeMap<String, String>,
    /// Of the data in the file.
    start: u64,
}

impl Index {
    /// Reads and checks the header, which is what comes next.
    fn read<R: Read>(input: &mut Input<R>) -> Result<Self> {
        let length = u64::from_le_bytes(input.array("the length of the header")?);
        if length > HEADER_BYTES_MAX {
            return Err(input.fail_at(0, format!("a header of {length} bytes; at most {HEADER_BYTES_MAX} are read")));
        }
        let at = input.at();
        let text = input.bytes(length, "the header")?;
        if text.first() != Some(&b'{') {
            return Err(input.fail_at(at, "this is no safetensors file: the header does not begin with {"));
        }
        let JsonHeader { tensors, metadata } = serde_json::from_slice(&text).map_err(|error| {
            let at = if error.line() == 1 { at + (error.column() as u64).saturating_sub(1) } else { at };
            input.fail_at(at, format!("the header is not understood: {error}"))
        })?;
        let index = Index { tensors, metadata, start: input.at() };
        let bytes = input.end() - index.start;
        let mut end = 0;
        for (name, info) in index.in_order() {
            let wrong = |why: String| input.fail_at(at, format!("array `{}`: {why}", name.escape_debug()));
            info.check().map_err(wrong)?;
            if info.begin != end {
                return Err(wrong(format!(
                    "begins at byte {} of the data, and the one before ends at {end}",
                    info.begin
                )));
            }
            end = info.end;
        }
        if end != bytes {
            return Err(input.fail_at(at, format!("the arrays end at byte {end} of the data, which have {bytes}")));
        }
        Ok(index)
    }

    /// The arrays as they lie in the file.
    fn in_order(&self) -> Vec<&(String, Info)> {
        let mut all: Vec<_> = self.tensors.iter().collect();
        sort_by_key(&mut all, |(_, info)| (info.begin, info.end));
        all
    }

    fn views<'a>(&'a self, data: &'a [u8]) -> Vec<(String, TensorView<'a>)> {
        self.tensors.iter().map(|(name, info)| (name.clone(), self.view(name, info, data))).collect()
    }

    #[track_caller]
    fn get<'a>(&'a self, name: &str, data: &'a [u8]) -> Result<TensorView<'a>> {
        let Some((name, info)) = by_name(&self.tensors, name) else {
            return Err(Error::no_tensor(name, None, self.tensors.iter().map(|(name, _)| name)));
        };
        Ok(self.view(name, info, data))
    }

    fn view<'a>(&'a self, name: &'a str, info: &'a Info, data: &'a [u8]) -> TensorView<'a> {
        let start = self.start + info.begin;
        TensorView { name, info, start, data: &data[start as usize..(self.start + info.end) as usize] }
    }
}

/// What can become an array.
pub trait Load {
    /// The array, put at a place.
    ///
    /// # Errors
    /// [`Error::File`] for a dtype that ndgc does not have; as [`Tensor::zeros`].
    fn load<P: Place + ?Sized>(&self, at: &P) -> Result<Tensor>;
}

/// An array's bytes in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    name: &'a str,
    info: &'a Info,
    start: u64,
    data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// The dtype.
    ///
    /// # Errors
    /// [`Error::File`] if ndgc does not have it.
    #[track_caller]
    pub fn dtype(&self) -> Result<DType> {
        match self.info.dtype(self.name) {
            Ok(stored) => Ok(stored.dtype),
            Err(why) => Err(Error::file(None, Some(self.start), why)),
        }
    }

    /// The shape.
    pub fn shape(&self) -> &'a [usize] {
        &self.info.dims
    }

    /// The elements in row-major order, the lowest byte first.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }
}

impl Load for TensorView<'_> {
    #[track_caller]
    fn load<P: Place + ?Sized>(&self, at: &P) -> Result<Tensor> {
        self.info.load(self.name, &mut Input::buffer(&[]).section(self.data, self.start), at)
    }
}

/// The arrays in a borrowed buffer.
#[derive(Clone, Debug)]
pub struct SliceSafetensors<'a> {
    index: Index,
    data: &'a [u8],
}

impl<'a> SliceSafetensors<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`Error::File`].
    #[track_caller]
    pub fn new(data: &'a [u8]) -> Result<Self> {
        Ok(SliceSafetensors { index: Index::read(&mut Input::buffer(data))?, data })
    }

    /// The array of this name.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`] if there is none; [`Error::File`]; as [`Tensor::zeros`].
    #[track_caller]
    pub fn load<P: Place + ?Sized>(&self, name: &str, at: &P) -> Result<Tensor> {
        self.get(name)?.load(at)
    }

    /// Every array's bytes, by name.
    pub fn tensors(&self) -> Vec<(String, TensorView<'_>)> {
        self.index.views(self.data)
    }

    /// The bytes of the array of this name.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`] if there is none.
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<TensorView<'_>> {
        self.index.get(name, self.data)
    }
}

/// The arrays in a buffer of its own.
#[derive(Clone, Debug)]
pub struct BufferedSafetensors {
    index: Index,
    data: Vec<u8>,
}

impl BufferedSafetensors {
    /// Reads the header.
    ///
    /// # Errors
    /// [`Error::File`].
    #[track_caller]
    pub fn new(data: Vec<u8>) -> Result<Self> {
        Ok(BufferedSafetensors { index: Index::read(&mut Input::buffer(&data))?, data })
    }

    /// The array of this name.
    ///
    /// # Errors
    /// As [`SliceSafetensors::load`].
    #[track_caller]
    pub fn load<P: Place + ?Sized>(&self, name: &str, at: &P) -> Result<Tensor> {
        self.get(name)?.load(at)
    }

    /// Every array's bytes, by name.
    pub fn tensors(&self) -> Vec<(String, TensorView<'_>)> {
        self.index.views(&self.data)
    }

    /// The bytes of the array of this name.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`] if there is none.
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<TensorView<'_>> {
        self.index.get(name, &self.data)
    }
}

/// A file, or the several files of one model, of which single arrays are read when they are asked for.
///
/// The files stay open. The arrays of several files are looked up together; a name that comes twice is that of the
/// last file.
///
/// ```
/// # use ndgc::{safetensors, Device, Error, Tensor};
/// # use std::collections::HashMap;
/// # let path = std::env::temp_dir().join(format!("ndgc-file-{}.safetensors", std::process::id()));
/// let (a, b) = (Tensor::new(&[1f32, 2.], &Device::Cpu)?, Tensor::new(&[[3u8]], &Device::Cpu)?);
/// safetensors::save(&HashMap::from([("a", a), ("b", b)]), &path)?;
/// let file = safetensors::SafeTensorsFile::new(&path)?; // reads the header
/// assert_eq!(file.names(), ["a", "b"]);
/// assert_eq!(file.shape("b"), Some(&[1, 1][..]));
/// assert_eq!(file.load("a", &Device::Cpu)?.to_vec1::<f32>()?, [1., 2.]); // and this array alone
/// assert!(matches!(file.load("c", &Device::Cpu), Err(Error::CannotFindTensor { .. })));
/// # std::fs::remove_file(&path).map_err(ndgc::Error::msg)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Debug)]
pub struct SafeTensorsFile {
    files: Vec<(Index, Mutex<Input<BufReader<File>>>)>,
    /// The file of each name, by name.
    routes: Vec<(String, usize)>,
}

impl SafeTensorsFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`Error::File`].
    #[track_caller]
    pub fn new<F: AsRef<Path>>(path: F) -> Result<Self> {
        Self::multi(&[path])
    }

    /// Opens several files and reads their headers.
    ///
    /// # Errors
    /// [`Error::File`].
    #[track_caller]
    pub fn multi<F: AsRef<Path>>(paths: &[F]) -> Result<Self> {
        let mut all = SafeTensorsFile { files: Vec::new(), routes: Vec::new() };
        for (number, path) in paths.iter().enumerate() {
            let mut input = Input::open(path.as_ref())?;
            let index = Index::read(&mut input)?;
            all.routes.extend(index.tensors.iter().map(|(name, _)| (name.clone(), number)));
            all.files.push((index, Mutex::new(input)));
        }
        sort_by_name(&mut all.routes);
        Ok(all)
    }

    /// The names, sorted.
    pub fn names(&self) -> Vec<&String> {
        self.routes.iter().map(|(name, _)| name).collect()
    }

    /// The texts that came with the arrays, of one file.
    pub fn metadata(&self, file: usize) -> Option<&BTreeMap<String, String>> {
        self.files.get(file).map(|(index, _)| &index.metadata)
    }

    /// The dims of an array, without its elements; none if there is none of this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        let (index, _) = &self.files[by_name(&self.routes, name)?.1];
        by_name(&index.tensors, name).map(|(_, info)| &info.dims[..])
    }

    /// Reads the array of this name.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`] if there is none; [`Error::File`]; as [`Tensor::zeros`].
    #[track_caller]
    pub fn load<P: Place + ?Sized>(&self, name: &str, at: &P) -> Result<Tensor> {
        let Some((index, input)) = by_name(&self.routes, name).map(|(_, route)| &self.files[*route]) else {
            return Err(self.missing(name));
        };
        let Some((_, info)) = by_name(&index.tensors, name) else { return Err(self.missing(name)) };
        // Each read seeks first, so a read that panicked left nothing that matters.
        let mut input = input.lock().unwrap_or_else(PoisonError::into_inner);
        input.ask().seek(index.start + info.begin)?;
        info.load(name, &mut input, at)
    }

    #[track_caller]
    fn missing(&self, name: &str) -> Error {
        let first = self.files.first().map(|(_, input)| input.lock().unwrap_or_else(PoisonError::into_inner));
        Error::no_tensor(name, first.as_ref().and_then(|input| input.path()), self.names().into_iter())
    }
}

/// Bytes that several arrays share.
type SharedFile = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Files of safetensors mapped into memory: an array on the host is the file's own bytes, without a copy.
///
/// Such an array cannot be changed in place ([`Error::ReadOnly`]); [`Tensor::copy`] gives one that can. The mapping
/// stays until its last array has gone, also if this value goes first. An array whose bytes are not aligned for its
/// dtype, or that goes to another device, is a copy. The arrays of several files are looked up together; a name that
/// comes twice is that of the last file.
pub struct MmapedSafetensors {
    /// Of the first file.
    path: Option<PathBuf>,
    files: Vec<(Index, SharedFile)>,
    /// The file of each name, by name.
    routes: Vec<(String, usize)>,
}

impl fmt::Debug for MmapedSafetensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MmapedSafetensors({} arrays in {} files)", self.routes.len(), self.files.len())
    }
}

impl MmapedSafetensors {
    /// The arrays of files whose bytes are in memory.
    #[track_caller]
    pub(crate) fn of(all: Vec<(&Path, SharedFile)>) -> Result<Self> {
        let path = all.first().map(|(path, _)| path.to_path_buf());
        let mut mapped = MmapedSafetensors { path, files: Vec::new(), routes: Vec::new() };
        for (number, (path, bytes)) in all.into_iter().enumerate() {
            let data = (*bytes).as_ref();
            let index = Index::read(&mut Input::new(data, Some(path.to_owned()), data.len() as u64))?;
            mapped.routes.extend(index.tensors.iter().map(|(name, _)| (name.clone(), number)));
            mapped.files.push((index, bytes));
        }
        sort_by_name(&mut mapped.routes);
        Ok(mapped)
    }

    #[track_caller]
    fn file(&self, name: &str) -> Result<&(Index, SharedFile)> {
        match by_name(&self.routes, name) {
            Some((_, route)) => Ok(&self.files[*route]),
            None => Err(Error::no_tensor(name, self.path.as_deref(), self.routes.iter().map(|(name, _)| name))),
        }
    }

    /// The array of this name: the file's own bytes, if it is put on the host.
    ///
    /// # Errors
    /// As [`SliceSafetensors::load`].
    #[track_caller]
    pub fn load<P: Place + ?Sized>(&self, name: &str, at: &P) -> Result<Tensor> {
        let (index, bytes) = self.file(name)?;
        let view = index.get(name, (**bytes).as_ref())?;
        let start = usize::try_from(view.start).unwrap_or(usize::MAX);
        let dtype = view.dtype()?;
        // Truth values may be other bytes than 0 and 1 in a file, and numbers other ones on such a machine.
        if dtype == DType::Bool || cfg!(target_endian = "big") || Shape::from(view.shape()).check("load", 1).is_err() {
            return view.load(at);
        }
        // It is there to be kept; of another device than the host it is a copy.
        let _out = Workspace::scope_out();
        Tensor::from_shared(Arc::clone(bytes), start..start + view.data.len(), dtype, view.shape(), at)
    }

    /// Every array's bytes, by name.
    pub fn tensors(&self) -> Vec<(String, TensorView<'_>)> {
        let views = self.routes.iter().filter_map(|(name, route)| {
            let (index, bytes) = &self.files[*route];
            let (_, info) = by_name(&index.tensors, name)?;
            Some((name.clone(), index.view(name, info, (**bytes).as_ref())))
        });
        views.collect()
    }

    /// The bytes of the array of this name.
    ///
    /// # Errors
    /// [`Error::CannotFindTensor`] if there is none.
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<TensorView<'_>> {
        let (index, bytes) = self.file(name)?;
        index.get(name, (**bytes).as_ref())
    }
}

/// The header's JSON. Unknown keys of an array are passed over, as the format's own library does.
struct JsonHeader {
    tensors: Vec<(String, Info)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for JsonHeader {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = JsonHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("arrays by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<JsonHeader, A::Error> {
        let (mut tensors, mut metadata) = (HashMap::new(), None);
        while let Some(name) = map.next_key::<String>()? {
            let again = if name == METADATA {
                metadata.replace(map.next_value::<Option<BTreeMap<String, String>>>()?).is_some()
            } else {
                tensors.insert(name.clone(), map.next_value::<Info>()?).is_some()
            };
            if again {
                return Err(de::Error::custom(format!("the name `{}` comes twice", name.escape_debug())));
            }
        }
        let mut tensors: Vec<_> = tensors.into_iter().collect();
        sort_by_name(&mut tensors);
        Ok(JsonHeader { tensors, metadata: metadata.flatten().unwrap_or_default() })
    }
}

impl<'de> Deserialize<'de> for Info {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_map(InfoVisitor)
    }
}

struct InfoVisitor;

impl<'de> Visitor<'de> for InfoVisitor {
    type Value = Info;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array's dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Info, A::Error> {
        let (mut kind, mut dims, mut offsets) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let again = match &key[..] {
                "dtype" => kind.replace(map.next_value::<JsonDType>()?.0).is_some(),
                "shape" => dims.replace(map.next_value::<JsonDims>()?.0).is_some(),
                "data_offsets" => offsets.replace(map.next_value::<(u64, u64)>()?).is_some(),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    false
                }
            };
            if again {
                return Err(de::Error::custom(format!("the key `{key}` comes twice")));
            }
        }
        let kind = kind.ok_or_else(|| de::Error::missing_field("dtype"))?;
        let dims = dims.ok_or_else(|| de::Error::missing_field("shape"))?;
        let (begin, end) = offsets.ok_or_else(|| de::Error::missing_field("data_offsets"))?;
        Ok(Info { kind, dims, begin, end })
    }
}

/// A row of [`KINDS`].
struct JsonDType(usize);

impl<'de> Deserialize<'de> for JsonDType {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let row = KINDS.iter().position(|kind| kind.0 == name);
        row.map(JsonDType).ok_or_else(|| de::Error::custom(format!("unknown dtype `{}`", name.escape_debug())))
    }
}

struct JsonDims(Vec<usize>);

impl<'de> Deserialize<'de> for JsonDims {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_seq(DimsVisitor)
    }
}

struct DimsVisitor;

impl<'de> Visitor<'de> for DimsVisitor {
    type Value = JsonDims;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<JsonDims, A::Error> {
        let mut dims = Vec::new();
        while let Some(dim) = list.next_element()? {
            if dims.len() == RANK_MAX {
                return Err(de::Error::custom(format!("a shape of more than {RANK_MAX} axes")));
            }
            dims.push(dim);
        }
        Ok(JsonDims(dims))
    }
}
