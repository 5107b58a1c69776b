//! Data: iterators, files, normalisers, and batches made ahead, with producers that fail or panic at any element.

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use ndgc::train::{
    ArrayDataSetIterator, AsyncDataSetIterator, AsyncMultiDataSetIterator, AsyncShieldDataSetIterator,
    CsvDataSetIterator, CsvLabels, DataIterator, DataSet, FnDataIterator, IdxDataSetIterator, ListDataSetIterator,
    MultiDataSet, Normalizer, NormalizingIterator, read_idx,
};
use ndgc::{DType, DebugMode, Device, Error, Result, Tensor, Workspace, WorkspaceConfig, gc};

use super::both::both;
use crate::common::Dice;

/// A folder that goes with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("ndgc-train-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.0.join(name), bytes).unwrap();
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn full(value: f64, dims: &[usize]) -> Tensor {
    Tensor::full(value, dims, &Device::Cpu).unwrap()
}

/// Batch `n`: features of n, labels of n + 0.25, masks of n + 0.5 and n + 0.75, with `rows` rows.
fn batch(n: usize, rows: usize) -> Result<DataSet> {
    let of = |more: f64, columns: usize| Tensor::full(n as f64 + more, (rows, columns), &Device::Cpu);
    DataSet::with_masks(of(0., 30)?, of(0.25, 7)?, Some(of(0.5, 1)?), Some(of(0.75, 1)?))
}

fn arrays(batch: &DataSet) -> [&Tensor; 4] {
    [&batch.features, &batch.labels, batch.features_mask.as_ref().unwrap(), batch.labels_mask.as_ref().unwrap()]
}

#[track_caller]
fn assert_batch(batch: &DataSet, n: usize) {
    for (array, more) in arrays(batch).into_iter().zip([0., 0.25, 0.5, 0.75]) {
        assert!(array.to_vec::<f64>().unwrap().iter().all(|&x| x == n as f64 + more), "batch {n} is whole");
    }
}

/// So many batches, of rows that vary.
fn source(count: usize) -> impl DataIterator<DataSet> + Send + 'static {
    FnDataIterator::new(move |n| if n < count { batch(n, 1 + n * 7 % 13).map(Some) } else { Ok(None) })
}

#[test]
fn a_batch_says_what_does_not_fit() {
    both(|| {
        let error = DataSet::new(full(0., &[3, 2]), full(0., &[4, 2])).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
        assert!(DataSet::with_masks(full(0., &[3, 2]), full(0., &[3, 2]), Some(full(0., &[2, 1])), None).is_err());
        assert!(MultiDataSet::new(vec![], vec![]).is_err());
        assert!(MultiDataSet::new(vec![full(0., &[3, 2])], vec![full(0., &[2, 2])]).is_err());
        let masks = vec![None, Some(full(1., &[3, 1]))];
        assert!(MultiDataSet::with_masks(vec![full(0., &[3, 2])], vec![], masks, vec![]).is_err());
    });
}

#[test]
fn batches_are_split_and_merged() {
    both(|| {
        let (train, test) = batch(3, 10).unwrap().split_test_and_train(7).unwrap();
        assert_eq!((train.num_examples(), test.num_examples()), (7, 3));
        let whole = DataSet::merge(&[train.clone(), test.clone()]).unwrap();
        assert_eq!(whole.num_examples(), 10);
        assert_batch(&whole, 3);
        assert!(DataSet::merge(&[]).is_err());
        let bare = DataSet::new(test.features.clone(), test.labels.clone()).unwrap();
        assert!(DataSet::merge(&[train, bare]).unwrap_err().to_string().contains("1 of 2 batches have a mask"));
    });
}

