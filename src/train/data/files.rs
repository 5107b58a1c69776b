//! Examples from files that hold all of them: IDX, the format of MNIST, and npy.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use flate2::bufread::GzDecoder;
use ndgc::nn::encoding::one_hot;
use ndgc::{DType, Device, Error, Result, Tensor, npy};

use super::super::place::{called_here, of_call};

use super::arrays::ArrayDataSetIterator;
use super::data_set::DataSet;
use super::iterator::DataIterator;

/// What a gzip file begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The most numbers that a file may announce.
const COUNT_MAX: u64 = 1 << 40;

/// Reads a file in IDX form, plain or gzip, of bytes: `[n]` of labels, `[n, h, w]` of images, in u8. A gzip file may
/// have several members, one after the other. Memory follows what is there, and no more is unpacked than is announced.
///
/// ```
/// # use ndgc::train::read_idx;
/// let path = std::env::temp_dir().join(format!("ndgc-idx-{}", std::process::id()));
/// // Bytes (8) of one axis (1), which has 3: as the labels of MNIST begin.
/// std::fs::write(&path, [0u8, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]).map_err(ndgc::Error::msg)?;
/// assert_eq!(read_idx(&path)?.to_vec1::<u8>()?, [7, 2, 1]);
/// # std::fs::remove_file(&path).map_err(ndgc::Error::msg)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::File`] for a file that cannot be read or is something else; as [`Tensor::from_vec`].
#[track_caller]
pub fn read_idx(path: impl AsRef<Path>) -> Result<Tensor> {
    of_call(|| {
        let path = path.as_ref();
        let fail = |why: String| Error::file(Some(path), None, why);
        let mut file = BufReader::new(File::open(path).map_err(|error| fail(error.to_string()))?);
        let mut start = [0; 2];
        let read = file.read_exact(&mut start).map_err(|error| fail(error.to_string()));
        read?;
        let all = start.as_slice().chain(file);
        let members = |all| Members { now: None, rest: Some(BufReader::new(all)) };
        if start == GZIP { idx(members(all)) } else { idx(all) }.map_err(fail)
    })
}

/// What the members of a gzip file have, one after the other. Bytes behind the last one are left alone, as `gzip` does.
struct Members<R> {
    now: Option<GzDecoder<R>>,
    /// Where the next member may begin.
    rest: Option<R>,
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if let Some(mut rest) = self.rest.take() {
                match rest.fill_buf()?.first() {
                    Some(&first) if first == GZIP[0] => self.now = Some(GzDecoder::new(rest)),
                    _ => return Ok(0),
                }
            }
            let Some(member) = &mut self.now else { return Ok(0) };
            match member.read(buffer)? {
                0 if !buffer.is_empty() => self.rest = self.now.take().map(GzDecoder::into_inner),
                read => return Ok(read),
            }
        }
    }
}

