//! Every row, everywhere.

use ndgc::{DType, Device, Tensor, gc};

use crate::common::{alone, check, devices};
use crate::table::facts::{Samples, call, taken};
use crate::table::rows::{self, Row};
use crate::table::sample::{Form, List, Owner, Sample};
use crate::table::sources;

/// What the results hold, as doubles, with their shapes. An error here is one that the call should have given.
pub(crate) fn contents(list: &List) -> Answer {
    let read = |array: &Tensor| {
        let values =
            array.to_dtype(DType::F64).and_then(|x| x.to_vec::<f64>()).map_err(|e| format!("too late: {e}"))?;
        Ok((array.dtype(), array.dims().to_vec(), values))
    };
    list.iter().map(read).collect()
}

pub(crate) fn same(a: &[(DType, Vec<usize>, Vec<f64>)], b: &[(DType, Vec<usize>, Vec<f64>)]) -> bool {
    near(a, b, 1e-2)
}

/// Whether the shapes and types are the same and the values differ by so much of themselves.
fn near(a: &[(DType, Vec<usize>, Vec<f64>)], b: &[(DType, Vec<usize>, Vec<f64>)], rounding: f64) -> bool {
    let near =
        |(x, y): (&f64, &f64)| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= rounding * x.abs().max(1e-2);
    a.len() == b.len()
        && a.iter().zip(b).all(|((at, ad, av), (bt, bd, bv))| {
            at == bt && ad == bd && av.len() == bv.len() && av.iter().zip(bv).all(near)
        })
}

/// Contents, or the error's kind.
pub(crate) type Answer = Result<Vec<(DType, Vec<usize>, Vec<f64>)>, String>;

/// What a row gives on these operands, or on fresh ones like them if it changes them.
pub(crate) fn answer(row: &Row, sample: &Sample, form: Form) -> Answer {
    let fresh;
    let sample = match row.family {
        "In place" => {
            fresh = Sample::new(form, sample.dtype, &sample.device, Owner::Handles).unwrap();
            &fresh
        }
        _ => sample,
    };
    match call(row, sample) {
        Ok(list) => contents(&list),
        Err(error) => Err(format!("{:?}", std::mem::discriminant(&error))),
    }
}

#[test]
fn every_operation_has_a_row_and_every_row_an_operation() {
    let named: Vec<&str> = rows::all().map(|row| row.name).collect();
    let public = sources::operations();
    let missing: Vec<&String> = public.iter().filter(|name| !named.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "operations without a row in tests/table/rows: {missing:#?}");
    let names = sources::names();
    let gone: Vec<_> = named.iter().filter(|name| !names.contains(name.rsplit("::").next().unwrap())).collect();
    assert!(gone.is_empty(), "rows without an operation: {gone:?}");
    let mut once = named.clone();
    once.sort_unstable();
    assert!(once.windows(2).all(|pair| pair[0] != pair[1]), "a row twice");
}

#[test]
fn every_result_is_made_by_a_line_of_the_caller() {
    alone(|| {
        let mut wrong = std::collections::BTreeSet::new();
        for (form, dtype) in Form::ALL.into_iter().flat_map(|form| DType::ALL.map(|dtype| (form, dtype))) {
            let sample = Sample::new(form, dtype, &Device::Cpu, Owner::Handles).unwrap();
            for row in rows::all().filter(|row| row.family != "In place") {
                for result in call(row, &sample).iter().flat_map(|list| list.iter()) {
                    let site = result.created_at().unwrap();
                    if !site.file().starts_with("tests/") {
                        wrong.insert(format!("{}: {site}", row.name));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn every_operation_gives_the_same_on_every_device_and_in_both_positions_of_the_switch() {
    if crate::common::ran_apart() {
        return;
    }
    alone(|| {
        let (devices, mut wrong) = (devices(), Vec::new());
        for (form, dtype) in Form::ALL.into_iter().flat_map(|form| DType::ALL.map(|dtype| (form, dtype))) {
            let samples: Vec<Sample> =
                devices.iter().map(|d| Sample::new(form, dtype, d, Owner::Handles).unwrap()).collect();
            for row in rows::all() {
                let want = answer(row, &samples[0], form);
                for (sample, on) in samples.iter().flat_map(|sample| [(sample, false), (sample, true)]) {
                    let _switch = gc::scoped(on);
                    let got = answer(row, sample, form);
                    // A sum is rounded where its parts meet, and GPUs have other parts: 8 bits by a sixteenth.
                    let elsewhere = !matches!(sample.device, Device::Cpu | Device::Sim(_));
                    let rounding = if elsewhere && dtype == DType::F8E4M3 { 0.13 } else { 1e-2 };
                    let agree = match (&want, &got) {
                        (_, Err(_)) if matches!(sample.device, Device::Sim(_)) && BY_ADDRESS.contains(&row.name) => {
                            true
                        }
                        (Ok(want), Ok(got)) => near(want, got, rounding),
                        (Err(want), Err(got)) => want == got,
                        _ => false,
                    };
                    let (name, device) = (row.name, &sample.device);
                    if !agree {
                        wrong.push(format!(
                            "{name} of {form:?} {dtype} on {device}, switch {on}: {got:?}, not {want:?}"
                        ));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
        devices.iter().for_each(check);
    });
}

/// Rows that a simulated device refuses, since it has no addresses.
pub(crate) const BY_ADDRESS: [&str; 1] = ["from_dlpack"];

/// Rows whose call makes an operand on the way, which is its owner's like any other.
pub(crate) const MAKES_OPERANDS: [&str; 16] = [
    "squeeze",
    "slice_assign",
    "contiguous",
    "intern",
    "set",
    "adam_step_",
    "gather_nd",
    "index_add",
    "mv",
    "addmm",
    "prelu",
    "group_norm",
    "rope_thd",
    "from_tensor",
    "conv3d",
    "fold",
];

#[test]
fn every_operation_leaves_nothing_but_its_results_with_a_manager() {
    alone(|| {
        for device in devices() {
            gc::collect();
            let (before, mut wrong) = (device.memory().active, Vec::new());
            for row in rows::all() {
                for dtype in [DType::F32, DType::I64] {
                    let sample = Sample::new(Form::Many, dtype, &device, Owner::Manager).unwrap();
                    let own = sample.manager.array_count();
                    let answer = call(row, &sample);
                    let made = answer.as_ref().map_or(0, |list| list.iter().count());
                    let left = sample.manager.array_count() - own;
                    // `nn` is written like a user's program: what it makes on the way is its operands' owner's too.
                    if left > made && row.family != "Functions of `nn`" && !MAKES_OPERANDS.contains(&row.name) {
                        wrong.push(format!("{} leaves {left} arrays for {made} results", row.name));
                    }
                    drop(answer);
                    sample.manager.close().unwrap();
                }
            }
            assert!(wrong.is_empty(), "on {device}: {wrong:#?}");
            gc::collect();
            assert_eq!(device.memory().active, before, "{device}");
        }
    });
}

#[test]
fn every_operation_takes_some_dtype_and_some_form() {
    alone(|| {
        let samples = Samples::new(&Device::Cpu, Owner::Handles);
        for row in rows::all() {
            let (dtypes, forms) = taken(row, &samples);
            assert!(!dtypes.is_empty() && forms.contains(&true), "{} was never called well", row.name);
        }
    });
}
