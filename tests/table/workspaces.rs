//! Every row in a workspace, and on arrays that ended with their cycle.

use ndgc::{DType, Device, Error, Result, Tensor, Workspace, WorkspaceConfig};

use crate::common::{alone, check, devices};
use crate::table::facts::call;
use crate::table::rows::{self, Row};
use crate::table::runs::{Answer, answer, same};
use crate::table::sample::{Form, List, Owner, Sample};

fn config() -> WorkspaceConfig {
    WorkspaceConfig::builder().initial_size(1 << 20).build().unwrap()
}

/// The name of the workspace of a device.
fn name(device: &Device) -> String {
    format!("rows on {device}")
}

/// Operands that ended with their cycle.
fn ended(dtype: DType, device: &Device) -> Sample {
    Workspace::cycle_on(device, &name(device), &config(), || Sample::new(Form::Many, dtype, device, Owner::Handles))
        .unwrap()
}

/// The row that has no error to return, and gives the handle back as it is.
const NO_ERROR: &str = "detach";

/// Whether a row may work all the same: creations of numbers and shapes, none of which gives an array that ended.
fn reads_nothing(row: &Row, list: &List) -> bool {
    row.family == "Creation" && list.iter().all(Tensor::is_open)
}

#[test]
fn every_operation_finds_that_its_operands_ended_with_their_cycle() {
    if crate::common::ran_apart() {
        return;
    }
    alone(|| {
        for device in devices() {
            let mut wrong = Vec::new();
            for dtype in [DType::F32, DType::F64, DType::U32, DType::Bool] {
                let gone = ended(dtype, &device);
                let again = Workspace::enter_on(&device, &name(&device), &config()).unwrap();
                let _same_place = Sample::new(Form::Many, dtype, &device, Owner::Handles).unwrap();
                for row in rows::all().filter(|row| row.name != NO_ERROR) {
                    let open = Sample::new(Form::Many, dtype, &device, Owner::Handles).unwrap();
                    let works = call(row, &open).is_ok();
                    match call(row, &gone) {
                        Err(Error::LeakedArray(_)) => {}
                        Err(_) if !works => {}
                        Ok(list) if reads_nothing(row, &list) => {}
                        other => wrong.push(format!("{} of {dtype}: {other:?}", row.name)),
                    }
                }
                drop(again);
            }
            assert!(wrong.is_empty(), "on {device}, {}:\n{}", wrong.len(), wrong.join("\n"));
            check(&device);
        }
    });
}

/// The operands of a sample, one by one.
const OPERANDS: [fn(&mut Sample) -> &mut Tensor; 18] = [
    |x| &mut x.a,
    |x| &mut x.b,
    |x| &mut x.c,
    |x| &mut x.row,
    |x| &mut x.m,
    |x| &mut x.n,
    |x| &mut x.square,
    |x| &mut x.v,
    |x| &mut x.w,
    |x| &mut x.image,
    |x| &mut x.kernel,
    |x| &mut x.signal,
    |x| &mut x.taps,
    |x| &mut x.heads,
    |x| &mut x.angles,
    |x| &mut x.mask,
    |x| &mut x.ids,
    |x| &mut x.places,
];

/// What the operands hold.
pub(crate) fn held(sample: &mut Sample) -> Vec<Vec<f64>> {
    OPERANDS.map(|operand| operand(sample).to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()).into()
}

#[test]
fn every_operation_finds_a_single_operand_that_ended_and_changes_nothing() {
    alone(|| {
        let (device, dtype) = (Device::Cpu, DType::F32);
        let fresh = || Sample::new(Form::Many, dtype, &device, Owner::Handles).unwrap();
        let (mut gone, before, mut wrong) = (ended(dtype, &device), held(&mut fresh()), Vec::new());
        for row in rows::all().filter(|row| row.name != NO_ERROR && call(row, &fresh()).is_ok()) {
            let (mut mixed, mut read) = (fresh(), 0);
            for operand in OPERANDS {
                std::mem::swap(operand(&mut mixed), operand(&mut gone));
                let answer = call(row, &mixed);
                std::mem::swap(operand(&mut mixed), operand(&mut gone));
                match answer {
                    Ok(_) if row.family == "In place" => mixed = fresh(),
                    Ok(_) => {}
                    Err(Error::LeakedArray(_)) => {
                        read += 1;
                        if held(&mut mixed) != before {
                            wrong.push(format!("{} changed something", row.name));
                            mixed = fresh();
                        }
                    }
                    Err(other) => wrong.push(format!("{}: {other}", row.name)),
                }
            }
            if read == 0 && row.family != "Creation" {
                wrong.push(format!("{} reads nothing", row.name));
            }
        }
        assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    });
}

fn agree(a: &Answer, b: &Answer) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => same(a, b),
        (a, b) => a.is_err() == b.is_err(),
    }
}

#[test]
fn every_operation_gives_the_same_in_a_workspace() {
    alone(|| {
        for device in devices() {
            let mut wrong = Vec::new();
            for dtype in [DType::F32, DType::F16, DType::I64, DType::U8] {
                let outside = Sample::new(Form::Many, dtype, &device, Owner::Handles).unwrap();
                for row in rows::all() {
                    let want = answer(row, &outside, Form::Many);
                    for cycle in 0..2 {
                        let run = || -> Result<Answer> {
                            let inside = Sample::new(Form::Many, dtype, &device, Owner::Handles)?;
                            Ok(answer(row, &inside, Form::Many))
                        };
                        let got = Workspace::cycle_on(&device, &name(&device), &config(), run).unwrap();
                        if !agree(&want, &got) {
                            wrong.push(format!("{} of {dtype}, cycle {cycle}: {got:?}, not {want:?}", row.name));
                        }
                    }
                }
            }
            assert!(wrong.is_empty(), "on {device}, {}:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
            check(&device);
        }
    });
}
