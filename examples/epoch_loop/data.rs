//! The images and labels that the network learns from.
//!
//! [`load`] reads the MNIST files in IDX form, plain or gzip, from a folder; [`synthetic`] draws
//! digits instead. A file is believed only as far as its bytes go: a header's counts are checked
//! against limits first and memory then follows what is really there. Every fault is a
//! [`DataError`] that names the file, what was expected and what was found. With both pairs of
//! files the one of 10,000 is the test set; with one pair 15 % of it are set aside, by a seeded
//! shuffle. Pixels are scaled to `0.0..=1.0`.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::GzDecoder;

use super::digits::{self, Digits, PIXELS, Rng, SIDE};

/// No file may announce more images or labels than this.
const MAX_ITEMS: usize = 1_000_000;
/// What both gzip files begin with.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// What the files of images begin with: bytes, in three dimensions.
const IMAGES: u32 = 0x0000_0803;
/// What the files of labels begin with: bytes, in one dimension.
const LABELS: u32 = 0x0000_0801;
/// The fewest test images.
const MIN_TEST: usize = 500;

/// Images to learn from and images to be tested on.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    /// The network learns from these.
    pub(crate) train: Digits,
    /// The network never learns from these.
    pub(crate) test: Digits,
}

/// Why the data cannot be used.
#[derive(Debug)]
pub(crate) enum DataError {
    /// The folder holds neither pair of files, or half of one.
    Missing {
        /// The folder.
        dir: PathBuf,
        /// The names that were looked for.
        wanted: String,
    },
    /// The file cannot be opened or read.
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file's gzip form is damaged or cut short, or something follows it.
    Gzip {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        fault: String,
    },
    /// The file is not what its name says.
    Format {
        /// The file.
        file: PathBuf,
        /// The part of the file that is wrong.
        what: &'static str,
        /// What belongs there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Images and labels of a pair differ in number.
    Counts {
        /// The file of images.
        images: PathBuf,
        /// Images in it.
        image_count: usize,
        /// The file of labels.
        labels: PathBuf,
        /// Labels in it.
        label_count: usize,
    },
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { dir, wanted } => {
                write!(f, "{}: no {wanted} in this folder", dir.display())
            }
            Self::Read { file, error } => write!(f, "{}: {error}", file.display()),
            Self::Gzip { file, fault } => {
                write!(f, "{}: not a sound gzip file: {fault}", file.display())
            }
            Self::Format { file, what, expected, found } => {
                write!(f, "{}: {what}: expected {expected}, found {found}", file.display())
            }
            Self::Counts { images, image_count, labels, label_count } => write!(
                f,
                "{} holds {image_count} images but {} holds {label_count} labels",
                images.display(),
                labels.display()
            ),
        }
    }
}

impl std::error::Error for DataError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Draws `n_train` digits to learn from and a fifth of that, at least 500, to be tested on.
pub(crate) fn synthetic(n_train: usize, seed: u64) -> Split {
    let test_seed = !seed.rotate_left(32);
    Split { train: digits::draw(n_train, seed), test: digits::draw(test_count(n_train), test_seed) }
}

/// Reads the MNIST files in `dir`.
///
/// `images_max` limits the images to learn from; a fifth of it, at least 500, then limits those
/// to be tested on. `seed` decides which images stay and in which order.
pub(crate) fn load(dir: &Path, images_max: Option<usize>, seed: u64) -> Result<Split, DataError> {
    let meta = std::fs::metadata(dir).map_err(|error| read_error(dir, error))?;
    if !meta.is_dir() {
        return Err(read_error(dir, io::ErrorKind::NotADirectory.into()));
    }
    let first = Pair::find(dir, "train")?;
    let second = Pair::find(dir, "t10k")?;
    let mut rng = Rng::new(seed);
    let max_train = images_max.unwrap_or(MAX_ITEMS);
    let max_test = images_max.map_or(MAX_ITEMS, test_count);
    match (first, second) {
        (Some(train), Some(test)) => {
            let (train, test) = (train.read(1)?, test.read(1)?);
            let (some, others) = (train.shuffled(&mut rng), test.shuffled(&mut rng));
            Ok(Split { train: train.pick(&some, max_train), test: test.pick(&others, max_test) })
        }
        (Some(only), None) | (None, Some(only)) => {
            let raw = only.read(2)?;
            let order = raw.shuffled(&mut rng);
            let test = (order.len() * 15 / 100).max(1);
            let (some, others) = order.split_at(order.len() - test);
            Ok(Split { train: raw.pick(some, max_train), test: raw.pick(others, max_test) })
        }
        (None, None) => {
            let names = names("train", "images", 3).join(", ");
            let wanted = format!("MNIST files (such as {names}; also t10k-*, and labels)");
            Err(DataError::Missing { dir: dir.to_owned(), wanted })
        }
    }
}

