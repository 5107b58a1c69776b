//! What programs written for candle rely on, beyond the operations: constructors, conversions, indices that pad,
//! refusals.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ndgc::backend::BackendStorage;
use ndgc::cpu_backend::{binary_map, unary_map};
use ndgc::nn::{Linear, Module, kv_cache::ConcatKvCache};
use ndgc::scalar::Scalar;
use ndgc::test_utils::assert_tensor_eq;
use ndgc::{
    CpuStorage, CustomOp1, CustomOp2, DType, Device, Error, F8E4M3, FloatDType, IndexOp, InplaceOp2, InplaceOp3,
    IntDType, Layout, Result, Shape, StridedBlocks, Tensor, Var, WithDType, bf16, f16, map_dtype, utils,
};

use crate::common::text_of;
use crate::ops::support::{alone, each, error, f64s, values};

#[test]
fn nested_vectors_slices_and_arrays_make_arrays() {
    each(|device| {
        let is = |made: Result<Tensor>, dims: &[usize]| {
            let made = made.unwrap();
            assert_eq!(made.dims(), dims);
            let counted: Vec<f32> = (0..made.elem_count()).map(|i| i as f32).collect();
            assert_eq!(values::<f32>(&made), counted);
        };
        let (a, b): (&[f32], &[f32]) = (&[0., 1.], &[2., 3.]);
        is(Tensor::new(vec![a, b], device), &[2, 2]);
        is(Tensor::new(vec![vec![0f32, 1.], vec![2., 3.]], device), &[2, 2]);
        is(Tensor::new(vec![vec![vec![0f32], vec![1.]], vec![vec![2.], vec![3.]]], device), &[2, 2, 1]);
        is(Tensor::new(vec![vec![vec![vec![0f32, 1., 2.]]]], device), &[1, 1, 1, 3]);
        is(Tensor::new([[[[0f32, 1.]], [[2., 3.]]]], device), &[1, 2, 1, 2]);
        let list = vec![[0f32, 1.], [2., 3.]];
        is(Tensor::new(&list, device), &[2, 2]);
        is(Tensor::new([[0f32; 3]; 0], device), &[0, 3]);
        is(Tensor::new::<&[f32; 0]>(&[], device), &[0]);
        is(Tensor::new(vec![Vec::<f32>::new(); 2], device), &[2, 0]);
        is(Var::new([[[[0f32; 1]; 1]; 1]; 1], device).map(|x| x.as_tensor().clone()), &[1; 4]);
        let ragged = error(Tensor::new(vec![vec![1f32], vec![2., 3.]], device));
        assert!(matches!(ragged, Error::ShapeMismatch { op: "new", .. }), "{ragged}");
        let deep = error(Tensor::new(vec![vec![vec![1f32], vec![2.]], vec![vec![3.]]], device));
        assert!(matches!(deep, Error::ShapeMismatch { op: "new", .. }), "{deep}");
        let nothing = error(Tensor::new(Vec::<Vec<f32>>::new(), device));
        assert!(matches!(nothing, Error::Shape { op: "new", .. }), "{nothing}");
        let seven = error(Tensor::new([[[[[[[1f32]]]]]]], device));
        assert!(matches!(seven, Error::RankTooLarge { op: "new", rank: 7, .. }), "{seven}");
    });
}

#[test]
fn a_shape_with_a_hole_makes_an_array_of_a_vector() {
    each(|device| {
        let x = Tensor::from_vec(vec![1f32, 2., 3., 4., 5., 6.], ((), 2), device).unwrap();
        assert_eq!(x.to_vec2::<f32>().unwrap(), [[1., 2.], [3., 4.], [5., 6.]]);
        assert_eq!(Tensor::from_slice::<_, u8>(&[1, 2, 3, 4], (2, (), 1), device).unwrap().dims(), [2, 2, 1]);
        let odd = error(Tensor::from_vec(vec![1u8, 2, 3], (2, ()), device));
        assert!(matches!(odd, Error::Reshape { elem_count: 3, .. }), "{odd}");
    });
}

