//! The workloads and their input data, the same numbers for every contender.

use std::f32::consts::TAU;

/// Elements of the workloads that no cache holds, and the side of a square of them.
pub const LARGE: usize = SIDE * SIDE;
const SIDE: usize = 4096;
/// Sizes of [`Work::Scores`]: batch, heads, rows, depth.
pub const SCORES: [usize; 4] = [64, 12, 128, 64];

/// One thing to time; f32 throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// `y = a + b` on `n` elements, and drop `y`.
    Add(usize),
    /// Ten operations on `n` elements, `+b *b relu -a *a +b relu -b *b +a` from `a`, as a user writes them.
    Chain10(usize),
    /// The same, ndgc by reference.
    Chain10ByReference(usize),
    /// `a.exp()` on `n` elements, and drop the result.
    Exp(usize),
    /// The sum of `n x n` elements along an axis, and drop the result.
    Sum(usize, usize),
    /// `a.matmul(b)` on `n x n`, and drop the result.
    Matmul(usize),
    /// 64 x 12 products of `[128, 64]` and `[64, 128]`, the second one a transpose: the scores of an attention.
    Scores,
    /// The network in [`mlp`] forward on a batch of that size, the result dropped.
    Infer(usize),
    /// A turn of [`cycle`]: 200 arrays of mixed sizes, dropped together; the sum of the last one read to the host. ndgc
    /// makes them in a workspace.
    Cycle,
    /// The same, ndgc without a workspace.
    CycleOfHandles,
    /// One SGD step of the network in [`mlp`], the batch a slice of the data, the loss read to the host.
    MlpStep,
}

impl Work {
    /// All workloads, in the order they run.
    pub fn all() -> Vec<Work> {
        let adds = [1, 4, 16, 256, 4096].map(Work::Add);
        let chains = [Work::Chain10(4096), Work::Chain10ByReference(4096)];
        let large = [Work::Add(LARGE), Work::Exp(LARGE), Work::Sum(SIDE, 0), Work::Sum(SIDE, 1)];
        let products = [8, 64, 256, 1024].map(Work::Matmul);
        let rest = [Work::Scores, Work::Infer(1), Work::Infer(32), Work::Cycle, Work::CycleOfHandles, Work::MlpStep];
        adds.into_iter().chain(chains).chain(large).chain(products).chain(rest).collect()
    }

    pub fn named(name: &str) -> Option<Work> {
        Work::all().into_iter().find(|work| work.name() == name)
    }

    pub fn name(&self) -> String {
        match self {
            Work::Add(n) => format!("add_{n}"),
            Work::Chain10(n) => format!("chain10_{n}"),
            Work::Chain10ByReference(n) => format!("chain10_{n}_refs"),
            Work::Exp(n) => format!("exp_{n}"),
            Work::Sum(n, axis) => format!("sum{axis}_{n}x{n}"),
            Work::Matmul(n) => format!("matmul_{n}"),
            Work::Scores => "scores".to_string(),
            Work::Infer(n) => format!("infer_{n}"),
            Work::Cycle => "cycle_200".to_string(),
            Work::CycleOfHandles => "cycle_200_handles".to_string(),
            Work::MlpStep => "mlp_step".to_string(),
        }
    }

    /// Operations in one iteration; times are quoted for one of them.
    pub fn ops_per_iteration(&self) -> u32 {
        match self {
            Work::Chain10(_) | Work::Chain10ByReference(_) => 10,
            Work::Cycle | Work::CycleOfHandles => cycle::ARRAYS as u32,
            _ => 1,
        }
    }
}

/// What contenders show of a result to be compared: all of it if it is short, else some of it.
pub fn shown(values: &[f32]) -> Vec<f32> {
    values.iter().step_by(values.len().div_ceil(4096).max(1)).copied().collect()
}

/// The two operands of the elementwise and matrix workloads: `len` values each, uniform in (-1, 1).
pub fn operands(len: usize) -> (Vec<f32>, Vec<f32>) {
    let mut random = SplitMix64(1);
    let mut values = || (0..len).map(|_| random.uniform(1.0)).collect();
    (values(), values())
}

/// The cyclic loop: in each turn 50 arrays `x` are copied in, of sizes that differ from turn to turn, and `x * x`, that
/// plus `x`, and the `relu` of it are computed. All 200 arrays live until the end of the turn.
pub mod cycle {
    use super::SplitMix64;

    pub const INPUTS: usize = 50;
    pub const ARRAYS: usize = 4 * INPUTS;
    /// Turns until the sizes repeat.
    pub const TURNS: usize = 64;
    pub const SIZE_MIN: usize = 16;
    pub const SIZE_MAX: usize = 65_536;

