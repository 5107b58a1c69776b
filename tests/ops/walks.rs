//! Random programs over views, against lists of places: what a view reads, what operations make of it, and what writing
//! through it changes. A refusal has to be one that the list explains, and changes nothing.

use ndgc::{DType, Device, Error, Result, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::ops::reference::{Host, indices};
use crate::ops::support::{each, put, values};

/// A view, and for each of its elements, in row-major order, the place of the base that it is.
#[derive(Clone)]
struct View {
    tensor: Tensor,
    places: Host<usize>,
}

impl View {
    fn repeats(&self) -> bool {
        let mut places = self.places.data.clone();
        places.sort_unstable();
        places.windows(2).any(|pair| pair[0] == pair[1])
    }
}

/// A step of a program: what is done, to which view, and numbers that say how.
type Step = [u8; 6];

/// The arguments of a step.
struct Dice<'a>(std::slice::Iter<'a, u8>);

impl Dice<'_> {
    fn below(&mut self, n: usize) -> usize {
        usize::from(*self.0.next().unwrap_or(&0)) % n.max(1)
    }
}

struct World<'d> {
    device: &'d Device,
    base: Vec<f64>,
    views: Vec<View>,
}

/// A view of `from`, as the tensor has it and as the list has it.
fn derived(from: &View, kind: usize, dice: &mut Dice<'_>) -> Option<(Result<Tensor>, Host<usize>)> {
    let (x, h) = (&from.tensor, &from.places);
    let rank = h.dims.len();
    if rank == 0 {
        return Some((x.broadcast_as(2), h.broadcast(&[2])));
    }
    let axis = dice.below(rank);
    let dim = h.dims[axis];
    let with = |len: usize, f: &dyn Fn(usize) -> usize| {
        let mut dims = h.dims.clone();
        dims[axis] = len;
        Host::from_fn(&dims, |mut index| {
            index[axis] = f(index[axis]);
            h.at(&index)
        })
    };
    Some(match kind {
        0 => {
            let start = dice.below(dim + 1);
            let len = dice.below(dim - start + 1);
            (x.narrow(axis, start, len), with(len, &|i| start + i))
        }
        1 => (x.flip(&[axis]), with(dim, &|i| dim - 1 - i)),
        2 if dim > 0 => {
            let (start, step) = (dice.below(dim), dice.below(3) + 1);
            let len = dice.below((dim - start).div_ceil(step) + 1);
            (x.narrow_step(axis, start, len, step as isize), with(len, &|i| start + i * step))
        }
        3 if dim > 0 => {
            let (start, step) = (dice.below(dim), dice.below(3) + 1);
            let len = dice.below(start / step + 2);
            (x.narrow_step(axis, start, len, -(step as isize)), with(len, &|i| start - i * step))
        }
        4 => {
            let other = dice.below(rank);
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(axis, other);
            (x.transpose(axis, other), h.permute(&order))
        }
        5 if dim > 0 => {
            let at = dice.below(dim);
            (x.get_on_dim(axis, at), h.get(axis, at))
        }
        6 if dim > 0 && rank < 5 => {
            let (size, step) = (dice.below(dim) + 1, dice.below(3) + 1);
            let mut dims = h.dims.clone();
            dims[axis] = (dim - size) / step + 1;
            dims.push(size);
            let places = Host::from_fn(&dims, |mut index| {
                let inside = index.pop().unwrap();
                index[axis] = index[axis] * step + inside;
                h.at(&index)
            });
            (x.unfold(axis, size, step), places)
        }
        7 if rank < 5 => {
            let dims = [&[2], &h.dims[..]].concat();
            (x.broadcast_as(dims.as_slice()), h.broadcast(&dims))
        }
        8 if rank < 5 => {
            let dims = [&h.dims[..axis], &[1], &h.dims[axis..]].concat();
            (x.unsqueeze(axis), h.reshape(&dims))
        }
        _ => return None,
    })
}