#[test]
fn numbers_and_vectors_become_arrays_and_come_back() {
    fn round<T>(value: T)
    where
        Tensor: TryFrom<T, Error = Error> + TryFrom<Vec<T>, Error = Error> + for<'a> TryFrom<&'a [T], Error = Error>,
        T: WithDType + TryFrom<Tensor, Error = Error> + for<'a> TryFrom<&'a Tensor, Error = Error>,
        Vec<T>: TryFrom<Tensor, Error = Error>,
        Vec<Vec<T>>: for<'a> TryFrom<&'a Tensor, Error = Error>,
        Vec<Vec<Vec<T>>>: for<'a> TryFrom<&'a Tensor, Error = Error>,
    {
        let scalar = Tensor::try_from(value).unwrap();
        assert_eq!((scalar.dims(), scalar.dtype()), (&[][..], T::DTYPE));
        assert_eq!((T::try_from(&scalar).unwrap(), T::try_from(scalar).unwrap()), (value, value));
        let list = Tensor::try_from(vec![value; 2]).unwrap();
        assert_eq!(Vec::<Vec<T>>::try_from(&list.reshape((1, 2)).unwrap()).unwrap(), [[value; 2]]);
        assert_eq!(Vec::<Vec<Vec<T>>>::try_from(&list.reshape((2, 1, 1)).unwrap()).unwrap(), [[[value]]; 2]);
        assert!(T::try_from(&list).is_err());
        assert_eq!(Vec::<T>::try_from(list).unwrap(), [value; 2]);
        assert_eq!(values::<T>(&Tensor::try_from(&[value][..]).unwrap()), [value]);
        let of = Scalar::from(value);
        assert_eq!((of.dtype(), of.to_f64()), (T::DTYPE, value.to_f64()));
    }
    alone(|| {
        round(true);
        round(7u8);
        round(7u16);
        round(7u32);
        round(u64::MAX);
        round(-7i8);
        round(-7i16);
        round(-7i32);
        round(i64::MIN);
        round(f16::PI);
        round(bf16::PI);
        round(0.1f32);
        round(0.1f64);
        assert!(u8::try_from(&Tensor::try_from(1.5f32).unwrap()).is_err(), "a number of another type");
        assert_eq!(Scalar::zero(DType::I16), Scalar::I16(0));
        assert_eq!(Scalar::one(DType::BF16), Scalar::BF16(bf16::ONE));
    });
}

#[test]
fn const_set_takes_a_scalar_and_sets_views() {
    each(|device| {
        let x = Tensor::zeros((2, 3), DType::U32, device).unwrap();
        x.const_set(42u32.into()).unwrap();
        x.i((.., 2)).unwrap().const_set(Scalar::U32(7)).unwrap();
        assert_eq!(x.to_vec2::<u32>().unwrap(), [[42, 42, 7], [42, 42, 7]]);
    });
}

#[test]
fn a_gradient_is_found_by_the_variables_id() {
    each(|device| {
        let (x, y) = (Var::new(3f32, device).unwrap(), Var::new(1f32, device).unwrap());
        let grads = x.sqr().unwrap().backward().unwrap();
        assert_eq!(grads.get_id(x.id()).unwrap().to_scalar::<f32>().unwrap(), 6.);
        assert!(grads.get_id(y.id()).is_none());
        assert_eq!(device.supports_bf16(), device.is_cuda());
        assert_eq!(device.bf16_default_to_f32() == DType::BF16, device.is_cuda());
    });
}

