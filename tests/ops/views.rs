//! Views: values, whether the storage is shared, and bytes that count once; joins, which copy.

use std::cell::Cell;

use ndgc::{D, DType, Device, Error, NdManager, Result, Shape, Tensor, gc};

use crate::ops::cases::for_numbers;
use crate::ops::reference::{Host, Native};
use crate::ops::support::{active, assert_same, each, error, put, shares, values};

fn base(device: &Device, dims: &[usize]) -> (Tensor, Host<f32>) {
    let mut next = 0.0;
    let host = Host::from_fn(dims, |_| {
        next += 1.0;
        next
    });
    (put(&host, device), host)
}

/// Asserts what a view holds, that it shares the storage of `of`, and that it took no bytes.
#[track_caller]
fn view(what: &str, of: &Tensor, make: impl FnOnce() -> Result<Tensor>, want: &Host<f32>) {
    let device = of.device();
    let before = active(device);
    let view = make().unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(active(device), before, "{what} took bytes");
    assert_same(what, &view, want);
    assert!(shares(of, &view), "{what} has bytes of its own");
    assert_eq!(view.storage_bytes().unwrap(), of.storage_bytes().unwrap(), "{what}: the storage is one");
    assert!(!view.is_same(of) && !of.is_unique().unwrap(), "{what} is an array of its own on shared bytes");
}

#[test]
fn views_hold_what_they_should_and_share_the_bytes() {
    each(|device| {
        let (a, h) = base(device, &[2, 3, 4]);
        view("reshape", &a, || a.reshape((6, 4)), &h.reshape(&[6, 4]));
        view("reshape with a hole", &a, || a.reshape((4, (), 2)), &h.reshape(&[4, 3, 2]));
        view("flatten", &a, || a.flatten(0, 1), &h.reshape(&[6, 4]));
        view("flatten_all", &a, || a.flatten_all(), &h.reshape(&[24]));
        view("flatten_from", &a, || a.flatten_from(1), &h.reshape(&[2, 12]));
        view("transpose", &a, || a.transpose(0, 2), &h.permute(&[2, 1, 0]));
        view("transpose from the end", &a, || a.transpose(-1, D::Minus2), &h.permute(&[0, 2, 1]));
        view("t", &a, || a.t(), &h.permute(&[0, 2, 1]));
        view("permute", &a, || a.permute((2, 0, 1)), &h.permute(&[2, 0, 1]));
        view("permute from the end", &a, || a.permute((D::Minus1, 0, D::Minus2)), &h.permute(&[2, 0, 1]));
        view("permute by negative numbers", &a, || a.permute(vec![-1, 0, -2]), &h.permute(&[2, 0, 1]));
        let order = &Shape::from([2, 0, 1]);
        view("permute by a shape", &a, || a.permute(*order), &h.permute(&[2, 0, 1]));
        view("permute by a lent shape", &a, || a.permute(order), &h.permute(&[2, 0, 1]));
        view("narrow", &a, || a.narrow(1, 1, 2), &h.narrow(1, 1, 2));
        view(
            "narrow_step",
            &a,
            || a.narrow_step(2, 3, 2, -2),
            &Host::from_fn(&[2, 3, 2], |i| h.at(&[i[0], i[1], 3 - 2 * i[2]])),
        );
        view("flip", &a, || a.flip(&[1]), &Host::from_fn(&[2, 3, 4], |i| h.at(&[i[0], 2 - i[1], i[2]])));
        view("unfold", &a, || a.unfold(2, 2, 1), &Host::from_fn(&[2, 3, 3, 2], |i| h.at(&[i[0], i[1], i[2] + i[3]])));
        view("get", &a, || a.get(1), &h.get(0, 1));
        view("get_on_dim", &a, || a.get_on_dim(D::Minus1, 3), &h.get(2, 3));
        view("unsqueeze", &a, || a.unsqueeze(1), &h.reshape(&[2, 1, 3, 4]));
        view("unsqueeze at the end", &a, || a.unsqueeze(D::Minus1), &h.reshape(&[2, 3, 4, 1]));
        view("detach", &a, || a.try_detach(), &h);
        let (row, r) = base(device, &[1, 4]);
        view("squeeze", &row, || row.squeeze(0), &r.reshape(&[4]));
        view("broadcast_as", &row, || row.broadcast_as((2, 3, 4)), &r.broadcast(&[2, 3, 4]));
        view("expand", &row, || row.expand((5, 4)), &r.broadcast(&[5, 4]));
    });
}