#[test]
fn what_is_detached_outlives_its_workspace_and_what_migrates_lies_in_it() {
    both(|| {
        let config = WorkspaceConfig::default();
        let outside = batch(1, 4).unwrap();
        let (kept, several, lost) = {
            let _cycle = Workspace::enter("BATCHES", &config).unwrap();
            assert!(outside.migrate().unwrap().features.is_attached());
            let inside = batch(2, 4).unwrap();
            assert!(inside.features.is_attached());
            (inside.detach().unwrap(), MultiDataSet::from(inside.clone()).detach().unwrap(), inside)
        };
        {
            let _cycle = Workspace::enter("BATCHES", &config).unwrap();
            batch(3, 4).unwrap();
        }
        assert_batch(&kept, 2);
        assert_eq!(several.labels_masks[0].as_ref().unwrap().to_vec::<f64>().unwrap(), [2.75; 4]);
        assert!(matches!(lost.features.to_vec::<f64>(), Err(Error::LeakedArray(_))));
    });
}

#[test]
fn every_example_comes_once_an_epoch_and_a_seed_decides_the_order() {
    both(|| {
        for (n, size) in [(10, 3), (9, 3), (1, 5), (0, 2)] {
            let x = Tensor::arange(0f64, n as f64, &Device::Cpu).unwrap().reshape((n, 1)).unwrap();
            let all = DataSet::new(x.clone(), x).unwrap();
            let mut batches = ArrayDataSetIterator::new(all.clone(), size).unwrap().shuffled(5).unwrap();
            let mut again = ArrayDataSetIterator::new(all.clone(), size).unwrap().shuffled(5).unwrap();
            let epoch = |batches: &mut ArrayDataSetIterator| {
                let all = batches.map(|batch| batch.unwrap()).inspect(|batch| assert!(batch.num_examples() <= size));
                all.flat_map(|batch| batch.features.to_vec::<f64>().unwrap()).collect::<Vec<_>>()
            };
            for number in 0..3 {
                assert_eq!(batches.epoch(), number);
                let order = epoch(&mut batches);
                assert_eq!(order, epoch(&mut again), "one seed, one order");
                let mut sorted = order.clone();
                sorted.sort_by(f64::total_cmp);
                assert_eq!(sorted, (0..n).map(|x| x as f64).collect::<Vec<_>>());
                batches.reset().unwrap();
                again.reset().unwrap();
                assert_eq!(again.batch(), Some(size));
            }
        }
        assert!(ArrayDataSetIterator::new(batch(0, 2).unwrap(), 0).is_err());
    });
}