#[test]
fn blocks_cover_what_a_layout_reaches_in_its_order() {
    alone(|| {
        let x = Tensor::arange(0u32, 24, &Device::Cpu).unwrap().reshape((2, 3, 4)).unwrap();
        let places = |x: &Tensor| -> Vec<usize> {
            match x.strided_blocks() {
                StridedBlocks::SingleBlock { start_offset, len } => (start_offset..start_offset + len).collect(),
                StridedBlocks::UniformBlocks { start_offset, block_len, count, src_stride } => (0..count as isize)
                    .flat_map(|i| {
                        let start = start_offset.wrapping_add_signed(i * src_stride);
                        start..start + block_len
                    })
                    .collect(),
                StridedBlocks::MultipleBlocks { block_start_index, block_len } => {
                    block_start_index.flat_map(|start| start..start + block_len).collect()
                }
            }
        };
        let views = [
            x.clone(),
            x.get(1).unwrap(),
            x.i((.., 1)).unwrap(),
            x.t().unwrap(),
            x.transpose(0, 1).unwrap(),
            x.i((.., 1..2, 1..3)).unwrap(),
            x.flip(&[0]).unwrap(),
            x.flip(&[0, 2]).unwrap(),
            x.i((0, 0, 0)).unwrap(),
            x.narrow(1, 0, 0).unwrap(),
        ];
        for view in &views {
            let want: Vec<usize> = values::<u32>(view).into_iter().map(|at| at as usize).collect();
            assert_eq!(view.strided_index().len(), want.len());
            assert_eq!((view.strided_index().collect::<Vec<_>>(), places(view)), (want.clone(), want), "{view:?}");
        }
        assert!(matches!(views[1].strided_blocks(), StridedBlocks::SingleBlock { start_offset: 12, len: 12 }));
        let uniform = views[2].strided_blocks();
        assert!(
            matches!(uniform, StridedBlocks::UniformBlocks { start_offset: 4, block_len: 4, count: 2, src_stride: 12 }),
            "{uniform:?}"
        );
        assert!(matches!(views[4].strided_blocks(), StridedBlocks::MultipleBlocks { block_len: 4, .. }));
    });
}

#[test]
fn axes_orders_and_bytes_are_told() {
    each(|device| {
        let x = Tensor::new([[1u16, 2, 3], [4, 5, 256]], device).unwrap();
        assert_eq!((x.normalize_axis(-1).unwrap(), x.normalize_axis(0).unwrap()), (1, 0));
        assert!(matches!(error(x.normalize_axis(2)), Error::DimOutOfRange { .. }));
        let turned = x.t().unwrap();
        assert!(turned.is_fortran_contiguous() && !turned.is_contiguous() && !x.is_fortran_contiguous());
        assert!(x.dims0().is_err() && x.get(0).unwrap().get(1).unwrap().dims0().is_ok());
        let mut bytes = Vec::new();
        turned.write_bytes(&mut bytes).unwrap();
        let want = [1u16, 4, 2, 5, 3, 256].map(u16::to_ne_bytes).concat();
        assert_eq!(bytes, want, "in the order of the view");
    });
}

struct Mapped;

impl CustomOp1 for Mapped {
    fn name(&self) -> &'static str {
        "mapped"
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((map_dtype!("mapped", s, |s| unary_map(s, l, |x| x + x), (F32, F64)), *l.shape()))
    }
}

impl CustomOp2 for Mapped {
    fn name(&self) -> &'static str {
        "mapped"
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout, t: &CpuStorage, m: &Layout) -> Result<(CpuStorage, Shape)> {
        let sums = binary_map(l, m, s.as_slice::<f32>()?, t.as_slice::<f32>()?, |x, y| x + y);
        Ok((CpuStorage::F32(sums), *l.shape()))
    }
}