#[test]
fn views_of_views_lead_to_the_same_elements() {
    each(|device| {
        let (a, h) = base(device, &[4, 5, 6]);
        let inner = a.narrow(0, 1, 3).unwrap().narrow(2, 2, 3).unwrap();
        let host = h.narrow(0, 1, 3).narrow(2, 2, 3);
        view(
            "a view of views",
            &a,
            || inner.transpose(0, 2)?.get(1)?.t(),
            &host.permute(&[2, 1, 0]).get(0, 1).permute(&[1, 0]),
        );
        view(
            "a broadcast of a view",
            &a,
            || a.get(2)?.get(3)?.broadcast_as((2, 6)),
            &h.get(0, 2).get(0, 3).broadcast(&[2, 6]),
        );
        view("axes split in a view", &a, || inner.reshape((3, 5, 3, 1)), &host.reshape(&[3, 5, 3, 1]));
        view(
            "rows joined in a view",
            &a,
            || a.narrow(1, 1, 2)?.get(0)?.flatten_all(),
            &h.narrow(1, 1, 2).get(0, 0).reshape(&[12]),
        );
    });
}

#[test]
fn a_reshape_that_strides_cannot_express_copies() {
    each(|device| {
        let (a, h) = base(device, &[3, 4]);
        let flat = a.t().unwrap().flatten_all().unwrap();
        assert_same("a transposed matrix in a row", &flat, &h.permute(&[1, 0]).reshape(&[12]));
        assert!(!shares(&a, &flat), "the copy has bytes of its own");
        let middle = a.narrow(1, 1, 2).unwrap();
        assert_same("columns in a row", &middle.reshape(6).unwrap(), &h.narrow(1, 1, 2).reshape(&[6]));
        assert!(shares(&a, &middle.contiguous().unwrap().reshape((3, 2)).unwrap()) == middle.is_contiguous());
    });
}

#[test]
fn copies_of_wide_arrays_in_another_order_of_axes_hold_the_same() {
    let orders: [(&[usize], &[usize]); 7] = [
        (&[70, 45], &[1, 0]),
        (&[32, 64], &[1, 0]),
        (&[3, 40, 33], &[0, 2, 1]),
        (&[3, 40, 33], &[2, 1, 0]),
        (&[40, 3, 65], &[2, 0, 1]),
        (&[2, 33, 3, 34], &[0, 3, 2, 1]),
        (&[2, 33, 3, 34], &[3, 0, 1, 2]),
    ];
    each(|device| {
        for (dims, order) in orders {
            let (a, h) = base(device, dims);
            let (turned, want) = (a.permute(order).unwrap(), h.permute(order));
            assert_same("contiguous", &turned.contiguous().unwrap(), &want);
            let bytes = turned.to_dtype(DType::U8).unwrap();
            let of_bytes = a.to_dtype(DType::U8).unwrap().permute(order).unwrap().contiguous().unwrap();
            assert_eq!(values::<u8>(&of_bytes), values::<u8>(&bytes));
            // Into a part of another array, from a part.
            let last = order.len() - 1;
            let some = want.dims[last] - 1;
            let to = Tensor::zeros(&want.dims[..], DType::F32, device).unwrap();
            to.narrow(last, 0, some).unwrap().copy_(&turned.narrow(last, 1, some).unwrap()).unwrap();
            assert_same("copy_", &to.narrow(last, 0, some).unwrap(), &want.narrow(last, 1, some));
            assert!(values::<f32>(&to.narrow(last, some, 1).unwrap()).iter().all(|value| *value == 0.));
        }
    });
}