/// The array of a stream, or what is wrong with it.
fn idx(mut from: impl Read) -> std::result::Result<Tensor, String> {
    let mut number = [0; 4];
    let mut next = |from: &mut dyn Read| match from.read_exact(&mut number) {
        Ok(()) => Ok(u32::from_be_bytes(number)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err("the file ends in its header".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let magic = next(&mut from)?;
    let rank = (magic & 0xff) as usize;
    if magic >> 8 != 8 || !(1..=4).contains(&rank) {
        return Err(format!("begins with {magic:#010x}, where IDX of bytes has 0x00000801 to 0x00000804"));
    }
    let mut shape = Vec::with_capacity(rank);
    for _ in 0..rank {
        shape.push(next(&mut from)? as usize);
    }
    let count = shape.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim as u64));
    let count = count.filter(|&count| count <= COUNT_MAX).ok_or_else(|| format!("announces {shape:?} numbers"))?;
    let mut bytes = Vec::new();
    // One more than is announced would be too many; memory follows what is there.
    from.take(count + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 != count {
        let found = if bytes.len() as u64 > count { "more".to_owned() } else { bytes.len().to_string() };
        return Err(format!("announces {count} numbers, and there are {found}"));
    }
    Tensor::from_vec(bytes, shape, &Device::Cpu).map_err(|error| error.to_string())
}

/// Batches out of files in IDX form: features in f32 from 0 to 255, labels as rows with a 1.
///
/// The files stay in memory as they are, in bytes; a batch is made when it is asked for, in the current workspace.
/// [`Normalizer::image`](super::Normalizer::image) brings pixels to 0 to 1.
///
/// ```
/// # use ndgc::train::IdxDataSetIterator;
/// let file = |name| std::env::temp_dir().join(format!("ndgc-{name}-{}", std::process::id()));
/// let (images, labels) = (file("images"), file("labels"));
/// // Two images of one row and two columns, and their classes.
/// let bytes = [0u8, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255, 51, 0];
/// std::fs::write(&images, bytes).map_err(ndgc::Error::msg)?;
/// std::fs::write(&labels, [0u8, 0, 8, 1, 0, 0, 0, 2, 2, 0]).map_err(ndgc::Error::msg)?;
/// let batch = IdxDataSetIterator::new(&images, &labels, 3, 2)?.next().unwrap()?;
/// assert_eq!(batch.features.to_vec3::<f32>()?, [[[0., 255.]], [[51., 0.]]]);
/// assert_eq!(batch.labels.to_vec2::<f32>()?, [[0., 0., 1.], [1., 0., 0.]]);
/// # std::fs::remove_file(&images).map_err(ndgc::Error::msg)?;
/// # std::fs::remove_file(&labels).map_err(ndgc::Error::msg)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IdxDataSetIterator {
    bytes: ArrayDataSetIterator,
    classes: usize,
}

impl IdxDataSetIterator {
    /// Batches of a file of images `[n, ..]` and the file of their labels `[n]`, which are below `classes`.
    ///
    /// # Errors
    /// As [`read_idx`] and [`ArrayDataSetIterator::new`].
    #[track_caller]
    pub fn new(images: impl AsRef<Path>, labels: impl AsRef<Path>, classes: usize, batch: usize) -> Result<Self> {
        of_call(|| {
            let all = DataSet::new(read_idx(images)?, read_idx(labels)?)?;
            all.labels.dims1()?;
            let largest = all.labels.with_slice(|labels: &[u8]| labels.iter().copied().max())?;
            if let Some(label) = largest.filter(|&label| usize::from(label) >= classes) {
                return Err(Error::index_out_of_range("IdxDataSetIterator", label.into(), classes));
            }
            Ok(IdxDataSetIterator { bytes: ArrayDataSetIterator::new(all, batch)?, classes })
        })
    }

    /// As [`ArrayDataSetIterator::shuffled`].
    ///
    /// # Errors
    /// As [`ArrayDataSetIterator::shuffled`].
    #[track_caller]
    pub fn shuffled(mut self, seed: u64) -> Result<Self> {
        self.bytes = self.bytes.shuffled(seed)?;
        Ok(self)
    }

    /// As [`ArrayDataSetIterator::with_example_ids`]: an image's place in its file, from 0.
    ///
    /// # Errors
    /// As [`ArrayDataSetIterator::with_example_ids`].
    #[track_caller]
    pub fn with_example_ids(mut self) -> Result<Self> {
        self.bytes = self.bytes.with_example_ids()?;
        Ok(self)
    }

    /// As [`ArrayDataSetIterator::set_epoch`].
    ///
    /// # Errors
    /// As [`ArrayDataSetIterator::set_epoch`].
    #[track_caller]
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        self.bytes.set_epoch(epoch)
    }

    /// Number of all examples.
    pub fn num_examples(&self) -> usize {
        self.bytes.num_examples()
    }
}

impl Iterator for IdxDataSetIterator {
    type Item = Result<DataSet>;

    #[track_caller]
    fn next(&mut self) -> Option<Result<DataSet>> {
        let batch = self.bytes.next()?;
        Some(called_here(batch.and_then(|batch| {
            let features = batch.features.to_dtype(DType::F32)?;
            let mut made = DataSet::new(features, one_hot(batch.labels, self.classes, 1f32, 0f32)?)?;
            made.ids = batch.ids;
            Ok(made)
        })))
    }
}

impl DataIterator<DataSet> for IdxDataSetIterator {
    fn reset(&mut self) -> Result<()> {
        self.bytes.reset()
    }

    fn batch(&self) -> Option<usize> {
        self.bytes.batch()
    }
}

impl ArrayDataSetIterator {
    /// Batches of a file of features and one of labels, in npy.
    ///
    /// ```
    /// # use ndgc::train::ArrayDataSetIterator;
    /// # use ndgc::{Device, Tensor, npy};
    /// let file = |name| std::env::temp_dir().join(format!("ndgc-{name}-{}.npy", std::process::id()));
    /// let (features, labels) = (file("features"), file("labels"));
    /// npy::write(&Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?, &features)?;
    /// npy::write(&Tensor::new(&[[1f32], [0.], [1.]], &Device::Cpu)?, &labels)?;
    /// let batches = ArrayDataSetIterator::from_npy(&features, &labels, 2)?;
    /// let rows = batches.map(|batch| batch.map(|batch| batch.num_examples()));
    /// assert_eq!(rows.collect::<ndgc::Result<Vec<usize>>>()?, [2, 1]);
    /// # std::fs::remove_file(&features).map_err(ndgc::Error::msg)?;
    /// # std::fs::remove_file(&labels).map_err(ndgc::Error::msg)?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`npy::read`] and [`ArrayDataSetIterator::new`].
    #[track_caller]
    pub fn from_npy(features: impl AsRef<Path>, labels: impl AsRef<Path>, batch: usize) -> Result<Self> {
        of_call(|| {
            let all = DataSet::new(npy::read(features, &Device::Cpu)?, npy::read(labels, &Device::Cpu)?)?;
            Self::new(all, batch)
        })
    }
}