/// Test images that go with `n_train` images to learn from.
fn test_count(n_train: usize) -> usize {
    (n_train / 5).max(MIN_TEST)
}

fn read_error(file: &Path, error: io::Error) -> DataError {
    DataError::Read { file: file.to_owned(), error }
}

/// The names under which a file may lie.
fn names(set: &str, kind: &str, dimensions: usize) -> Vec<String> {
    let stem = |mark: char| format!("{set}-{kind}{mark}idx{dimensions}-ubyte");
    let plain = [stem('-'), stem('.')];
    plain.iter().flat_map(|stem| [stem.clone(), format!("{stem}.gz")]).collect()
}

/// A file of images and the file of their labels.
struct Pair {
    images: PathBuf,
    labels: PathBuf,
}

impl Pair {
    /// The pair called `set`, `None` where neither file is there.
    fn find(dir: &Path, set: &str) -> Result<Option<Self>, DataError> {
        let find = |kind: &str, dimensions| {
            let mut paths = names(set, kind, dimensions).into_iter().map(|name| dir.join(name));
            paths.find(|path| path.is_file())
        };
        let half = |kind, dimensions, other: &Path| {
            let wanted = names(set, kind, dimensions).join(", ");
            let wanted = format!("{wanted} to go with {}", other.display());
            Err(DataError::Missing { dir: dir.to_owned(), wanted })
        };
        match (find("images", 3), find("labels", 1)) {
            (Some(images), Some(labels)) => Ok(Some(Self { images, labels })),
            (Some(images), None) => half("labels", 1, &images),
            (None, Some(labels)) => half("images", 3, &labels),
            (None, None) => Ok(None),
        }
    }

    /// Reads both files, which must hold at least `least` images.
    fn read(&self, least: usize) -> Result<Raw, DataError> {
        let labels = Source::open(&self.labels)?.labels()?;
        let (pixels, count) = Source::open(&self.images)?.images()?;
        if count != labels.len() {
            return Err(DataError::Counts {
                images: self.images.clone(),
                image_count: count,
                labels: self.labels.clone(),
                label_count: labels.len(),
            });
        }
        if count < least {
            let expected = format!("at least {least}");
            return Err(format_error(&self.images, "images", expected, count));
        }
        Ok(Raw { pixels, labels })
    }
}

/// A pair's content as it lies in the files.
struct Raw {
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

impl Raw {
    fn shuffled(&self, rng: &mut Rng) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.labels.len()).collect();
        rng.shuffle(&mut order);
        order
    }

    /// The first `max` images of `order`.
    fn pick(&self, order: &[usize], max: usize) -> Digits {
        let order = &order[..order.len().min(max)];
        let mut images = Vec::with_capacity(order.len() * PIXELS);
        for &at in order {
            let image = &self.pixels[at * PIXELS..][..PIXELS];
            images.extend(image.iter().map(|&pixel| f32::from(pixel) / 255.0));
        }
        let labels = order.iter().map(|&at| u32::from(self.labels[at])).collect();
        Digits { images, labels }
    }
}

fn format_error(file: &Path, what: &'static str, expected: impl fmt::Display, found: impl fmt::Display) -> DataError {
    let (expected, found) = (expected.to_string(), found.to_string());
    DataError::Format { file: file.to_owned(), what, expected, found }
}

/// The content of one file, unpacked as it is read.
struct Source<'a> {
    file: &'a Path,
    bytes: Bytes,
}

enum Bytes {
    Plain(BufReader<File>),
    Gzip(Box<GzDecoder<BufReader<File>>>),
}

