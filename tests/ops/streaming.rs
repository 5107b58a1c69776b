//! Sequences in pieces, choices by chance, keys and values side by side.

use ndgc::nn::kv_cache::{InterleavedKvCache, RotatingKvCache};
use ndgc::nn::sampling::gumbel_softmax;
use ndgc::streaming::{BinOp, Map, StreamTensor, StreamingBinOp, StreamingModule};
use ndgc::{D, DType, Device, Error, Tensor};

use crate::common::{alone, each_case};

fn piece(range: std::ops::Range<u32>, device: &Device) -> StreamTensor {
    let len = range.len();
    Tensor::arange(range.start as f32, range.end as f32, device).unwrap().reshape((1, len)).unwrap().into()
}

fn all(piece: &StreamTensor) -> Vec<f32> {
    piece.as_option().map_or_else(Vec::new, |piece| piece.to_vec().unwrap())
}

#[test]
fn a_side_that_is_ahead_waits_for_the_other() {
    each_case(&[false, true], |device| {
        let mut sums = StreamingBinOp::new(BinOp::Add, D::Minus1);
        let nothing = StreamTensor::empty();
        assert_eq!(all(&sums.step(&piece(0..3, device), &nothing).unwrap()), [0f32; 0]);
        assert_eq!(all(&sums.step(&piece(3..4, device), &piece(10..12, device)).unwrap()), [10., 12.]);
        assert_eq!(all(&sums.step(&nothing, &piece(12..15, device)).unwrap()), [14., 16.]);
        assert_eq!(all(&sums.step(&nothing, &nothing).unwrap()), [0f32; 0]);
        // One is left on the right side, until the state goes.
        let mut again = sums.clone();
        assert_eq!(all(&again.step(&piece(4..5, device), &nothing).unwrap()), [18.]);
        sums.reset_state();
        assert_eq!(all(&sums.step(&piece(4..5, device), &nothing).unwrap()), [0f32; 0]);
        // What does not fit changes nothing.
        let other = Tensor::zeros((2, 1), DType::F32, device).unwrap().into();
        assert!(matches!(sums.step(&nothing, &other), Err(Error::ShapeMismatch { .. })));
        assert_eq!(all(&sums.step(&nothing, &piece(1..2, device)).unwrap()), [5.]);
        for (op, want) in [(BinOp::Add, 10.), (BinOp::Sub, 6.), (BinOp::Mul, 16.), (BinOp::Div, 4.)] {
            let mut op = StreamingBinOp::new(op, D::Minus1);
            assert_eq!(all(&op.step(&piece(8..9, device), &piece(2..3, device)).unwrap()), [want]);
        }
    });
}

#[test]
fn pieces_are_cut_and_joined() {
    each_case(&[false], |device| {
        let five = piece(0..5, device);
        let cut = |at| {
            let (a, b) = five.split(1, at).unwrap();
            (all(&a), all(&b))
        };
        assert_eq!(cut(0), (vec![], vec![0., 1., 2., 3., 4.]));
        assert_eq!(cut(2), (vec![0., 1.], vec![2., 3., 4.]));
        assert_eq!(cut(9), (vec![0., 1., 2., 3., 4.], vec![]));
        assert_eq!(all(&five.narrow(1, 3, 9).unwrap()), [3., 4.]);
        assert!(five.narrow(1, 5, 1).unwrap().as_option().is_none());
        let nothing = StreamTensor::empty();
        assert_eq!((nothing.seq_len(7).unwrap(), five.seq_len(1).unwrap()), (0, 5));
        assert!(five.seq_len(7).is_err());
        assert_eq!(all(&five.cat2(&nothing, 1).unwrap()), all(&nothing.cat2(&five, 1).unwrap()));
        assert_eq!((format!("{nothing:?}"), nothing.shape()), ("Empty".to_owned(), None));
        let mut map = Map::from(|x: &Tensor| x.neg());
        assert_eq!(all(&map.step(&piece(1..3, device)).unwrap()), [-1., -2.]);
        assert!(map.step(&nothing).unwrap().as_option().is_none());
    });
}