#[test]
fn maps_of_storages_follow_the_layout_and_name_other_dtypes() {
    alone(|| {
        let x = Tensor::new([[1f32, 2.], [3., 4.]], &Device::Cpu).unwrap();
        assert_eq!(values::<f32>(&x.apply_op1_no_bwd(&Mapped).unwrap()), [2., 4., 6., 8.]);
        assert_eq!(values::<f32>(&x.apply_op2_no_bwd(&x.t().unwrap(), &Mapped).unwrap()), [2., 5., 5., 8.]);
        let refused = error(x.to_dtype(DType::I64).unwrap().apply_op1_no_bwd(&Mapped));
        assert!(matches!(refused, Error::UnsupportedDTypeForOp(DType::I64, "mapped")), "{refused}");
        assert_eq!(refused.to_string(), "unsupported dtype i64 for op mapped");
        let turned = Layout::contiguous(Shape::from((2, 2))).permute(&[1, 0]);
        assert_eq!(unary_map(&[1, 2, 3, 4], &turned, |x| x * 10), [10, 30, 20, 40]);
        assert_eq!(unary_map(&[1, 2, 3], &turned, |x| x), [1, 3, 2], "a storage that is too short");
        let storage = CpuStorage::U8(vec![1, 2]);
        let copy = storage.try_clone(&Layout::contiguous(2)).unwrap().to_cpu_storage().unwrap();
        assert_eq!((BackendStorage::dtype(&copy), copy.as_slice::<u8>().unwrap()), (DType::U8, &[1, 2][..]));
        let variable = Var::new(1f32, &Device::Cpu).unwrap();
        let no_gradient = error(variable.apply_op1(Mapped).and_then(|y| y.backward().map(drop)));
        assert!(matches!(no_gradient, Error::BackwardNotSupported { op: "mapped", .. }), "{no_gradient}");
        let why = "backward is not supported for mapped; implement `bwd` of that operation";
        assert_eq!(text_of(&no_gradient), why);
    });
}

struct AddTo;

impl InplaceOp2 for AddTo {
    fn name(&self) -> &'static str {
        "add_to"
    }

    fn cpu_fwd(&self, s: &mut CpuStorage, _: &Layout, t: &CpuStorage, _: &Layout) -> Result<()> {
        let added = t.as_slice::<f32>()?;
        s.as_mut_slice::<f32>()?.iter_mut().zip(added).for_each(|(x, y)| *x += y);
        Ok(())
    }
}

impl InplaceOp3 for AddTo {
    fn name(&self) -> &'static str {
        "add_to"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<()> {
        Ok(())
    }
}

#[test]
fn what_is_read_and_written_at_once_is_refused_where_candle_refuses() {
    alone(|| {
        let x = Tensor::new([1f32, 2., 3., 4.], &Device::Cpu).unwrap();
        let (low, high) = (x.narrow(0, 0, 2).unwrap(), x.narrow(0, 2, 2).unwrap());
        let own = Tensor::new([10f32, 20.], &Device::Cpu).unwrap();
        for refused in [
            x.slice_set(&x, 0, 0),
            x.slice_set(&low, 0, 2),
            low.inplace_op2(&high, &AddTo),
            low.inplace_op3(&own, &high, &AddTo),
        ] {
            let refused = error(refused);
            assert!(matches!(refused, Error::Argument { argument: "source", .. }), "{refused}");
        }
        low.inplace_op2(&own, &AddTo).unwrap();
        x.slice_set(&own, 0, 2).unwrap();
        assert_eq!(values::<f32>(&x), [11., 22., 10., 20.]);
    });
}

#[test]
fn a_dense_layer_takes_a_bias_that_broadcasts() {
    each(|device| {
        let weight = f64s(device, &[1., 2., 3., 4.], (2, 2));
        let x = f64s(device, &[1., 1., 0., 1.], (2, 2));
        let plain = x.matmul(&weight.t().unwrap()).unwrap();
        let one = Tensor::new(0.5f64, device).unwrap();
        for dims in [&[][..], &[1], &[1, 1], &[2, 1]] {
            let bias = one.broadcast_as(dims).unwrap();
            let layer = Linear::new(weight.clone(), Some(bias.clone()));
            assert_eq!(values::<f64>(&layer.forward(&x).unwrap()), [3.5, 7.5, 2.5, 4.5], "{dims:?}");
            let bias = Var::from_tensor(&bias).unwrap();
            let layer = Linear::new(weight.clone(), Some(bias.as_tensor().clone()));
            let grads = layer.forward(&x).unwrap().sum_all().unwrap().backward().unwrap();
            let grad = grads.get(&bias).unwrap();
            assert_eq!((grad.dims(), values::<f64>(grad).iter().sum::<f64>()), (dims, 4.));
        }
        assert_eq!(values::<f64>(&plain), [3., 7., 2., 4.]);
        let wrong = error(x.linear(&weight, Some(&f64s(device, &[0.; 3], 3))));
        assert!(matches!(wrong, Error::ShapeMismatch { op: "linear", .. }), "{wrong}");
    });
}