#[test]
fn contiguous_and_unchanged_views_are_handles_of_the_same_array() {
    each(|device| {
        let (a, _) = base(device, &[2, 3]);
        assert!(a.contiguous().unwrap().is_same(&a));
        assert!(a.squeeze(0).unwrap().is_same(&a), "an axis of another size stays");
        assert!(a.to_dtype(DType::F32).unwrap().is_same(&a));
        assert!(a.to_device(device).unwrap().is_same(&a));
        assert_eq!(a.handle_count(), 1, "all of them are gone");
        assert!(!a.t().unwrap().contiguous().unwrap().is_same(&a));
        assert!(!a.duplicate().unwrap().is_same(&a));
    });
}

#[test]
fn bytes_of_views_count_once_and_stay_until_the_last_of_them_goes() {
    each(|device| {
        let start = active(device);
        let a = Tensor::zeros((64, 64), DType::F32, device).unwrap();
        let whole = active(device) - start;
        let views = [a.t().unwrap(), a.get(3).unwrap(), a.reshape(4096).unwrap(), a.detach()];
        assert_eq!(active(device) - start, whole, "views take no bytes");
        drop(a);
        assert_eq!(active(device) - start, whole, "views keep the bytes");
        let [first, second, third, last] = views;
        first.close();
        drop((second, third));
        assert_eq!(active(device) - start, whole, "another view is open");
        assert_eq!(values::<f32>(&last).len(), 4096);
        drop(last);
        assert_eq!(active(device), start);
    });
}

#[test]
fn a_manager_counts_the_bytes_of_views_once() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let a = manager.zeros((16, 16), DType::F64).unwrap();
        let own = manager.bytes_used();
        let t = a.t().unwrap();
        assert_eq!((manager.array_count(), manager.bytes_used()), (2, own));
        assert_eq!(t.manager().unwrap().uuid(), manager.uuid(), "a view belongs to the owner of its array");
        let sub = manager.new_sub_manager().unwrap();
        let row = a.get_in(&sub, 1).unwrap();
        assert_eq!(row.manager().unwrap().uuid(), sub.uuid(), "unless another owner is named");
        assert_eq!((manager.array_count(), sub.array_count()), (2, 1));
        let out = t.detach();
        assert!(out.is_detached().unwrap());
        assert_eq!(manager.array_count(), 2);
        manager.close().unwrap();
        assert_eq!(values::<f64>(&out).len(), 256, "a detached view outlives the manager");
    });
}

#[test]
fn cat_and_stack_join_every_form_along_every_axis() {
    fn body<T: Native>(device: &Device) {
        let host = |seed| Host::<T>::sample(&[2, 3], seed);
        let (a, b, c) = (host(1), host(2), host(3));
        let turned = |h: &Host<T>| put(&h.permute(&[1, 0]), device).t().unwrap();
        let row = Host::<T>::sample(&[1, 3], 4);
        let (ta, tb, tc) = (put(&a, device), turned(&b), put(&c, device));
        for axis in 0..2 {
            let got = Tensor::cat(&[&ta, &tb, &tc], axis).unwrap();
            assert_same(&format!("cat along {axis}"), &got, &Host::cat(&[&a, &b, &c], axis));
        }
        for axis in 0..3 {
            let dims: Vec<usize> = [&[2, 3][..axis], &[1], &[2, 3][axis..]].concat();
            let parts = [a.reshape(&dims), b.reshape(&dims)];
            let got = Tensor::stack(&[&ta, &tb], axis).unwrap();
            assert_same(&format!("stack along {axis}"), &got, &Host::cat(&[&parts[0], &parts[1]], axis));
        }
        let wide = put(&row, device).broadcast_as((4, 3)).unwrap();
        let got = Tensor::cat(&[ta.clone(), wide, ta.narrow(0, 0, 0).unwrap()], 0).unwrap();
        assert_same("cat of other sizes", &got, &Host::cat(&[&a, &row.broadcast(&[4, 3])], 0));
        let one = Tensor::cat(&[&ta], 1).unwrap();
        assert_same("cat of one", &one, &a);
        assert!(!one.is_same(&ta));
        let twice = Tensor::cat(&[&ta, &ta], D::Minus1).unwrap();
        assert_same("cat of one array twice", &twice, &Host::cat(&[&a, &a], 1));
    }
    each(|device| for_numbers!(device, body));
}