impl<'a> Source<'a> {
    /// Opens `file`, whose first bytes tell whether it is packed.
    fn open(file: &'a Path) -> Result<Self, DataError> {
        let mut reader = File::open(file).map(BufReader::new).map_err(|error| read_error(file, error))?;
        let start = reader.fill_buf().map_err(|error| read_error(file, error))?;
        let bytes =
            if start.starts_with(&GZIP) { Bytes::Gzip(Box::new(GzDecoder::new(reader))) } else { Bytes::Plain(reader) };
        Ok(Self { file, bytes })
    }

    /// At most `limit` bytes from where reading stands; fewer only where the content ends.
    fn take(&mut self, limit: usize) -> Result<Vec<u8>, DataError> {
        let mut found = Vec::new();
        let limit = limit as u64;
        let (outcome, packed) = match &mut self.bytes {
            Bytes::Plain(reader) => (reader.take(limit).read_to_end(&mut found), false),
            Bytes::Gzip(reader) => (reader.take(limit).read_to_end(&mut found), true),
        };
        match outcome {
            Ok(_) => Ok(found),
            Err(error) if packed => Err(self.gzip_error(&error)),
            Err(error) => Err(read_error(self.file, error)),
        }
    }

    fn gzip_error(&self, error: &io::Error) -> DataError {
        let fault = match error.kind() {
            io::ErrorKind::UnexpectedEof => "it ends too early".to_owned(),
            _ => error.to_string(),
        };
        DataError::Gzip { file: self.file.to_owned(), fault }
    }

    /// `N` numbers of four bytes, the highest byte first.
    fn numbers<const N: usize>(&mut self) -> Result<[u32; N], DataError> {
        let bytes = self.take(4 * N)?;
        if bytes.len() < 4 * N {
            let found = format!("{} bytes", bytes.len());
            let expected = format!("{} more bytes", 4 * N);
            return Err(format_error(self.file, "header cut short", expected, found));
        }
        let mut numbers = [0; N];
        for (number, four) in numbers.iter_mut().zip(bytes.chunks_exact(4)) {
            *number = four.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        }
        Ok(numbers)
    }

    /// The magic number, then the count of items.
    fn count(&mut self, magic: u32) -> Result<usize, DataError> {
        let [found] = self.numbers()?;
        if found != magic {
            let (expected, found) = (format!("{magic:#010x}"), format!("{found:#010x}"));
            return Err(format_error(self.file, "magic number", expected, found));
        }
        let [count] = self.numbers()?;
        let count = count as usize;
        if count > MAX_ITEMS {
            let expected = format!("at most {MAX_ITEMS}");
            return Err(format_error(self.file, "items in the header", expected, count));
        }
        Ok(count)
    }

    /// The rest of the content, which must be `size` bytes, sound to the end of the file.
    fn rest(mut self, size: usize) -> Result<Vec<u8>, DataError> {
        let bytes = self.take(size)?;
        if bytes.len() < size {
            let (expected, found) = (format!("{size} bytes"), format!("{} bytes", bytes.len()));
            return Err(format_error(self.file, "content cut short", expected, found));
        }
        // Reading on also makes the decoder compare its checksum.
        if !self.take(1)?.is_empty() {
            let (expected, found) = (format!("{size} bytes"), "more bytes than that");
            return Err(format_error(self.file, "content too long", expected, found));
        }
        if let Bytes::Gzip(decoder) = self.bytes {
            let mut reader = decoder.into_inner();
            let after = reader.fill_buf().map_err(|error| read_error(self.file, error))?;
            if !after.is_empty() {
                let fault = "more bytes follow its end".to_owned();
                return Err(DataError::Gzip { file: self.file.to_owned(), fault });
            }
        }
        Ok(bytes)
    }

    fn images(mut self) -> Result<(Vec<u8>, usize), DataError> {
        let count = self.count(IMAGES)?;
        let [rows, columns] = self.numbers()?;
        if [rows, columns] != [SIDE as u32; 2] {
            let (expected, found) = (format!("{SIDE} x {SIDE}"), format!("{rows} x {columns}"));
            return Err(format_error(self.file, "image size", expected, found));
        }
        Ok((self.rest(count * PIXELS)?, count))
    }

