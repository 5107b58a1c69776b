//! Three tenants of a server: one asks for more than its budget, and the other two keep their latency.
//!
//! What you learn: `NdManager::set_budget` gives a manager and all below it a number of bytes, charged before memory is
//! taken; `NdManager::can_fit` and `NdManager::reserve` decide whether to begin a request; a refusal is an error that
//! names the budget and the lines whose arrays are in it, and it changes nothing; `memory::on_pressure` lets a cache
//! give its bytes back first.
//!
//! ```text
//! $ cargo run --release --example 13_three_tenants
//! greedy: can it fit 32 MiB? false; 8 MiB? true
//! greedy was refused … times, each in … us at the median
//! over the budget of `greedy`, which has 12.00 MiB of 15.00 MiB
//! its largest line: examples/13_three_tenants.rs:125:51 (3 arrays, 12.00 MiB)
//! the other two, 8000 requests alone and 8000 beside it, in 10 turns:
//! p50 … us alone, … us beside it, … times; p99 … us alone, … us beside it, … times
//! with a cache that gives: 8.00 MiB, 0 entries left
//! greedy has 0 B, the server 1.00 MiB
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ndgc::{Budget, Bytes, DType, Device, Error, NdManager, OutOfMemoryClass, Result, Tensor, gc, memory};

const MIB: u64 = 1 << 20;
const REFUSALS: usize = 1000;
const REQUESTS: usize = 8000;
/// Quiet and refusing times that follow each other, so that what else the machine does falls into both.
const TURNS: usize = 10;
/// Between two requests of the greedy one: it shall not cost the others a core.
const PAUSE: Duration = Duration::from_micros(200);

/// A tenant: a manager with a budget, and the weights of its model.
struct Tenant {
    manager: NdManager,
    weights: Tensor,
}

impl Tenant {
    fn new(server: &NdManager, name: &str) -> Result<Self> {
        let manager = server.child(name)?;
        manager.set_budget(Budget::new().max_bytes(16 * MIB).max_arrays(10_000))?;
        let weights = manager.ones((256, 512), DType::F32)?;
        Ok(Tenant { manager, weights })
    }

    /// One request, in a manager of its own; how long it took, in microseconds.
    fn serve(&self) -> Result<f64> {
        let start = Instant::now();
        let request = self.manager.new_sub_manager()?;
        let x = request.ones((16, 256), DType::F32)?;
        x.matmul(&self.weights)?.relu()?.sum_all()?.to_scalar::<f32>()?;
        request.close()?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }
}

fn quantile(times: &mut [f64], part: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * part) as usize]
}

/// Asks for 4 MiB until it was refused so many times and `is_over`, and waits a little before it asks again, as who
/// serves does; the times of the refusals, and the last of them.
fn ask_for_more(tenant: &NdManager, refusals: usize, is_over: impl Fn() -> bool) -> (Vec<f64>, Error) {
    let (mut times, mut last) = (Vec::new(), Error::msg("nothing was refused"));
    while times.len() < refusals || !is_over() {
        let start = Instant::now();
        if let Err(error) = tenant.zeros(4 << 20, DType::U8) {
            times.push(start.elapsed().as_secs_f64() * 1e6);
            last = error;
        }
        std::thread::sleep(PAUSE);
    }
    (times, last)
}

/// So many requests of two tenants in turn; their times.
fn serve_both(tenants: &[Tenant; 2], requests: usize) -> Result<Vec<f64>> {
    (0..requests).map(|request| tenants[request % 2].serve()).collect()
}

/// The times of the two alone, beside the third, and of its refusals; and the last refusal.
struct Measured {
    alone: Vec<f64>,
    beside: Vec<f64>,
    refusals: Vec<f64>,
    error: Error,
}

/// In turns: requests of the two alone, and as many while the third is refused again and again on another thread.
fn measure(obedient: &[Tenant; 2], greedy: &NdManager) -> Result<Measured> {
    let error = Error::msg("nothing was refused");
    let mut found = Measured { alone: Vec::new(), beside: Vec::new(), refusals: Vec::new(), error };
    for _ in 0..TURNS {
        found.alone.extend(serve_both(obedient, REQUESTS / TURNS)?);
        let is_over = AtomicBool::new(false);
        let (served, asked) = std::thread::scope(|scope| {
            let asks = scope.spawn(|| ask_for_more(greedy, REFUSALS / TURNS, || is_over.load(Ordering::Acquire)));
            let served = serve_both(obedient, REQUESTS / TURNS);
            is_over.store(true, Ordering::Release);
            (served, asks.join())
        });
        found.beside.extend(served?);
        let (times, error) = asked.map_err(|_| Error::msg("the greedy one panicked"))?;
        found.refusals.extend(times);
        found.error = error;
    }
    Ok(found)
}

fn main() -> Result<()> {
    gc::on();
    let server = NdManager::new_base_manager(&Device::Cpu)?;
    server.set_budget(Budget::new())?; // without a limit: it counts
    let obedient = [Tenant::new(&server, "first")?, Tenant::new(&server, "second")?];
    let greedy = server.child("greedy")?;
    greedy.set_budget(Budget::new().max_bytes(15 * MIB))?;

    // 1. Whether to begin at all.
    println!("greedy: can it fit 32 MiB? {}; 8 MiB? {}", greedy.can_fit(32 * MIB), greedy.can_fit(8 * MIB));

    // 2. One tenant is refused again and again; the others, on another thread, do not notice.
    let kept: Vec<Tensor> = (0..3).map(|_| greedy.zeros(4 << 20, DType::U8)).collect::<Result<_>>()?;
    serve_both(&obedient, 400)?;
    let Measured { mut alone, mut beside, mut refusals, error } = measure(&obedient, &greedy)?;
    let median = quantile(&mut refusals, 0.5);
    println!("greedy was refused {} times, each in {median:.0} us at the median", refusals.len());
    if let Error::OutOfMemory(oom) = &error {
        if let OutOfMemoryClass::OverBudget { manager, used, max, .. } = &oom.class {
            println!("over the budget of `{manager}`, which has {} of {}", Bytes(*used), Bytes(*max));
        }
        if let Some(&(Some(line), arrays, bytes)) = oom.lines.first() {
            println!("its largest line: {line} ({arrays} arrays, {})", Bytes(bytes));
        }
    }
    println!("the other two, {REQUESTS} requests alone and {REQUESTS} beside it, in {TURNS} turns:");
    let [p50, p99] = [0.5, 0.99].map(|part| {
        let (alone, beside) = (quantile(&mut alone, part), quantile(&mut beside, part));
        format!("{alone:.0} us alone, {beside:.0} us beside it, {:.2} times", beside / alone)
    });
    println!("p50 {p50}; p99 {p99}");
    drop(kept);

    // 3. A cache of the greedy one that gives its bytes back where they are needed.
    let cache = Arc::new(Mutex::new(vec![greedy.zeros(12 << 20, DType::U8)?]));
    let own = Arc::clone(&cache);
    let _reclaimer = memory::on_pressure("cache", 0, move |_| {
        if let Ok(mut entries) = own.lock() {
            entries.clear();
        }
    });
    let large = greedy.zeros(8 << 20, DType::U8)?;
    let left = cache.lock().map_or(0, |entries| entries.len());
    println!(
        "with a cache that gives: {large_bytes}, {left} entries left",
        large_bytes = Bytes(large.elem_count() as u64)
    );

    drop(large);
    let used = |manager: &NdManager| Bytes(manager.budget_use().map_or(0, |found| found.bytes));
    println!("greedy has {}, the server {}", used(&greedy), used(&server));
    server.close()
}
