//! Every row while memory is refused: at its n-th request for every n, once and from there on, by the device, by its
//! limit and by the budget of the operands' manager. It gives its result or the typed error, nothing has changed, and
//! it works again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ndgc::bench::refuse_host_memory;
use ndgc::memory::{self, Trim};
use ndgc::{Budget, DType, Device, Error, OutOfMemory, OutOfMemoryClass, SimConfig, gc, node_count};

use crate::common::{alone, check, in_child, is_child};
use crate::table::rows::{self, Row};
use crate::table::runs::{Answer, MAKES_OPERANDS, contents, same};
use crate::table::sample::{Form, Owner, Sample};
use crate::table::workspaces::held;

/// A call makes no more requests.
const REQUESTS_MAX: u64 = 2000;

/// What must not change: arrays, bytes and nodes of gradients, and what the operands' manager has.
fn books(sample: &Sample) -> [u64; 8] {
    gc::collect();
    let (stats, used) = (gc::stats(), sample.manager.budget_use().unwrap_or_default());
    let own = [sample.manager.array_count() as u64, used.bytes, used.arrays, used.reserved_bytes];
    let all = [stats.live, stats.dead(), sample.device.memory().active, node_count()];
    [own, all].concat().try_into().unwrap()
}

/// A row whose calls are refused memory.
struct Trial<'a> {
    row: &'a Row,
    sample: Sample,
    fresh: &'a dyn Fn() -> Sample,
    want: Answer,
    refused: u64,
    wrong: Vec<String>,
}

impl<'a> Trial<'a> {
    /// None if the row does not take such operands.
    fn new(row: &'a Row, fresh: &'a dyn Fn() -> Sample) -> Option<Self> {
        let mut trial = Trial { row, sample: fresh(), fresh, want: Err(String::new()), refused: 0, wrong: Vec::new() };
        // What grows on first use has grown after this.
        for _ in 0..3 {
            trial.want = contents(&trial.call().ok()?);
            trial.renew();
        }
        Some(trial)
    }

    fn call(&self) -> ndgc::Result<crate::table::sample::List> {
        self.sample.device.set_seed(7).unwrap();
        let answer = catch_unwind(AssertUnwindSafe(|| (self.row.run)(&self.sample)));
        answer.unwrap_or_else(|_| Err(Error::msg("it panicked")))
    }

    /// After a call that succeeded, whose results are gone: fresh operands where the row changes them.
    fn renew(&mut self) {
        gc::collect_orphans();
        if self.row.family == "In place" {
            self.sample = (self.fresh)();
        }
    }

    /// Whether a manager of the operands keeps what the call made on the way, since it is made as a program would.
    fn leaves(&self) -> bool {
        !gc::is_on() && (self.row.family == "Functions of `nn`" || MAKES_OPERANDS.contains(&self.row.name))
    }

    fn expect(&mut self, holds: bool, what: &str) {
        if !holds {
            self.wrong.push(format!("{} of {}: {what}", self.row.name, self.sample.dtype));
        }
    }

    fn is_wanted(&self, answer: &Answer) -> bool {
        matches!((answer, &self.want), (Ok(answer), Ok(want)) if same(answer, want))
    }

    /// Calls the row while `refuse` refuses, until `lift`; then once more. The error, if there was one.
    fn run(
        &mut self,
        what: &str,
        refuse: impl FnOnce(&Sample),
        lift: impl FnOnce(&Sample),
    ) -> Option<Box<OutOfMemory>> {
        let in_place = self.row.family == "In place";
        let values = in_place.then(|| held(&mut self.sample));
        // What looking at them left, with the switch off.
        gc::collect_orphans();
        let before = books(&self.sample);
        let counted = |sample: &Sample| memory::stats(&sample.device).get("requests.refused");
        let refusals = counted(&self.sample);
        refuse(&self.sample);
        let answer = self.call();
        lift(&self.sample);
        let after = books(&self.sample);
        let oom = match answer {
            Ok(list) => {
                let found = contents(&list);
                drop(list);
                self.expect(self.is_wanted(&found), &format!("another result after {what}"));
                self.renew();
                None
            }
            Err(Error::OutOfMemory(oom)) => {
                self.refused += 1;
                self.expect(counted(&self.sample) > refusals, &format!("nobody counted {what}"));
                self.expect(after == before || self.leaves(), &format!("{before:?} before and {after:?} after {what}"));
                let now = in_place.then(|| held(&mut self.sample));
                self.expect(now == values, &format!("operands changed by {what}"));
                gc::collect_orphans();
                Some(oom)
            }
            Err(other) => {
                self.expect(false, &format!("{other} after {what}"));
                None
            }
        };
        let again = self.call().map_err(|error| error.to_string()).and_then(|list| contents(&list));
        self.expect(self.is_wanted(&again), &format!("the call after {what} gives {again:?}"));
        self.renew();
        let after = books(&self.sample);
        self.expect(after == before, &format!("{before:?} before and {after:?} when all is over, {what}"));
        oom
    }

