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
//! its largest line: examples/13_three_tenants.rs:62:52 (3 arrays, 12.00 MiB)
//! the other two, 8000 requests: p50 … us alone, … us beside it; p99 … us alone, … us beside it
//! with a cache that gives: 8.00 MiB, 0 entries left
//! greedy has 0 B, the server 1.00 MiB
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ndgc::{Budget, Bytes, DType, Device, Error, NdManager, OutOfMemoryClass, Result, Tensor, gc, memory};

const MIB: u64 = 1 << 20;
const REFUSALS: usize = 1000;
const REQUESTS: usize = 8000;

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

/// Keeps 12 MiB and asks for 4 more until it was refused so many times and `is_over`; the times of the refusals, and
/// the last of them.
fn ask_for_more(tenant: &NdManager, is_over: impl Fn() -> bool) -> Result<(Vec<f64>, Error)> {
    let _kept: Vec<Tensor> = (0..3).map(|_| tenant.zeros(4 << 20, DType::U8)).collect::<Result<_>>()?;
    let (mut times, mut last) = (Vec::new(), Error::msg("nothing was refused"));
    while times.len() < REFUSALS || !is_over() {
        let start = Instant::now();
        if let Err(error) = tenant.zeros(4 << 20, DType::U8) {
            times.push(start.elapsed().as_secs_f64() * 1e6);
            last = error;
        }
    }
    Ok((times, last))
}

/// So many requests of two tenants in turn; their times.
fn serve_both(tenants: &[Tenant; 2], requests: usize) -> Result<Vec<f64>> {
    (0..requests).map(|request| tenants[request % 2].serve()).collect()
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
    serve_both(&obedient, 400)?;
    let mut alone = serve_both(&obedient, REQUESTS)?;
    let is_over = AtomicBool::new(false);
    let (beside, refused) = std::thread::scope(|scope| {
        let asks = scope.spawn(|| ask_for_more(&greedy, || is_over.load(Ordering::Acquire)));
        let beside = serve_both(&obedient, REQUESTS);
        is_over.store(true, Ordering::Release);
        (beside, asks.join())
    });
    let (mut beside, (mut times, error)) = (beside?, refused.map_err(|_| Error::msg("the greedy one panicked"))??);
    println!("greedy was refused {} times, each in {:.0} us at the median", times.len(), quantile(&mut times, 0.5));
    if let Error::OutOfMemory(oom) = &error {
        if let OutOfMemoryClass::OverBudget { manager, used, max, .. } = &oom.class {
            println!("over the budget of `{manager}`, which has {} of {}", Bytes(*used), Bytes(*max));
        }
        if let Some(&(Some(line), arrays, bytes)) = oom.lines.first() {
            println!("its largest line: {line} ({arrays} arrays, {})", Bytes(bytes));
        }
    }
    println!(
        "the other two, {REQUESTS} requests: p50 {:.0} us alone, {:.0} us beside it; p99 {:.0} us alone, {:.0} us beside it",
        quantile(&mut alone, 0.5),
        quantile(&mut beside, 0.5),
        quantile(&mut alone, 0.99),
        quantile(&mut beside, 0.99)
    );

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