    fn labels(mut self) -> Result<Vec<u8>, DataError> {
        let (count, file) = (self.count(LABELS)?, self.file);
        let labels = self.rest(count)?;
        if let Some(at) = labels.iter().position(|label| *label > 9) {
            let found = format!("{} at position {at}", labels[at]);
            return Err(format_error(file, "label", "0 to 9", found));
        }
        Ok(labels)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A folder that goes when the test ends.
    struct Dir(PathBuf);

    impl Dir {
        fn new() -> Self {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("epoch_loop_{}_{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).expect("a folder");
            Self(path)
        }

        fn with(self, name: &str, bytes: &[u8]) -> Self {
            fs::write(self.0.join(name), bytes).expect("a file");
            self
        }

        /// Both files of one pair, `count` items each.
        fn pair(self, set: &str, count: usize) -> Self {
            let labels = format!("{set}-labels-idx1-ubyte");
            self.with(&format!("{set}-images-idx3-ubyte"), &images(count)).with(&labels, &tags(count))
        }

        fn fault(&self) -> String {
            load(&self.0, None, 1).expect_err("the data is wrong").to_string()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            // A folder left in the temporary place harms nothing.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn header(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    /// Image `i` is filled with `i`, so that a test can tell which one it was.
    fn images(count: usize) -> Vec<u8> {
        let mut bytes = header(&[IMAGES, count as u32, 28, 28]);
        bytes.extend((0..count).flat_map(|i| [i as u8; PIXELS]));
        bytes
    }

    fn tags(count: usize) -> Vec<u8> {
        let mut bytes = header(&[LABELS, count as u32]);
        bytes.extend((0..count).map(|i| (i % 10) as u8));
        bytes
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("packed");
        encoder.finish().expect("packed")
    }

    const TEN_IMAGES: &str = "t10k-images-idx3-ubyte";
    const TEN_LABELS: &str = "t10k-labels-idx1-ubyte";

    /// What `load` says about a pair with these images, plain and packed.
    fn says(images: &[u8], wanted: &str) {
        let labels = tags(20);
        let plain = Dir::new().with(TEN_IMAGES, images).with(TEN_LABELS, &labels).fault();
        let packed_name = format!("{TEN_IMAGES}.gz");
        let dir = Dir::new().with(&packed_name, &packed(images)).with(TEN_LABELS, &labels);
        for text in [plain, dir.fault()] {
            assert!(text.contains(TEN_IMAGES) && text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn one_pair_is_split_and_nothing_is_lost() {
        let dir = Dir::new().pair("t10k", 200);
        let split = load(&dir.0, None, 5).expect("sound");
        assert_eq!((split.train.labels.len(), split.test.labels.len()), (170, 30));
        let mut seen = Vec::new();
        for set in [&split.train, &split.test] {
            for (image, label) in set.images.chunks_exact(PIXELS).zip(&set.labels) {
                let number = (image[0] * 255.0).round() as u32;
                assert_eq!(number % 10, *label);
                seen.push(number);
            }
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..200));
        let again = load(&dir.0, None, 5).expect("sound");
        assert_eq!(again.train, split.train);
        assert_ne!(load(&dir.0, None, 6).expect("sound").train, split.train);
    }

    #[test]
    fn two_pairs_stay_apart_and_limits_hold() {
        let dir = Dir::new().pair("train", 100).pair("t10k", 40);
        let split = load(&dir.0, None, 5).expect("sound");
        assert_eq!((split.train.labels.len(), split.test.labels.len()), (100, 40));
        let split = load(&dir.0, Some(8), 5).expect("sound");
        assert_eq!((split.train.labels.len(), split.test.labels.len()), (8, 40));
    }

    #[test]
    fn every_usual_name_is_found() {
        for (mark, gz) in [('-', ""), ('-', ".gz"), ('.', ""), ('.', ".gz")] {
            let form = |bytes: Vec<u8>| if gz.is_empty() { bytes } else { packed(&bytes) };
            let dir = Dir::new()
                .with(&format!("train-images{mark}idx3-ubyte{gz}"), &form(images(20)))
                .with(&format!("train-labels{mark}idx1-ubyte{gz}"), &form(tags(20)));
            assert_eq!(load(&dir.0, None, 1).expect("sound").train.labels.len(), 17);
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let text = Dir::new().fault();
        assert!(text.contains("train-images-idx3-ubyte.gz"), "{text}");
        let text = Dir::new().with(TEN_IMAGES, &images(20)).fault();
        assert!(text.contains("no t10k-labels-idx1-ubyte") && text.contains(TEN_IMAGES), "{text}");
        let text = Dir::new().pair("t10k", 20).with("train-labels.idx1-ubyte", &tags(20)).fault();
        assert!(text.contains("no train-images-idx3-ubyte"), "{text}");
        let path = Path::new("no such folder");
        let error = load(path, None, 1).expect_err("nothing there");
        assert!(error.to_string().starts_with("no such folder: "), "{error}");
        assert!(matches!(error, DataError::Read { .. }));
        let dir = Dir::new().with("file", b"");
        let error = load(&dir.0.join("file"), None, 1).expect_err("a file");
        assert!(matches!(error, DataError::Read { .. }), "{error}");
    }

    #[test]
    fn wrong_content_is_named() {
        let mut wrong = images(20);
        wrong[3] = 1;
        says(&wrong, "magic number: expected 0x00000803, found 0x00000801");
        let mut wide = images(20);
        wide[15] = 32;
        says(&wide, "image size: expected 28 x 28, found 28 x 32");
        let whole = images(20);
        says(&whole[..whole.len() - 1], "content cut short: expected 15680 bytes, found 15679");
        says(&whole[..6], "header cut short: expected 4 more bytes, found 2 bytes");
        says(&[], "header cut short");
        says(&[&whole[..], &[0]].concat(), "content too long: expected 15680 bytes");
        says(&images(19), "holds 19 images but ");
        says(&header(&[IMAGES, 0, 28, 28]), "holds 0 images but ");
    }

    #[test]
    fn a_header_alone_reserves_nothing() {
        says(&header(&[IMAGES, u32::MAX, 28, 28]), "items in the header: expected at most 1000000");
        let huge = header(&[IMAGES, MAX_ITEMS as u32, 28, 28]);
        says(&huge, "content cut short: expected 784000000 bytes, found 0 bytes");
    }

    #[test]
    fn labels_are_digits_and_an_empty_pair_is_refused() {
        let mut labels = tags(20);
        labels[8 + 7] = 10;
        let text = Dir::new().with(TEN_IMAGES, &images(20)).with(TEN_LABELS, &labels).fault();
        assert!(text.contains("label: expected 0 to 9, found 10 at position 7"), "{text}");
        for count in [0, 1] {
            let text = Dir::new().pair("t10k", count).fault();
            assert!(text.contains(&format!("images: expected at least 2, found {count}")));
        }
        let text = Dir::new().pair("t10k", 20).pair("train", 0).fault();
        assert!(text.contains("images: expected at least 1, found 0"), "{text}");
    }

    #[test]
    fn damaged_gzip_is_named() {
        let whole = packed(&images(20));
        let end = whole.len();
        let mut checksum = whole.clone();
        checksum[end - 8] ^= 1;
        let mut middle = whole.clone();
        middle[12..20].fill(0xff);
        let mut header = whole.clone();
        header[2] = 7;
        let more = [&whole[..], b"more"].concat();
        for bytes in [&whole[..end - 4], &whole[..end / 2], &whole[..5], &checksum, &middle, &header, &more] {
            let dir = Dir::new().with(&format!("{TEN_IMAGES}.gz"), bytes);
            let error = load(&dir.with(TEN_LABELS, &tags(20)).0, None, 1).expect_err("damaged");
            assert!(matches!(error, DataError::Gzip { .. }), "{error}");
            assert!(error.to_string().contains("t10k-images-idx3-ubyte.gz: not a sound gzip file"));
        }
    }

    #[test]
    fn drawn_sets_differ() {
        let split = synthetic(100, 42);
        assert_eq!((split.train.labels.len(), split.test.labels.len()), (100, 500));
        assert_ne!(split.train.images[..], split.test.images[..100 * PIXELS]);
        assert_eq!(synthetic(5_000, 42).test.labels.len(), 1_000);
    }
}