    /// The host has no memory at the n-th request.
    fn on_the_host(&mut self) {
        for go_on in [false, true] {
            for n in 1..REQUESTS_MAX {
                let before = refuse_host_memory(0, false);
                let what = format!("request {n} was refused{}", if go_on { " and all after it" } else { "" });
                let refuse = |_: &Sample| _ = refuse_host_memory(n, go_on);
                let oom = self.run(&what, refuse, |_| _ = refuse_host_memory(0, false));
                if refuse_host_memory(0, false) == before {
                    break;
                }
                self.expect(oom.is_some() == go_on, &format!("{oom:?} after {what}"));
            }
        }
    }

    /// The driver of a simulated device has no memory at the n-th request; there is some at the next one.
    fn by_the_driver(&mut self) {
        let Device::Sim(sim) = self.sample.device.clone() else { unreachable!("a simulated device") };
        for n in 1..REQUESTS_MAX {
            memory::trim(&self.sample.device, Trim::Cache);
            let asked = sim.calls().allocations;
            let made = std::cell::Cell::new(0);
            let what = format!("request {n} to the driver was refused");
            let oom = self.run(
                &what,
                |_| sim.refuse_allocation(Some(n)),
                |_| {
                    sim.refuse_allocation(None);
                    made.set(sim.calls().allocations - asked);
                },
            );
            self.expect(oom.is_none(), &what);
            if made.get() < n {
                break;
            }
        }
    }

    /// There is a limit, which every time admits the request that it refused before.
    fn by_the_limit(&mut self) {
        let mut limit = books(&self.sample)[6];
        for _ in 1..REQUESTS_MAX {
            let set = |sample: &Sample| _ = sample.device.set_limit(Some(limit));
            let lift = |sample: &Sample| _ = sample.device.set_limit(None);
            let Some(oom) = self.run(&format!("a limit of {limit} bytes"), set, lift) else { break };
            self.expect(oom.limit == Some(limit), &format!("a limit of {limit}, {oom}"));
            limit = limit.max(oom.active + oom.requested).max(limit + 1);
        }
    }

    /// The manager of the operands has a budget, which every time admits the request that it refused before; with
    /// `yields` it has none any more when a reclaimer was asked.
    fn by_the_budget(&mut self, of: fn(u64) -> Budget, at: usize) {
        let mut most = books(&self.sample)[at];
        for _ in 1..REQUESTS_MAX {
            let what = format!("{:?}", of(most));
            let manager = self.sample.manager.clone();
            let set = |sample: &Sample| _ = sample.manager.set_budget(of(most)).unwrap();
            let lift = |sample: &Sample| _ = sample.manager.set_budget(Budget::new()).unwrap();
            let yields = memory::on_pressure("budget", 0, move |_| drop(manager.set_budget(Budget::new())));
            let oom = self.run(&format!("{what} which yields"), set, lift);
            self.expect(oom.is_none(), &format!("refused by {what} which yields"));
            drop(yields);
            let counted = self.sample.manager.budget_use().unwrap().refused;
            let Some(oom) = self.run(&what, set, lift) else { break };
            if self.row.family != "In place" {
                let now = self.sample.manager.budget_use().unwrap().refused;
                self.expect(now > counted, &format!("{what} has counted nothing"));
            }
            most = match oom.class {
                OutOfMemoryClass::OverBudget { used, is_arrays: true, .. } => used + 1,
                OutOfMemoryClass::OverBudget { used, .. } => used + oom.requested,
                OutOfMemoryClass::TooBig => oom.requested,
                _ => return self.expect(false, &format!("{what}: {oom}")),
            };
        }
    }
}