#[test]
fn a_join_leaves_nothing_but_its_result_with_the_owner_of_the_first() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let a = manager.ones((2, 2), DType::F32).unwrap();
        let b = Tensor::ones((2, 2), DType::F32, device).unwrap();
        let joined = Tensor::stack(&[&a, &b], 0).unwrap();
        assert_eq!(manager.array_count(), 2);
        assert_eq!(joined.manager().unwrap().uuid(), manager.uuid());
        assert!(Tensor::cat(&[&b, &a], 0).unwrap().is_detached().unwrap());
        assert_eq!(manager.array_count(), 2);
        manager.close().unwrap();
    });
}

/// From the third time on that it is asked for, another array.
struct Changing(Cell<usize>, [Tensor; 2]);

impl AsRef<Tensor> for Changing {
    fn as_ref(&self) -> &Tensor {
        let asked = self.0.replace(self.0.get() + 1);
        &self.1[usize::from(asked >= 2)]
    }
}

#[test]
fn a_join_of_what_has_fewer_rows_when_it_is_copied_than_when_they_were_counted_is_refused() {
    // Broken by: rows of the result that no part was copied to, which held what the memory had before.
    each(|device| {
        let part = |rows: [usize; 2]| {
            Changing(Cell::new(0), rows.map(|rows| Tensor::ones((rows, 2), DType::F32, device).unwrap()))
        };
        let why = error(Tensor::cat(&[part([2, 2]), part([3, 1])], 0));
        assert!(matches!(why, Error::ShapeMismatch { op: "cat", .. }), "{why}");
        assert_eq!(Tensor::cat(&[part([2, 2]), part([3, 3])], 0).unwrap().dims(), [5, 2]);
    });
}

#[test]
fn empty_and_scalar_arrays_have_views_too() {
    each(|device| {
        let empty = Tensor::zeros((2, 0, 3), DType::F32, device).unwrap();
        assert_eq!(empty.t().unwrap().dims(), [2, 3, 0]);
        assert_eq!(empty.reshape((0, 7)).unwrap().dims(), [0, 7]);
        assert_eq!(empty.get(1).unwrap().dims(), [0, 3]);
        assert_eq!(empty.narrow(1, 0, 0).unwrap().elem_count(), 0);
        assert_eq!(empty.flatten_all().unwrap().dims(), [0]);
        let scalar = Tensor::new(5f32, device).unwrap();
        assert_eq!(values::<f32>(&scalar.broadcast_as((2, 2)).unwrap()), [5.; 4]);
        assert_eq!(scalar.unsqueeze(0).unwrap().dims(), [1]);
        assert_eq!(scalar.reshape((1, 1)).unwrap().reshape(()).unwrap().to_scalar::<f32>().unwrap(), 5.);
        assert_eq!(scalar.flatten_all().unwrap().dims(), [1]);
        assert_eq!(Tensor::stack(&[&scalar, &scalar], 0).unwrap().dims(), [2]);
    });
}

#[test]
fn where_there_is_nothing_to_merge_or_to_pick_the_result_is_the_array_as_in_candle() {
    each(|device| {
        let (a, h) = base(device, &[2, 3]);
        assert!(a.flatten(1, 0).unwrap().is_same(&a) && a.flatten(1, 1).unwrap().is_same(&a));
        assert!(a.flatten_from(1).unwrap().is_same(&a) && a.flatten_to(0).unwrap().is_same(&a));
        let scalar = a.get(1).unwrap().get(2).unwrap();
        assert!(scalar.get(0).unwrap().is_same(&scalar) && scalar.get(7).unwrap().is_same(&scalar));
        // With a manager it is a view, and the array stays with its owner.
        let manager = NdManager::new_base_manager(device).unwrap();
        let own = scalar.get_in(&manager, 0).unwrap();
        assert!(!own.is_same(&scalar) && shares(&scalar, &own) && scalar.is_detached().unwrap());
        assert_eq!((manager.array_count(), values::<f32>(&own)), (1, vec![h.at(&[1, 2])]));
        manager.close().unwrap();
        let closed = a.get(0).unwrap();
        closed.close();
        assert!(matches!(error(closed.flatten(0, 0)), Error::StaleArray(_)));
    });
}