/// Indices of each integer dtype, of which the second is the largest there is.
fn padded(device: &Device) -> Vec<Tensor> {
    fn list<T: ndgc::NdLiteral<Elem = T> + WithDType>(device: &Device, largest: T) -> Tensor {
        Tensor::new([T::from_i128(1), largest, T::from_i128(0)], device).unwrap()
    }
    vec![
        list(device, u8::MAX),
        list(device, u16::MAX),
        list(device, u32::MAX),
        list(device, u64::MAX),
        list(device, i8::MAX),
        list(device, i16::MAX),
        list(device, i32::MAX),
        list(device, i64::MAX),
    ]
}

#[test]
fn the_largest_index_pads_it_reads_zero_and_writes_nothing() {
    each(|device| {
        let x = f64s(device, &[1., 2., 3., 4.], (2, 2));
        let src = f64s(device, &[10., 20., 30., 40., 50., 60.], (3, 2));
        for ids in padded(device) {
            let name = ids.dtype();
            assert_eq!(values::<f64>(&x.index_select(&ids, 0).unwrap()), [3., 4., 0., 0., 1., 2.], "{name}");
            assert_eq!(values::<f64>(&x.index_select(&ids, 1).unwrap()), [2., 0., 1., 4., 0., 3.], "{name}");
            let turned = x.t().unwrap().index_select(&ids, 0).unwrap();
            assert_eq!(values::<f64>(&turned), [2., 4., 0., 0., 1., 3.], "{name}");
            assert_eq!(values::<f64>(&x.embedding(&ids).unwrap()), [3., 4., 0., 0., 1., 2.], "{name}");
            assert_eq!(values::<f64>(&x.index_add(&ids, &src, 0).unwrap()), [51., 62., 13., 24.], "{name}");
            let across = src.t().unwrap();
            assert_eq!(values::<f64>(&x.index_add(&ids, &across, 1).unwrap()), [51., 12., 63., 24.], "{name}");
            let wide = ids.unsqueeze(1).unwrap().broadcast_as((3, 2)).unwrap();
            assert_eq!(values::<f64>(&x.gather(&wide, 0).unwrap()), [3., 4., 0., 0., 1., 2.], "{name}");
            assert_eq!(values::<f64>(&x.scatter_add(&wide, &src, 0).unwrap()), [51., 62., 13., 24.], "{name}");
            assert_eq!(values::<f64>(&x.scatter(&wide, &src, 0).unwrap()), [50., 60., 10., 20.], "{name}");
            let variable = Var::from_tensor(&x).unwrap();
            let y = (variable.index_select(&ids, 0).unwrap() * &src).unwrap();
            let grads = (y.sum_all().unwrap() + variable.gather(&wide, 0).unwrap().sum_all().unwrap()).unwrap();
            let grads = grads.backward().unwrap();
            assert_eq!(values::<f64>(grads.get(&variable).unwrap()), [51., 61., 11., 21.], "{name}");
        }
        // An axis that has the index: it is read.
        let long = Tensor::arange(0f32, 256., device).unwrap();
        let last = Tensor::new([255u8], device).unwrap();
        assert_eq!(values::<f32>(&long.index_select(&last, 0).unwrap()), [255.]);
        assert_eq!(values::<f32>(&long.gather(&last, 0).unwrap()), [255.]);
    });
}