/// Tries every row that takes operands of this device and owner, whatever their form and dtype. How many refusals there
/// were.
fn refuse(device: &Device, owner: Owner, each: impl Fn(&mut Trial<'_>)) -> u64 {
    let kinds = [DType::F32, DType::I64, DType::U8].map(|dtype| [Form::Many, Form::Scalar].map(|form| (form, dtype)));
    let (mut wrong, mut refused, mut tried) = (Vec::new(), 0, 0);
    for row in rows::all() {
        for (form, dtype) in kinds.concat() {
            let fresh = || {
                let sample = Sample::new(form, dtype, device, owner).unwrap();
                sample.manager.set_budget(Budget::new()).unwrap();
                sample
            };
            let Some(mut trial) = Trial::new(row, &fresh) else { continue };
            each(&mut trial);
            tried += 1;
            refused += trial.refused;
            wrong.append(&mut trial.wrong);
            break;
        }
    }
    assert!(wrong.is_empty(), "on {device}, {}:\n{}", wrong.len(), wrong[..wrong.len().min(60)].join("\n"));
    // One goes by address, which simulated devices have not.
    let tried_min = if owner == Owner::Variables { 200 } else { rows::all().count() - 1 };
    assert!(tried >= tried_min, "only {tried} rows were tried on {device}");
    check(device);
    refused
}

/// Runs `body` in a process of its own, where few slots are to be looked at for an error.
fn apart(test: &str, body: impl FnOnce()) {
    if is_child() {
        alone(body);
    } else {
        in_child(&format!("table::refusals::{test}"), &[]);
    }
}

/// Invariant I10 (design.md).
#[test]
fn every_operation_survives_that_the_host_refuses_any_of_its_requests() {
    apart("every_operation_survives_that_the_host_refuses_any_of_its_requests", || {
        for (on, owner) in [(false, Owner::Manager), (true, Owner::Manager), (true, Owner::Variables)] {
            let _switch = gc::scoped(on);
            let refused = refuse(&Device::Cpu, owner, |trial| trial.on_the_host());
            eprintln!("{refused} requests refused, operands of {owner:?}");
            assert!(refused > 300, "{refused}");
        }
    });
}

#[test]
fn every_operation_survives_that_a_limit_refuses_any_of_its_requests() {
    apart("every_operation_survives_that_a_limit_refuses_any_of_its_requests", || {
        let _on = gc::scoped(true);
        let sim = Device::sim(SimConfig::default());
        for device in [Device::Cpu, sim.clone()] {
            let refused = refuse(&device, Owner::Manager, |trial| trial.by_the_limit());
            eprintln!("{refused} requests refused on {device}");
            assert!(refused > 300, "{refused}");
        }
        refuse(&sim, Owner::Manager, |trial| trial.by_the_driver());
    });
}

#[test]
fn every_operation_survives_that_a_budget_refuses_any_of_its_requests() {
    apart("every_operation_survives_that_a_budget_refuses_any_of_its_requests", || {
        for (on, device) in [(false, Device::Cpu), (true, Device::Cpu), (true, Device::sim(SimConfig::default()))] {
            let _switch = gc::scoped(on);
            let bytes = |most| Budget::new().max_bytes(most);
            let arrays = |most| Budget::new().max_arrays(most);
            let bytes = refuse(&device, Owner::Manager, |trial| trial.by_the_budget(bytes, 1));
            let arrays = refuse(&device, Owner::Manager, |trial| trial.by_the_budget(arrays, 2));
            eprintln!("{bytes} requests for bytes refused on {device}, and {arrays} for arrays, switch {on}");
            assert!(bytes > 300 && arrays > 300, "{bytes} and {arrays}");
        }
    });
}