fn idx(shape: &[u32], bytes: &[u8]) -> Vec<u8> {
    let head = (0x0800 + shape.len() as u32).to_be_bytes();
    head.into_iter().chain(shape.iter().flat_map(|dim| dim.to_be_bytes())).chain(bytes.iter().copied()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    std::io::Write::write_all(&mut packed, bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn idx_is_read_plain_and_packed_and_faults_are_named() {
    both(|| {
        let folder = Folder::new();
        let pixels: Vec<u8> = (0..5 * 4).collect();
        let images = folder.put("images", idx(&[5, 2, 2], &pixels));
        let labels = folder.put("labels", idx(&[5], &[2, 0, 1, 2, 1]));
        let whole = idx(&[5, 2, 2], &pixels);
        let packed = folder.put("images.gz", gzip(&whole));
        // As `cat` joins them, and programs that pack on several cores.
        let members = folder.put("members.gz", [gzip(&whole[..9]), gzip(&[]), gzip(&whole[9..])].concat());
        let padded = folder.put("padded.gz", [gzip(&whole), vec![0; 512]].concat());
        for images in [&images, &packed, &members, &padded] {
            let mut batches = IdxDataSetIterator::new(images, &labels, 3, 2).unwrap();
            assert_eq!(batches.num_examples(), 5);
            let first = batches.next().unwrap().unwrap();
            assert_eq!(first.features.dims(), [2, 2, 2]);
            assert_eq!(first.features.to_vec::<f32>().unwrap(), [0., 1., 2., 3., 4., 5., 6., 7.]);
            assert_eq!(first.labels.to_vec2::<f32>().unwrap(), [[0., 0., 1.], [1., 0., 0.]]);
            assert_eq!(batches.count(), 2);
        }
        for end in 0..whole.len() {
            assert!(matches!(read_idx(folder.put("cut", &whole[..end])), Err(Error::File { .. })), "cut at {end}");
        }
        for (bytes, why) in [
            (idx(&[5], &[0; 6]), "there are more"),
            (gzip(&idx(&[5], &[0; 1 << 20])), "there are more"),
            ([gzip(&idx(&[5], &[0; 5])), gzip(&[0])].concat(), "there are more"),
            (gzip(&idx(&[1 << 20, 1 << 20], &[0; 4])), "there are 4"),
            (idx(&[u32::MAX, u32::MAX, u32::MAX], &[]), "announces"),
            (vec![0, 0, 9, 1, 0, 0, 0, 0], "begins with"),
            (vec![0x1f, 0x8b, 0, 0, 0], "gz"),
        ] {
            let error = read_idx(folder.put("wrong", bytes)).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("wrong") || why == "gz", "{error}");
        }
        assert!(matches!(IdxDataSetIterator::new(&images, &labels, 2, 2), Err(Error::IndexOutOfRange { .. })));
        assert!(IdxDataSetIterator::new(folder.0.join("none"), &labels, 3, 2).is_err());
    });
}

#[test]
fn csv_is_read_line_by_line_and_faults_name_the_line() {
    both(|| {
        let folder = Folder::new();
        let good = folder.put("good", "1;\"2\";3\n\n4;5;6\r\n7;8;9");
        let labels = CsvLabels::Columns(1..3);
        let mut batches = CsvDataSetIterator::new(&good, labels, 2).unwrap().with_delimiter(';');
        for _ in 0..2 {
            let all: Vec<DataSet> = (&mut batches).collect::<Result<_>>().unwrap();
            let all = DataSet::merge(&all).unwrap();
            assert_eq!(all.features.to_vec2::<f32>().unwrap(), [[1.], [4.], [7.]]);
            assert_eq!(all.labels.to_vec2::<f32>().unwrap(), [[2., 3.], [5., 6.], [8., 9.]]);
            batches.reset().unwrap();
        }
        // As Excel writes it; of a file that begins with a line of names, the mark goes with that.
        for (text, skip) in
            [("\u{feff}1,\"2\"\r\n3,4\r\n", 0), ("\u{feff}\r\n1,2\r\n\r\n3,4", 0), ("\u{feff}a,b\r\n1,2\n3,4", 1)]
        {
            let path = folder.put("marked", text);
            let mut batches =
                CsvDataSetIterator::new(&path, CsvLabels::None, 5).unwrap().with_skip_lines(skip).unwrap();
            for _ in 0..2 {
                let all = batches.next().unwrap().unwrap();
                assert_eq!(all.features.to_vec2::<f32>().unwrap(), [[1., 2.], [3., 4.]], "{text:?}");
                batches.reset().unwrap();
            }
        }
        // A line of names in Latin-1, which nobody reads.
        let path = folder.put("names", b"Gr\xf6\xdfe,b\n1,2\n3,4\n");
        let mut batches = CsvDataSetIterator::new(&path, CsvLabels::None, 5).unwrap().with_skip_lines(1).unwrap();
        assert_eq!(batches.next().unwrap().unwrap().features.to_vec2::<f32>().unwrap(), [[1., 2.], [3., 4.]]);
        for (text, labels, why) in [
            ("1,2\n3,x\n", CsvLabels::None, "line 2: column 1 has `x`"),
            ("1,2\n3\n", CsvLabels::None, "line 2: 1 columns, where the first row has 2"),
            ("1,3\n", CsvLabels::Class { column: 1, classes: 3 }, "line 1: 3 is none of 3 classes"),
            ("1,0.5\n", CsvLabels::Class { column: 1, classes: 3 }, "0.5 is none"),
            ("1,2\n", CsvLabels::Class { column: 2, classes: 3 }, "labels are looked for in column 2"),
            ("1,2\n", CsvLabels::Class { column: usize::MAX, classes: 3 }, "labels are looked for in column"),
            ("\u{fffd},2\n", CsvLabels::None, "no number"),
            ("1,2\n\u{feff}3,4\n", CsvLabels::None, "no number"),
            // As many columns in each row, and none of the file's.
            ("\"1,234\",2\n\"5,678\",3\n", CsvLabels::None, "line 1: column 0 has `\"1`, whose quotation marks"),
            ("1,2\n3,4\"\n", CsvLabels::None, "line 2: column 1 has `4\"`, whose quotation marks"),
            ("1,\"\n", CsvLabels::None, "line 1: column 1 has `\"`, whose quotation marks"),
            ("1,2\n3,-1e39\n", CsvLabels::None, "line 2: column 1 has `-1e39`, which is too large for f32"),
        ] {
            let path = folder.put("bad", text);
            let batches = CsvDataSetIterator::new(&path, labels, 5).unwrap();
            let error = batches.collect::<Result<Vec<DataSet>>>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("bad"), "{error}");
        }
        for none in [(3, 3), (0, 0), (usize::MAX, 1)].map(|(from, to)| from..to) {
            let error = CsvDataSetIterator::new(&good, CsvLabels::Columns(none.clone()), 5).unwrap_err();
            assert!(matches!(error, Error::Argument { argument: "labels", .. }), "{error}");
            assert!(error.to_string().contains(&format!("labels is {none:?}")), "{error}");
        }
        assert!(
            CsvDataSetIterator::new(folder.put("bytes", [0xff, 0xfe, b'\n']), CsvLabels::None, 1)
                .unwrap()
                .next()
                .unwrap()
                .is_err()
        );
    });
}

#[test]
fn npy_is_read() {
    both(|| {
        let folder = Folder::new();
        let (x, y) = (folder.0.join("x.npy"), folder.0.join("y.npy"));
        full(2., &[5, 3]).write_npy(&x).unwrap();
        full(1., &[5, 1]).write_npy(&y).unwrap();
        let batches = ArrayDataSetIterator::from_npy(&x, &y, 2).unwrap();
        assert_eq!(batches.map(|batch| batch.unwrap().num_examples()).collect::<Vec<_>>(), [2, 2, 1]);
        assert!(ArrayDataSetIterator::from_npy(&x, folder.0.join("none"), 2).is_err());
    });
}

#[test]
fn normalised_numbers_have_the_range_that_was_asked_for_and_go_back() {
    both(|| {
        let mut dice = Dice(7);
        for dims in [vec![12, 3], vec![12, 3, 5], vec![12, 3, 2, 2]] {
            let count = dims.iter().product::<usize>();
            let x = Tensor::from_vec((0..count).map(|_| dice.below(1000) as f64).collect(), &dims[..], &Device::Cpu);
            let x = x.unwrap();
            let all = DataSet::new(x.clone(), x.affine(3., -2.).unwrap()).unwrap();
            let columns = |x: &Tensor| {
                let rows = x.transpose(0, 1).unwrap().contiguous().unwrap().reshape((3, count / 3)).unwrap();
                rows.to_vec2::<f64>().unwrap()
            };
            for mut normalizer in [Normalizer::standardize(), Normalizer::min_max(-1., 2.)].map(Normalizer::with_labels)
            {
                assert!(normalizer.transform(&all).unwrap_err().to_string().contains("fit()"));
                let mut batches = ArrayDataSetIterator::new(all.clone(), 5).unwrap();
                normalizer.fit(&mut batches).unwrap();
                let read = Normalizer::from_json(&normalizer.to_json()).unwrap();
                assert_eq!(read, normalizer, "to the last bit");
                let made = read.transform(&all).unwrap();
                for column in [columns(&made.features), columns(&made.labels)].concat() {
                    let n = column.len() as f64;
                    let (mean, least) = (column.iter().sum::<f64>() / n, column.iter().copied().fold(9., f64::min));
                    let largest = column.iter().copied().fold(-9., f64::max);
                    let variance = column.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
                    let standard = mean.abs() < 1e-10 && (variance - 1.).abs() < 1e-10;
                    assert!(standard || (least + 1.).abs() < 1e-10 && (largest - 2.).abs() < 1e-10);
                }
                let back = |a: &Tensor, b: &Tensor| {
                    let off = a.sub(b).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f64>().unwrap();
                    assert!(off < 1e-9, "{off}");
                };
                back(&read.revert_features(&made.features).unwrap(), &all.features);
                back(&read.revert_labels(&made.labels).unwrap(), &all.labels);
                assert!(read.transform_features(&full(0., &[2, 4])).is_err());
            }
        }
    });
}

#[test]
fn what_a_mask_leaves_out_is_not_looked_at() {
    both(|| {
        let x = Tensor::new([[[1f64, 3., 1e9]], [[5., 1e9, 1e9]]], &Device::Cpu).unwrap();
        let mask = Tensor::new([[1f64, 1., 0.], [1., 0., 0.]], &Device::Cpu).unwrap();
        let batch = DataSet::with_masks(x.clone(), x.clone(), Some(mask), None).unwrap();
        let mut normalizer = Normalizer::min_max(0., 1.);
        normalizer.fit(&mut ListDataSetIterator::new(vec![batch])).unwrap();
        let made = normalizer.transform_features(&x).unwrap().to_vec::<f64>().unwrap();
        assert_eq!((made[0], made[1], made[3]), (0., 0.5, 1.));
        // A NaN that counts is neither the least nor the largest number.
        let odd = Tensor::new([[1f64], [f64::NAN], [3.]], &Device::Cpu).unwrap();
        let rows = |mask: Option<[f64; 3]>| {
            let mask = mask.map(|mask| Tensor::new(mask, &Device::Cpu).unwrap());
            ListDataSetIterator::new(vec![DataSet::with_masks(odd.clone(), odd.clone(), mask, None).unwrap()])
        };
        for mut one in [Normalizer::min_max(0., 1.), Normalizer::standardize()] {
            assert!(matches!(one.fit(&mut rows(None)), Err(Error::Invalid { .. })));
            one.fit(&mut rows(Some([1., 0., 1.]))).unwrap();
        }
        let mut nothing = Normalizer::standardize();
        assert!(nothing.fit(&mut ListDataSetIterator::new(vec![])).is_err());
        for text in ["", "{}", "[1]", "{\"kind\":\"min_max\",\"range\":[]}"] {
            assert!(Normalizer::from_json(text).is_err());
        }
    });
}

/// Columns whose numbers are large beside how they differ: seconds since 1970, and a sensor's counts.
#[test]
fn numbers_far_from_zero_keep_their_digits() {
    both(|| {
        let numbers = |start: f64| (0..5).map(|i| start + f64::from(i)).collect::<Vec<f64>>();
        let of = |all: Vec<f64>, dtype| Tensor::from_vec(all, (5, 1), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let (seconds, counts) = (of(numbers(1.7e9), DType::I64), of(numbers(1e6), DType::F32));
        let two = Tensor::cat(&[&counts, &of(numbers(0.), DType::F32)], 1).unwrap();
        for x in [seconds, counts, two] {
            let columns = x.dim(1).unwrap();
            let batch = DataSet::new(x.clone(), x.clone()).unwrap();
            for (mut normalizer, start, step) in
                [(Normalizer::min_max(0., 1.), 0., 0.25), (Normalizer::standardize(), -SQRT_2, FRAC_1_SQRT_2)]
            {
                normalizer.fit(&mut ListDataSetIterator::new(vec![batch.clone()])).unwrap();
                let y = normalizer.transform_features(&x).unwrap();
                assert_eq!(y.dtype(), DType::F32);
                for (place, y) in y.to_vec::<f32>().unwrap().into_iter().enumerate() {
                    let wanted = start + step * (place / columns) as f64;
                    let off = (f64::from(y) - wanted).abs();
                    assert!(off < 1e-6, "{y} at {place} of {:?}, and not {wanted}", x.dtype());
                }
            }
        }
    });
}

#[test]
fn a_saved_normaliser_is_the_same() {
    both(|| {
        let folder = Folder::new();
        let path = folder.0.join("normaliser.json");
        let normalizer = Normalizer::image(-1., 1., 255.);
        normalizer.save(&path).unwrap();
        assert_eq!(Normalizer::load(&path).unwrap(), normalizer);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing else is left");
        let error = Normalizer::load(folder.0.join("none")).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
        let x = Tensor::new([[0u8, 255]], &Device::Cpu).unwrap();
        let batches = ListDataSetIterator::new(vec![DataSet::new(x.clone(), x).unwrap()]);
        let made = NormalizingIterator::new(batches, normalizer).next().unwrap().unwrap();
        assert_eq!(made.features.to_vec::<f32>().unwrap(), [-1., 1.]);
    });
}

#[test]
fn batches_made_ahead_come_in_order_in_every_epoch() {
    both(|| {
        for prefetch in [0, 1, 2, 8, 100] {
            let mut batches = AsyncDataSetIterator::with_prefetch(source(100), prefetch).unwrap();
            assert!(batches.async_supported());
            for _ in 0..5 {
                let mut count = 0;
                for batch in &mut batches {
                    assert_batch(&batch.unwrap(), count);
                    count += 1;
                }
                assert_eq!(count, 100);
                assert!(batches.next().is_none());
                batches.reset().unwrap();
            }
            // In the middle, while the producer waits for a place.
            for batch in (&mut batches).take(50) {
                batch.unwrap();
            }
            batches.reset().unwrap();
            assert_eq!(batches.map(|batch| assert_batch(&batch.unwrap(), 0)).take(1).count(), 1);
        }
    });
}

/// How far the thread had come when it was reset decides nothing.
#[test]
fn orders_of_shuffled_batches_made_ahead_are_those_of_the_source() {
    both(|| {
        let x = Tensor::arange(0f64, 20., &Device::Cpu).unwrap().reshape((20, 1)).unwrap();
        let all = DataSet::new(x.clone(), x).unwrap();
        let shuffled = || ArrayDataSetIterator::new(all.clone(), 3).unwrap().shuffled(9).unwrap();
        let order = |batches: &mut dyn DataIterator<DataSet>, most: usize| -> Vec<f64> {
            let some = batches.take(most).map(|batch| batch.unwrap().features.to_vec::<f64>().unwrap());
            some.collect::<Vec<_>>().concat()
        };
        for round in 0..40 {
            let (mut plain, mut ahead) = (shuffled(), AsyncDataSetIterator::with_prefetch(shuffled(), 2).unwrap());
            for most in [0, 0, 2, 99, round % 4, 99, 1, 99] {
                assert_eq!(order(&mut ahead, most), order(&mut plain, most));
                ahead.reset().unwrap();
                plain.reset().unwrap();
            }
        }
    });
}

#[test]
fn batches_that_are_kept_stay_whole() {
    both(|| {
        let mut batches = AsyncDataSetIterator::with_prefetch(source(60), 2).unwrap();
        let all: Vec<DataSet> = (&mut batches).collect::<Result<_>>().unwrap();
        let kept = all[30].detach().unwrap();
        batches.reset().unwrap();
        let clone = all[7].clone();
        drop(batches);
        all.iter().enumerate().for_each(|(n, batch)| assert_batch(batch, n));
        drop(all);
        assert_batch(&clone, 7);
        assert_batch(&kept, 30);
    });
}

/// The arrays of a batch that is gone, ring or not, are never read as something else.
#[test]
fn an_array_without_its_batch_is_whole_or_an_error() {
    both(|| {
        let batches = AsyncDataSetIterator::with_prefetch(source(60), 2).unwrap();
        let arrays: Vec<Tensor> = batches.map(|batch| batch.unwrap().features).collect();
        let mut ended = 0;
        for (n, array) in arrays.iter().enumerate() {
            match array.to_vec::<f64>() {
                Ok(all) => assert!(all.iter().all(|&x| x == n as f64)),
                Err(_) => ended += 1,
            }
        }
        assert!(ended > 0, "the ring came round");
    });
}

#[test]
fn batches_made_ahead_are_whole_in_every_debug_mode() {
    both(|| {
        for mode in [DebugMode::SpillEverything, DebugMode::BypassEverything, DebugMode::Disabled] {
            Workspace::set_debug_mode(mode);
            let batches = AsyncDataSetIterator::with_prefetch(source(30), 2).unwrap();
            let all = batches.collect::<Result<Vec<DataSet>>>();
            Workspace::set_debug_mode(DebugMode::Disabled);
            all.unwrap().iter().enumerate().for_each(|(n, batch)| assert_batch(batch, n));
        }
    });
}

#[test]
fn memory_of_the_ring_is_constant_over_many_batches() {
    both(|| {
        let mut batches = AsyncDataSetIterator::with_prefetch(source(usize::MAX), 3).unwrap();
        let mut peak = |count: usize| {
            Device::Cpu.reset_peak();
            for batch in (&mut batches).take(count) {
                batch.unwrap();
            }
            Device::Cpu.memory().peak
        };
        peak(200);
        let settled = peak(200);
        for _ in 0..10 {
            assert!(peak(1000) <= settled, "more than in the 200 batches before");
        }
    });
}

#[test]
fn several_inputs_are_made_ahead_too() {
    both(|| {
        let source = FnDataIterator::new(|n| {
            let of = |more: f64| Tensor::full(n as f64 + more, (1 + n % 5, 40), &Device::Cpu);
            let masks = vec![Some(of(0.75)?)];
            let made = MultiDataSet::with_masks(vec![of(0.)?, of(0.25)?], vec![of(0.5)?], vec![], masks)?;
            Ok((n < 100).then_some(made))
        });
        let mut batches = AsyncMultiDataSetIterator::with_prefetch(source, 2).unwrap();
        for _ in 0..10 {
            for (n, batch) in (&mut batches).enumerate() {
                let batch = batch.unwrap();
                let all = [&batch.features[0], &batch.features[1], &batch.labels[0]];
                for (array, more) in all.into_iter().zip([0., 0.25, 0.5]) {
                    assert!(array.to_vec::<f64>().unwrap().iter().all(|&x| x == n as f64 + more));
                }
                assert_eq!(batch.labels_masks[0].as_ref().unwrap().to_vec::<f64>().unwrap()[0], n as f64 + 0.75);
            }
            batches.reset().unwrap();
        }
    });
}

/// How a producer ends at an element.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Error,
    Panic,
    Memory,
}

#[test]
fn faults_of_a_producer_come_after_what_was_before_them_and_a_reset_goes_on() {
    both(|| {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        for fault in [Fault::Error, Fault::Panic, Fault::Memory] {
            for at in [0, 1, 2, 9] {
                for prefetch in [0, 1, 4] {
                    let rounds = Arc::new(AtomicUsize::new(0));
                    let count = Arc::clone(&rounds);
                    let source = FnDataIterator::new(move |n| match fault {
                        _ if n == 0 && count.fetch_add(1, SeqCst) > 0 && n == at => batch(0, 3).map(Some),
                        _ if n == 10 => Ok(None),
                        _ if n != at || count.load(SeqCst) > 1 => batch(n, 3).map(Some),
                        Fault::Error => Err(Error::msg("element of no luck")),
                        Fault::Panic => panic!("element of no luck"),
                        Fault::Memory => {
                            Tensor::zeros((1usize << 40, 1usize << 10), DType::F64, &Device::Cpu).map(|_| None)
                        }
                    });
                    let mut batches = AsyncDataSetIterator::with_prefetch(source, prefetch).unwrap();
                    for n in 0..at {
                        assert_batch(&batches.next().unwrap().unwrap(), n);
                    }
                    let error = batches.next().unwrap().unwrap_err();
                    match fault {
                        Fault::Memory => assert!(matches!(error, Error::OutOfMemory(_)), "{error}"),
                        _ => assert!(error.to_string().contains("element of no luck"), "{error}"),
                    }
                    assert!(batches.next().is_none() && batches.next().is_none());
                    batches.reset().unwrap();
                    let all = batches.map(|batch| batch.unwrap()).enumerate();
                    assert_eq!(all.map(|(n, batch)| assert_batch(&batch, n)).count(), 10, "{fault:?} at {at}");
                }
            }
        }
        std::panic::set_hook(quiet);
    });
}

#[test]
fn an_iterator_that_was_used_up_is_reset_by_the_first_pass() {
    both(|| {
        let mut list = ListDataSetIterator::new((0..15).map(|n| batch(n, 2).unwrap()).collect());
        assert_eq!(list.by_ref().count(), 15);
        assert_eq!(AsyncDataSetIterator::new(list).unwrap().count(), 15);
        assert_eq!(AsyncDataSetIterator::new(ListDataSetIterator::new(vec![])).unwrap().count(), 0);
    });
}

/// What it keeps over an epoch, its reset makes.
struct Keeps {
    kept: Option<Tensor>,
    left: usize,
}

impl Iterator for Keeps {
    type Item = Result<DataSet>;

    fn next(&mut self) -> Option<Result<DataSet>> {
        let kept = self.kept.as_ref()?;
        self.left = self.left.checked_sub(1)?;
        Some(kept.affine(1., 1.).and_then(|x| DataSet::new(x.clone(), x)))
    }
}

impl DataIterator<DataSet> for Keeps {
    fn reset(&mut self) -> Result<()> {
        (self.kept, self.left) = (Some(Tensor::full(1f64, (4, 3), &Device::Cpu)?), 40);
        Ok(())
    }
}

/// Broken by: a reset of the first pass in the ring, which comes round to what the source keeps.
#[test]
fn what_a_source_makes_when_the_first_pass_resets_it_outlives_the_ring() {
    both(|| {
        let batches = AsyncDataSetIterator::with_prefetch(Keeps { kept: None, left: 0 }, 2).unwrap();
        let whole = |batch: Result<DataSet>| batch.unwrap().features.to_vec::<f64>().unwrap() == [2.; 12];
        assert_eq!(batches.map(whole).collect::<Vec<_>>(), [true; 40]);
    });
}

#[test]
fn one_made_ahead_of_one_made_ahead_is_whole() {
    both(|| {
        let inner = AsyncDataSetIterator::with_prefetch(source(50), 1).unwrap();
        let outer = AsyncDataSetIterator::with_prefetch(inner, 3).unwrap();
        let all: Vec<DataSet> = outer.collect::<Result<_>>().unwrap();
        all.iter().enumerate().for_each(|(n, batch)| assert_batch(batch, n));
    });
}

#[test]
fn a_drop_ends_a_producer_that_waits_and_gives_all_back() {
    both(|| {
        gc::collect();
        let before = Device::Cpu.memory().active;
        let (done, ends) = mpsc::channel();
        struct Tells(mpsc::Sender<()>);
        impl Drop for Tells {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let tells = Tells(done);
        let source = FnDataIterator::new(move |n| {
            let _ = &tells;
            batch(n, 3).map(Some)
        });
        let mut batches = AsyncDataSetIterator::with_prefetch(source, 1).unwrap();
        batches.next().unwrap().unwrap();
        drop(batches);
        ends.recv_timeout(Duration::from_secs(20)).unwrap();
        gc::collect();
        assert_eq!(Device::Cpu.memory().active, before);
    });
}

#[test]
fn a_shield_hands_on_what_it_gets_and_is_not_made_ahead() {
    both(|| {
        let mut shield = AsyncShieldDataSetIterator::new(source(5));
        assert!(!shield.async_supported() && source(5).async_supported());
        let refused = AsyncDataSetIterator::new(AsyncShieldDataSetIterator::new(source(5)));
        assert!(matches!(refused, Err(Error::Argument { argument: "source", .. })), "{refused:?}");
        for _ in 0..2 {
            assert_eq!((&mut shield).count(), 5);
            shield.reset().unwrap();
        }
        let mut boxed: Box<dyn DataIterator<DataSet>> = Box::new(shield);
        assert_eq!(boxed.by_ref().count(), 5);
        boxed.reset().unwrap();
        assert!(!boxed.async_supported());
    });
}