#[test]
fn a_product_refuses_shapes_before_dtypes() {
    each(|device| {
        let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, device).unwrap();
        let (f, h) = (DType::F32, DType::F16);
        let shapes = error(zeros(&[0, 2], f).matmul(&zeros(&[3, 4], h)));
        assert!(shapes.to_string().starts_with("shape mismatch in matmul, lhs: [0, 2], rhs: [3, 4]"), "{shapes}");
        let dtypes = error(zeros(&[0, 2], f).matmul(&zeros(&[2, 3], h)));
        assert!(dtypes.to_string().starts_with("dtype mismatch in matmul"), "{dtypes}");
    });
}

#[test]
fn groups_are_divided_by_the_root_as_candle_divides_them() {
    each(|device| {
        if device.is_cuda() {
            return; // there sums are in f64, and the last digit is another
        }
        // Rows of 16 whole numbers that add up to nothing: means and squares are exact, whatever the order of a sum.
        let pairs = (1..=32i16).flat_map(|i| [f32::from(i * 7 % 29), -f32::from(i * 7 % 29)]).collect::<Vec<_>>();
        let x = Tensor::from_vec(pairs, (2, 4, 8), device).unwrap();
        let (scale, shift) =
            (Tensor::ones(4, DType::F32, device).unwrap(), Tensor::zeros(4, DType::F32, device).unwrap());
        let got = x.group_norm(2, &scale, &shift, 1e-5).unwrap();
        let centred = x.reshape((4, 16)).unwrap();
        let squares = centred.sqr().unwrap().mean_keepdim(1).unwrap();
        let root = (squares + 1e-5).unwrap().sqrt().unwrap();
        let near = centred.broadcast_div(&root).unwrap();
        let differences = values::<f32>(&got).iter().zip(values::<f32>(&near)).filter(|(a, b)| **a != *b).count();
        let by = centred.broadcast_mul(&root.recip().unwrap()).unwrap();
        let others = values::<f32>(&got).iter().zip(values::<f32>(&by)).filter(|(a, b)| **a != *b).count();
        assert!(differences == 0 && others > 0, "{differences} differ from the quotient, {others} from the product");
    });
}

#[test]
fn assert_tensor_eq_tells_arrays_apart() {
    each(|device| {
        let x = Tensor::ones(3, DType::F32, device).unwrap();
        assert_tensor_eq(&x, &Tensor::full(1f32, 3, device).unwrap()).unwrap();
        assert!(assert_tensor_eq(&x, &Tensor::ones(3, DType::U8, device).unwrap()).is_err());
        let other = Tensor::new([1f32, 2., 1.], device).unwrap();
        let differ = catch_unwind(AssertUnwindSafe(|| assert_tensor_eq(&x, &other)));
        assert!(differ.is_err());
    });
}

#[test]
fn programs_are_generic_over_floats_and_over_integers() {
    fn float<T: FloatDType>() {
        let x = Tensor::rand(T::from_f64(1.), T::from_f64(2.), 3, &Device::Cpu).unwrap();
        assert!(x.dtype() == T::DTYPE && T::DTYPE.is_float());
    }
    fn integer<T: IntDType>(largest: usize) {
        assert!(T::DTYPE.is_int() && T::from_f64(1.).is_true() && !T::from_f64(0.).is_true());
        assert_eq!(T::from_i128(largest as i128).as_usize(), largest);
    }
    alone(|| {
        float::<F8E4M3>();
        float::<f16>();
        float::<bf16>();
        float::<f32>();
        float::<f64>();
        integer::<u8>(255);
        integer::<u16>(0xffff);
        integer::<u32>(0xffff_ffff);
        integer::<u64>(usize::MAX);
        integer::<i8>(127);
        integer::<i16>(0x7fff);
        integer::<i32>(0x7fff_ffff);
        integer::<i64>(isize::MAX as usize);
    });
}