    /// The sizes of all turns: as many between each power of two and the next.
    pub fn sizes() -> Vec<[usize; INPUTS]> {
        let mut random = SplitMix64(3);
        let doublings = (SIZE_MAX / SIZE_MIN).ilog2() as f32;
        let mut size = || (SIZE_MIN as f32 * (doublings * random.unit()).exp2()) as usize;
        (0..TURNS).map(|_| std::array::from_fn(|_| size())).collect()
    }

    /// What the inputs are copied from: the first elements of these.
    pub fn values() -> Vec<f32> {
        let mut random = SplitMix64(4);
        (0..SIZE_MAX).map(|_| random.uniform(1.0)).collect()
    }

    /// A case of the loop: `turn` runs one, and returns the sum of its last array.
    pub fn case(mut turn: impl FnMut(&[usize; INPUTS], &[f32]) -> f32 + 'static) -> crate::rivals::Case {
        let (sizes, values) = (sizes(), values());
        let sample = sizes.iter().map(|sizes| turn(sizes, &values)).collect();
        let mut at = 0;
        crate::rivals::Case::new(sample, move || {
            at = (at + 1) % TURNS;
            std::hint::black_box(turn(&sizes[at], &values));
        })
    }
}

/// The training step: 784-128-64-10, ReLU, mean softmax cross entropy, plain SGD.
pub mod mlp {
    use super::SplitMix64;

    pub const WIDTHS: [usize; 4] = [784, 128, 64, 10];
    pub const N_FEATURES: usize = WIDTHS[0];
    pub const N_CLASSES: usize = WIDTHS[3];
    pub const BATCH: usize = 32;
    pub const N_BATCHES: usize = 128;
    pub const N_IMAGES: usize = BATCH * N_BATCHES;
    pub const LEARNING_RATE: f64 = 0.1;
    /// Steps whose losses are compared between contenders before timing.
    pub const N_CHECKED: usize = 20;

    /// One dense layer: `weight` is `[n_in, n_out]` row major, `y = x weight + bias`.
    pub struct Layer {
        pub n_in: usize,
        pub n_out: usize,
        pub weight: Vec<f32>,
        pub bias: Vec<f32>,
    }

    impl Layer {
        /// The weight as `[n_out, n_in]` row major, for libraries that keep it so.
        pub fn weight_transposed(&self) -> Vec<f32> {
            let column = |j: usize| (0..self.n_in).map(move |i| self.weight[i * self.n_out + j]);
            (0..self.n_out).flat_map(column).collect()
        }
    }

    /// Images around one random centre a class, their labels, and the start weights.
    pub struct Data {
        /// `[N_IMAGES, N_FEATURES]` row major.
        pub images: Vec<f32>,
        pub labels: Vec<u32>,
        pub layers: [Layer; 3],
    }

    impl Data {
        pub fn new() -> Data {
            let mut random = SplitMix64(42);
            let centres: Vec<f32> = (0..N_CLASSES * N_FEATURES).map(|_| 0.1 * random.normal()).collect();
            let labels: Vec<u32> = (0..N_IMAGES).map(|_| (random.next() % N_CLASSES as u64) as u32).collect();
            let mut images = Vec::with_capacity(N_IMAGES * N_FEATURES);
            for &label in &labels {
                let start = label as usize * N_FEATURES;
                images.extend(centres[start..start + N_FEATURES].iter().map(|centre| centre + random.normal()));
            }
            let mut weights = SplitMix64(7);
            let layers = [0, 1, 2].map(|i| weights.layer(WIDTHS[i], WIDTHS[i + 1]));
            Data { images, labels, layers }
        }
    }

    /// First image of the batch that step `n` trains on.
    pub fn batch_start(step: usize) -> usize {
        step % N_BATCHES * BATCH
    }
}

/// A small generator with a fixed seed, so that all contenders and all runs see the same numbers.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1).
    fn unit(&mut self) -> f32 {
        ((self.next() >> 41) as f32 + 0.5) / (1u64 << 23) as f32
    }

    /// Uniform in (-limit, limit).
    fn uniform(&mut self, limit: f32) -> f32 {
        (2.0 * self.unit() - 1.0) * limit
    }

    /// Standard normal (Box-Muller).
    fn normal(&mut self) -> f32 {
        (-2.0 * self.unit().ln()).sqrt() * (TAU * self.unit()).cos()
    }

    /// Start values uniform in `±1/sqrt(n_in)`.
    fn layer(&mut self, n_in: usize, n_out: usize) -> mlp::Layer {
        let limit = 1.0 / (n_in as f32).sqrt();
        let weight = (0..n_in * n_out).map(|_| self.uniform(limit)).collect();
        let bias = (0..n_out).map(|_| self.uniform(limit)).collect();
        mlp::Layer { n_in, n_out, weight, bias }
    }
}
