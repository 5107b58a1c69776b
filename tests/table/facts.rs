//! What a row's call takes, found out by calling it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ndgc::{DType, Device, Error, Result, gc};

use crate::counting;
use crate::table::rows::Row;
use crate::table::sample::{Form, List, Owner, Sample};

/// The answer of a call. A panic is a failure of the test that names the row.
#[track_caller]
pub(crate) fn call(row: &Row, sample: &Sample) -> Result<List> {
    sample.device.set_seed(7).expect("a seed");
    let answer = catch_unwind(AssertUnwindSafe(|| (row.run)(sample)));
    let Ok(answer) = answer else {
        panic!("{} panicked on {} of {:?}", row.name, sample.dtype, sample.shape);
    };
    if let Err(error) = &answer {
        assert!(is_typed(error), "{} of {} {:?}: {error:?}", row.name, sample.dtype, sample.shape);
    }
    answer
}

/// Whether an error says by its kind what is wrong with the operands.
fn is_typed(error: &Error) -> bool {
    use Error::*;
    matches!(
        error,
        ShapeMismatch { .. }
            | Shape { .. }
            | Reshape { .. }
            | DimOutOfRange { .. }
            | DuplicateDim { .. }
            | RankTooLarge { .. }
            | Narrow { .. }
            | IndexOutOfRange { .. }
            | ElementCount { .. }
            | DTypeMismatch { .. }
            | UnsupportedDType { .. }
            | Argument { .. }
            | Tracked { .. }
            | Overlap { .. }
            | SizeOverflow { .. }
            | DeviceMismatch { .. }
            | LeakedArray(_)
    )
}

/// The samples of one device, all forms and dtypes.
pub(crate) struct Samples {
    pub(crate) all: Vec<(Form, DType, Sample)>,
}

impl Samples {
    pub(crate) fn new(device: &Device, owner: Owner) -> Self {
        let mut all = Vec::new();
        for form in Form::ALL {
            for dtype in DType::ALL {
                all.push((form, dtype, Sample::new(form, dtype, device, owner).unwrap()));
            }
        }
        Samples { all }
    }
}

/// What is known of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Facts {
    pub(crate) dtypes: Vec<DType>,
    pub(crate) forms: [bool; 4],
    pub(crate) gradient: bool,
    /// Requests to the heap, per call, in steady state.
    pub(crate) requests: f64,
}

/// Dtypes that the call takes, and the forms for any dtype.
pub(crate) fn taken(row: &Row, samples: &Samples) -> (Vec<DType>, [bool; 4]) {
    let (mut dtypes, mut forms) = (Vec::new(), [false; 4]);
    for (form, dtype, sample) in &samples.all {
        if call(row, sample).is_ok() {
            forms[*form as usize] = true;
            if !dtypes.contains(dtype) {
                dtypes.push(*dtype);
            }
        }
    }
    (dtypes, forms)
}

/// Whether a call on variables is recorded. If so, its gradient can be computed.
pub(crate) fn is_recorded(row: &Row, device: &Device) -> bool {
    let sample = Sample::new(Form::Many, DType::F32, device, Owner::Variables).unwrap();
    let Ok(results) = call(row, &sample) else { return false };
    let mut recorded = false;
    for result in results.iter().filter(|result| result.track_op()) {
        let loss = result.sum_all().and_then(|sum| sum.backward());
        assert!(loss.is_ok(), "the gradient of {}: {}", row.name, loss.err().unwrap());
        recorded = true;
    }
    recorded
}

/// Calls before counting: every stock of slots, storages and blocks is filled by then.
const WARM_UP: usize = 150;
const CALLS: u64 = 300;

/// Requests to the heap for each call, on arrays of many axes and of as many as there can be; the larger number.
pub(crate) fn requests(row: &Row) -> f64 {
    let _off = gc::scoped(false);
    let mut most = 0f64;
    for form in [Form::Many, Form::Six] {
        for dtype in [DType::F32, DType::I64, DType::U8] {
            let sample = Sample::new(form, dtype, &Device::Cpu, Owner::Handles).unwrap();
            if (row.run)(&sample).is_err() {
                continue;
            }
            (0..WARM_UP).for_each(|_| drop((row.run)(&sample)));
            let before = counting::requests();
            (0..CALLS).for_each(|_| drop((row.run)(&sample)));
            most = most.max((counting::requests() - before) as f64 / CALLS as f64);
            break;
        }
    }
    most
}