#[test]
fn views_out_of_range_are_errors() {
    each(|device| {
        let (a, _) = base(device, &[2, 3]);
        let before = (active(device), gc::stats().live);
        assert!(matches!(error(a.reshape((4, 2))), Error::Reshape { elem_count: 6, hole: None, .. }));
        assert!(matches!(error(a.reshape((4, ()))), Error::Reshape { hole: Some(1), .. }));
        assert!(matches!(error(a.transpose(0, 2)), Error::DimOutOfRange { op: "transpose", dim: 2, .. }));
        assert!(matches!(error(a.get(0).unwrap().t()), Error::DimOutOfRange { .. }));
        assert!(matches!(error(a.permute((0, 0))), Error::Argument { op: "permute", .. }));
        assert!(matches!(error(a.permute(0)), Error::Argument { op: "permute", .. }));
        assert!(matches!(error(a.permute((1, D::Minus1))), Error::Argument { op: "permute", .. }));
        assert!(matches!(error(a.permute((0, 2))), Error::DimOutOfRange { op: "permute", dim: 2, .. }));
        assert!(matches!(error(a.permute([0usize; 7])), Error::RankTooLarge { op: "permute", rank: 7, .. }));
        assert!(matches!(error(a.squeeze(D::Minus(0))), Error::DimOutOfRange { op: "squeeze", .. }));
        assert!(matches!(error(a.unsqueeze(D::Minus(0))), Error::DimOutOfRange { op: "unsqueeze", .. }));
        assert!(matches!(error(a.sum(D::Minus(0))), Error::DimOutOfRange { op: "sum", .. }));
        assert!(matches!(error(a.permute((D::Minus(0), 0))), Error::DimOutOfRange { op: "permute", dim: 2, .. }));
        assert!(matches!(
            error(a.narrow(1, 2, 2)),
            Error::Narrow { op: "narrow", axis: 1, start: 2, len: 2, dim: 3, .. }
        ));
        assert!(matches!(error(a.narrow(0, 1, usize::MAX)), Error::Narrow { .. }));
        assert!(matches!(error(a.get(2)), Error::IndexOutOfRange { op: "get", index: 2, dim: 2, .. }));
        assert!(matches!(error(a.squeeze(5)), Error::DimOutOfRange { op: "squeeze", .. }));
        assert!(matches!(error(a.unsqueeze(4)), Error::DimOutOfRange { op: "unsqueeze", .. }));
        assert!(matches!(error(a.broadcast_as((2, 4))), Error::ShapeMismatch { op: "broadcast_as", .. }));
        assert!(matches!(error(a.broadcast_as(3)), Error::ShapeMismatch { .. }));
        assert!(matches!(error(a.flatten(1, 2)), Error::DimOutOfRange { op: "flatten", dim: 2, .. }));
        let six = a.reshape((1, 1, 1, 1, 2, 3)).unwrap();
        assert!(matches!(error(six.unsqueeze(0)), Error::RankTooLarge { op: "unsqueeze", rank: 7, .. }));
        drop(six);
        assert!(matches!(error(Tensor::cat::<Tensor, usize>(&[], 0)), Error::Argument { op: "cat", .. }));
        assert!(matches!(error(Tensor::stack::<Tensor, usize>(&[], 0)), Error::Argument { op: "stack", .. }));
        let row = a.get(0).unwrap();
        assert!(matches!(error(Tensor::cat(&[&a, &row], 0)), Error::ShapeMismatch { op: "cat", .. }));
        assert!(matches!(error(Tensor::stack(&[&a, &row], 0)), Error::ShapeMismatch { op: "stack", .. }));
        drop(row);
        assert_eq!((active(device), gc::stats().live), before, "an error makes nothing");
    });
}