impl World<'_> {
    fn read(&self, view: &View) -> Host<f64> {
        view.places.map(|place| self.base[place])
    }

    /// What operations make of a view.
    fn check(&self, view: &View, dice: &mut Dice<'_>) {
        let (x, want) = (&view.tensor, self.read(view));
        assert_eq!((x.dims(), values::<f64>(x)), (&want.dims[..], want.data.clone()), "what it reads");
        assert_eq!(values::<f64>(&x.contiguous().unwrap()), want.data, "a copy");
        assert_eq!(values::<f64>(&x.flatten_all().unwrap()), want.data, "in a row");
        let rank = want.dims.len();
        if rank == 0 {
            return;
        }
        let axis = dice.below(rank);
        let sums = want.reduce(&[axis], false, |group| group.iter().sum::<f64>());
        assert_eq!(values::<f64>(&x.sum(axis).unwrap()), sums.data, "sums along axis {axis}");
        let turned = Host::from_fn(&want.dims, |mut index| {
            index[axis] = want.dims[axis] - 1 - index[axis];
            want.at(&index)
        });
        let both: Vec<f64> = want.data.iter().zip(&turned.data).map(|(a, b)| a - b).collect();
        assert_eq!(values::<f64>(&x.sub(&x.flip(&[axis]).unwrap()).unwrap()), both, "minus itself backwards");
        if want.dims[axis] > 0 {
            let ids: Vec<i64> = (0..3).map(|_| dice.below(want.dims[axis]) as i64).collect();
            let picked = Tensor::from_slice(&ids, 3, self.device).unwrap();
            let mut dims = want.dims.clone();
            dims[axis] = 3;
            let entries = Host::from_fn(&dims, |mut index| {
                index[axis] = ids[index[axis]] as usize;
                want.at(&index)
            });
            assert_eq!(values::<f64>(&x.index_select(&picked, axis).unwrap()), entries.data, "entries of axis {axis}");
        }
        if rank == 2 {
            let square = want.matmul(&want.permute(&[1, 0]));
            let got = values::<f64>(&x.matmul(&x.t().unwrap()).unwrap());
            assert!(got.iter().zip(&square.data).all(|(g, w)| (g - w).abs() <= 1e-9 * w.abs().max(1.)), "a product");
        }
    }

    /// Changes what a view reaches, in one of several ways.
    fn write(&mut self, number: usize, dice: &mut Dice<'_>) {
        let view = self.views[number].clone();
        let (x, old) = (&view.tensor, self.read(&view));
        let other = self.views[dice.below(self.views.len())].clone();
        let fresh = Host::from_fn(&old.dims, {
            let mut next = f64::from(dice.below(100) as u32);
            move |_| {
                next += 1.;
                next
            }
        });
        let (changed, new): (Result<()>, Vec<f64>) = match dice.below(5) {
            0 => (x.fill_(5.).map(drop), vec![5.; old.data.len()]),
            1 => (x.affine_(-1., 3.).map(drop), old.data.iter().map(|x| 3. - x).collect()),
            2 => (x.copy_(&put(&fresh, self.device)), fresh.data.clone()),
            3 if other.places.dims == old.dims => {
                let theirs = self.read(&other).data;
                (x.copy_(&other.tensor), theirs)
            }
            3 => (x.slice_assign_(ndgc::s![], &put(&fresh, self.device)), fresh.data.clone()),
            _ => {
                let sum = old.data.iter().zip(&fresh.data).map(|(x, y)| x + y).collect();
                (x.add_(&put(&fresh, self.device)).map(drop), sum)
            }
        };
        match changed {
            Ok(()) => {
                assert!(!view.repeats(), "a write to elements that repeat");
                view.places.data.iter().zip(new).for_each(|(&place, value)| self.base[place] = value);
            }
            Err(Error::Overlap { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn step(&mut self, &[kind, number, rest @ ..]: &Step) {
        let mut dice = Dice(rest.iter());
        let number = usize::from(number) % self.views.len();
        match kind % 14 {
            kind @ 0..=8 => {
                let Some((tensor, places)) = derived(&self.views[number], usize::from(kind), &mut dice) else { return };
                if places.data.len() > 4096 {
                    return;
                }
                let tensor =
                    tensor.unwrap_or_else(|e| panic!("view {kind} of {:?}: {e}", self.views[number].places.dims));
                assert_eq!(tensor.dims(), places.dims);
                self.views.push(View { tensor, places });
            }
            9..=10 => self.check(&self.views[number], &mut dice),
            _ => self.write(number, &mut dice),
        }
    }
}

fn run(program: &[Step], device: &Device) {
    let dims = [3, 4, 5];
    let base: Vec<f64> = (0..60).map(f64::from).collect();
    let tensor = Tensor::from_slice(&base, dims, device).unwrap();
    let places =
        Host { dims: dims.to_vec(), data: indices(&dims).iter().map(|i| (i[0] * 4 + i[1]) * 5 + i[2]).collect() };
    let mut world = World { device, base, views: vec![View { tensor, places }] };
    assert_eq!(world.views[0].tensor.dtype(), DType::F64);
    for step in program {
        world.step(step);
        let whole = &world.views[0];
        assert_eq!(values::<f64>(&whole.tensor), world.base, "the base after {step:?}");
    }
    for view in &world.views {
        world.check(view, &mut Dice([1, 2, 3].iter()));
    }
}

#[test]
fn random_programs_over_views_do_what_lists_of_places_do() {
    if crate::common::ran_apart() {
        return;
    }
    let config = crate::common::random_cases(96);
    let program = proptest::collection::vec(any::<Step>(), 1..40);
    let result = TestRunner::new(config).run(&program, |program| {
        each(|device| run(&program, device));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