#[test]
fn what_programs_print_of_the_machine_is_there() {
    // What this was compiled for, as the library was.
    assert_eq!(utils::with_avx(), cfg!(target_feature = "avx2"));
    assert_eq!(utils::with_f16c(), cfg!(target_feature = "f16c"));
    assert_eq!(utils::with_neon(), cfg!(target_feature = "neon"));
    assert!(!utils::with_simd128());
}

#[test]
fn keys_and_values_that_were_joined_can_be_exchanged() {
    each(|device| {
        let mut cache = ConcatKvCache::new(0);
        assert!(cache.k_mut().is_none() && cache.v_mut().is_none());
        let (k, v) = (f64s(device, &[1., 2.], 2), f64s(device, &[3., 4.], 2));
        cache.append(&k, &v).unwrap();
        // The last position taken back.
        for part in 0..2 {
            let all = if part == 0 { cache.k_mut() } else { cache.v_mut() };
            let all = all.unwrap();
            *all = all.narrow(0, 0, 1).unwrap();
        }
        assert_eq!(cache.current_seq_len(), 1);
        let (k, v) = cache.append(&f64s(device, &[5.], 1), &f64s(device, &[6.], 1)).unwrap();
        assert_eq!((values::<f64>(&k), values::<f64>(&v)), (vec![1., 5.], vec![3., 6.]));
    });
}

/// As docs/candle.md says.
#[test]
fn gradients_at_ties_and_ends_are_those_of_pytorch() {
    each(|device| {
        let gradient = |data: &[f64], f: &dyn Fn(&Var) -> Result<Tensor>| {
            let x = Var::from_vec(data.to_vec(), data.len(), device).unwrap();
            let grads = f(&x).unwrap().sum_all().unwrap().backward().unwrap();
            values::<f64>(grads.get(&x).unwrap())
        };
        assert_eq!(gradient(&[1., 3., 3.], &|x| x.max(0)), [0., 0.5, 0.5]);
        assert_eq!(gradient(&[1., 3., 1.], &|x| x.min(0)), [0.5, 0., 0.5]);
        assert_eq!(gradient(&[-1., 0., 1.], &|x| x.relu()), [0., 0., 1.]);
        assert_eq!(gradient(&[-1., 0., 1.], &|x| x.abs()), [-1., 0., 1.]);
        assert_eq!(gradient(&[-1., 0., 1., 2.], &|x| x.clamp(0., 1.)), [0., 1., 1., 0.]);
        assert_eq!(gradient(&[2., 2., 2., 2.], &|x| x.reshape((1, 1, 2, 2))?.max_pool2d(2)), [1., 0., 0., 0.]);
        let (ids, src) = (Tensor::new([1u32], device).unwrap(), f64s(device, &[5.], 1));
        assert_eq!(gradient(&[1., 2., 3.], &|x| x.scatter(&ids, &src, 0)), [1., 0., 1.]);
        assert_eq!(gradient(&[1., 2., 3.], &|x| x.scatter_add(&ids, &src, 0)), [1., 1., 1.]);
        let square = Tensor::new([2f64], device).unwrap();
        assert_eq!(gradient(&[-3.], &|x| x.pow(&square)), [-6.]);
    });
}

/// As docs/candle.md says.
#[test]
fn what_candle_does_in_silence_is_refused() {
    each(|device| {
        let whole = Tensor::new([1u32, 2], device).unwrap();
        assert!(matches!(error(whole.mean(0)), Error::UnsupportedDType { op: "mean", .. }));
        assert!(matches!(error(Var::from_tensor(&whole)), Error::UnsupportedDType { .. }));
        let batch = |dims: &[usize]| Tensor::zeros(dims, DType::F32, device).unwrap();
        assert!(matches!(error(batch(&[2, 3, 1, 1]).matmul(&batch(&[3, 2, 1, 1]))), Error::ShapeMismatch { .. }));
        let tenths = Tensor::arange_step(0f64, 1., 0.1, device).unwrap();
        assert_eq!((tenths.elem_count(), values::<f64>(&tenths)[3]), (10, 3. * 0.1));
    });
}