#[test]
fn choices_have_the_probabilities_of_a_softmax() {
    each_case(&[false], |device| {
        device.set_seed(3).unwrap();
        let logits = Tensor::new([0f32, 1., 2.], device).unwrap();
        let many = logits.broadcast_as((20_000, 3)).unwrap();
        for temperature in [1.0, 0.5] {
            let chosen = gumbel_softmax(&many, temperature, 1).unwrap();
            assert_eq!((chosen.dtype(), chosen.dims()), (DType::U32, &[20_000][..]));
            let chosen = chosen.to_vec::<u32>().unwrap();
            let weights = [0f64, 1., 2.].map(|logit| (logit / temperature).exp());
            for (i, weight) in weights.iter().enumerate() {
                let part = chosen.iter().filter(|&&index| index as usize == i).count() as f64 / 20_000.0;
                assert!((part - weight / weights.iter().sum::<f64>()).abs() < 0.02, "{i} at {temperature}: {part}");
            }
        }
        assert_eq!(gumbel_softmax(&logits, 0.0, 0).unwrap().to_scalar::<u32>().unwrap(), 2);
    });
}

#[test]
fn keys_and_values_lie_side_by_side() {
    alone(|| {
        let mut cache = InterleavedKvCache::new(2);
        assert!(cache.is_empty() && cache.kv().is_none());
        let of = |first: f32| {
            Tensor::arange(first, first + 4., &Device::Cpu).unwrap().reshape((1, 2, 1, 2)).unwrap() // two heads
        };
        cache.append(&of(0.), &of(10.)).unwrap();
        let kv = cache.append(&of(4.), &of(14.)).unwrap();
        assert_eq!((cache.current_seq_len(), cache.head_dim(), kv.dims()), (2, 2, &[2, 2, 4][..]));
        let want = [0., 1., 10., 11., 2., 3., 12., 13., 4., 5., 14., 15., 6., 7., 16., 17.];
        assert_eq!(kv.to_vec::<f32>().unwrap(), want);
        let two = Tensor::zeros((2, 2, 1, 2), DType::F32, &Device::Cpu).unwrap();
        assert!(matches!(cache.append(&two, &two), Err(Error::Shape { .. })));
        assert_eq!(cache.current_seq_len(), 2);
        cache.reset();
        assert!(cache.is_empty());
    });
}

#[test]
fn keys_whose_values_do_not_fit_are_not_taken_in() {
    each_case(&[false, true], |device| {
        let token =
            |x: f32, heads: usize, dtype| Tensor::full(x, (1, heads, 1, 2), device).unwrap().to_dtype(dtype).unwrap();
        let mut cache = RotatingKvCache::new(2, 2);
        // It is full: a place that is written over has what is still to be seen.
        for x in [1., 2.] {
            cache.append(&token(x, 1, DType::F32), &token(-x, 1, DType::F32)).unwrap();
        }
        let closed = token(9., 1, DType::F32);
        closed.close();
        let good = token(9., 1, DType::F32);
        for bad in [token(9., 3, DType::F32), token(9., 1, DType::F64), good.get(0).unwrap(), closed] {
            assert!(cache.append(&good, &bad).is_err() && cache.append(&bad, &good).is_err());
        }
        let seen = |data: Option<Tensor>| data.unwrap().flatten_all().unwrap().to_vec::<f32>().unwrap();
        assert_eq!((cache.k_cache().current_seq_len(), cache.v_cache().current_seq_len()), (2, 2));
        assert_eq!(seen(cache.k().unwrap()), [1., 1., 2., 2.]);
        assert_eq!(seen(cache.v().unwrap()), [-1., -1., -2., -2.]);
    });
}
