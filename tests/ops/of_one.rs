//! Functions of one operand, all rows of the table of operations, against their formulas (`formulas.rs` of the kernels'
//! tests): on every form of operand, at the ends of their ranges, each way that they are called, and their gradients.

use ndgc::{DType, Device, Error, Result, Tensor, Workspace, WorkspaceConfig, t};
use ndgc_kernels::kernel::{Domain, UnaryOp};

use crate::ops::cases::{for_floats, for_types};
use crate::ops::formulas::formula;
use crate::ops::gradcheck::{Case, check_all};
use crate::ops::gradcheck_more::spread;
use crate::ops::reference::{Host, Native};
use crate::ops::support::{Operand, assert_same, bits, each, error, f64s, forms, put, shapes};

type Method = fn(&Tensor) -> Result<Tensor>;

/// A method and the row that it is of.
pub(crate) type Function = (&'static str, UnaryOp, Method);

/// How it is called: as it is, of a temporary in `t!`, and in the scope of a workspace.
struct Forms {
    plain: Function,
    temporary: Method,
    scoped: fn(&Workspace, &Tensor) -> Result<Tensor>,
}

macro_rules! of_table {
    ([] $($(#[$doc:meta])* $op:ident [$name:ident $($form:ident)*] $kind:ident $value:tt $gradient:tt)*) => {
        fn table() -> Vec<Forms> {
            vec![$(Forms {
                plain: (stringify!($name), UnaryOp::$op, |x| x.$name()),
                temporary: |x| t!((x * 1).$name()),
                scoped: |workspace, x| workspace.scope(|scope| Ok(scope.lend(x).$name()?.detach())),
            }),*]
        }

        /// The cases of the gradient check.
        pub(crate) fn gradients() -> Vec<Case> {
            vec![$(Case {
                name: stringify!($name),
                how: "of one",
                inputs: vec![points(UnaryOp::$op)],
                run: |x| x[0].$name(),
                step: 1e-5,
                tolerance: 1e-6,
            }),*]
        }
    };
}
ndgc_kernels::for_each_unary!(of_table);

/// Six numbers of the range in which the gradient is checked.
fn points(op: UnaryOp) -> Host<f64> {
    let [low, high] = formula(op).range;
    spread(&[2, 3], low, high)
}

const ALIASES: [Function; 3] = [
    ("ln", UnaryOp::Log, |x| x.ln()),
    ("square", UnaryOp::Sqr, |x| x.square()),
    ("lgamma", UnaryOp::LnGamma, |x| x.lgamma()),
];

/// All methods, those with two names twice.
pub(crate) fn functions() -> impl Iterator<Item = Function> {
    table().into_iter().map(|forms| forms.plain).chain(ALIASES)
}

pub(crate) fn check<T: Native>((name, op, method): Function, x: &Operand<T>) {
    let value = formula(op).value;
    let want = x.host.map(|x| T::from_f64(value(x.to_f64())));
    assert_same(&format!("{name} of {} {}", T::DTYPE, x.form), &method(&x.tensor).unwrap(), &want);
}

#[test]
fn functions_of_one_operand_match_their_formulas_on_every_form() {
    fn body<T: Native>(device: &Device) {
        let all = [forms::<T>(device, 5), shapes(device, 6)];
        for function in functions() {
            all.iter().flatten().for_each(|x| check(function, x));
        }
    }
    each(|device| for_floats!(device, body));
}

/// Numbers at which formulas break; from the 23rd on the sine is the device's own.
const EDGES: [f64; 29] = [
    0.,
    -0.,
    1e-30,
    -1e-30,
    1e-8,
    -1e-8,
    1e-4,
    0.1,
    -0.1,
    0.499,
    0.5,
    -0.5,
    0.75,
    0.999,
    1.,
    -1.,
    1.5,
    -1.5,
    2.5,
    -2.5,
    20.,
    -20.,
    4.2e6,
    1e9,
    -1e9,
    1e17,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

#[test]
fn functions_of_one_operand_match_their_formulas_at_the_ends_of_their_ranges() {
    fn body<T: Native>(device: &Device) {
        for function in functions() {
            let is_angle = ["sin", "cos", "tan"].contains(&function.0);
            let edges = &EDGES[..if is_angle { 22 } else { EDGES.len() }];
            let host = Host::<T>::from_fn(&[edges.len()], |at| T::from_f64(edges[at[0]]));
            check(function, &Operand { form: "edges", tensor: put(&host, device), host });
        }
    }
    each(|device| for_types!(device, body, f32, f64));
}

#[test]
fn small_numbers_keep_their_digits() {
    let accurate = ["expm1", "log1p", "asin", "atan", "sinh", "asinh", "atanh", "tan"];
    each(|device| {
        let small = [1e-12, -1e-12, 3e-5];
        for (name, op, method) in functions().filter(|(name, ..)| accurate.contains(name)) {
            let got: Vec<f64> = method(&f64s(device, &small, 3)).unwrap().to_vec().unwrap();
            for (got, x) in got.iter().zip(small) {
                let want = (formula(op).value)(x);
                assert!((got / want - 1.).abs() < 2e-15, "{name} of {x}: {got}, not {want}");
            }
        }
    });
}

/// So many that a temporary is written to.
#[test]
fn functions_of_one_operand_are_the_same_in_each_form_and_refuse_integers_by_name() {
    each(|device| {
        let many: Vec<f64> = (0..4096).map(|i| f64::from(i * 37 % 4096) / 600. - 3.4).collect();
        let (x, whole) = (f64s(device, &many, 4096), Tensor::ones(3, DType::I64, device).unwrap());
        let workspace = Workspace::for_current_thread_on(device, "FORMS", &WorkspaceConfig::default()).unwrap();
        for Forms { plain: (name, op, method), temporary, scoped } in table() {
            let want = bits(&method(&x).unwrap());
            assert!(bits(&temporary(&x).unwrap()) == want, "{name} of a temporary");
            let free = scoped(&workspace, &x).unwrap();
            assert!(!free.is_attached() && bits(&free) == want, "{name} in a scope");
            if op.domain() == Domain::Float {
                let refused = error(method(&whole));
                assert!(matches!(refused, Error::UnsupportedDType { op, .. } if op == name), "{refused}");
            }
        }
        workspace.destroy().unwrap();
    });
}

#[test]
fn gradients_of_one_operand_match_differences() {
    check_all(gradients());
}
