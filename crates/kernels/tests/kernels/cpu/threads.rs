//! Work that is divided among threads.

use ndgc_kernels::base::dtype::DType;
use ndgc_kernels::cpu::threads::{ELEMENTS_MIN, pool};
use ndgc_kernels::kernel::{BinaryOp, Kernel};
use rayon::ThreadPoolBuilder;

use super::arrays::{Array, run};

/// A sum in place would count an element twice that lies in two pieces. Integers of 16 bits go to the threads as pieces
/// of each operand, those of 32 bits as pieces of the result and where they begin.
#[test]
fn pieces_cover_everything_once() {
    let n = ELEMENTS_MIN + 777;
    let (mut a, mut b) = (Array::line(&(0..n).map(|i| i as i16).collect::<Vec<_>>()), Array::line(&vec![7i16; n]));
    let mut d = Array::line(&vec![0i16; n]);
    let (lhs, rhs) = (a.view(), b.view());
    run(&Kernel::Binary { op: BinaryOp::Add, lhs, rhs, dst: d.view() }).expect("numbers");
    assert!(d.typed::<i16>().iter().enumerate().all(|(i, &d)| d == (i as i16).wrapping_add(7)));
    run(&Kernel::BinaryAssign { op: BinaryOp::Sub, dst: d.view(), rhs: lhs }).expect("numbers");
    assert!(d.typed::<i16>().iter().all(|&d| d == 7));
    let (mut places, mut d) = (Array::new(DType::U32, &[n]), Array::line(&vec![7u32; n]));
    run(&Kernel::Arange { dst: places.view(), start: 0.0, step: 1.0 }).expect("numbers");
    run(&Kernel::BinaryAssign { op: BinaryOp::Add, dst: d.view(), rhs: places.view() }).expect("numbers");
    assert!(d.typed::<u32>().iter().enumerate().all(|(i, &d)| d == i as u32 + 7));
}

#[test]
fn a_worker_of_another_pool_works_alone() {
    let other = ThreadPoolBuilder::new().num_threads(1).build().expect("one thread");
    assert!(other.install(pool).is_none());
}
