//! A causal transformer that learns a rhyme and goes on with it, letter by letter, in memory that stays the same to the
//! byte.
//!
//! What you learn: a model written with `nn` as for candle; training; a cache of keys and values that is written round
//! and round; drawing letters by their probability; a batch that grows while it runs, by the keys and values of a row
//! (and its letter). Arrays are their handles': what one letter needed is there again for the next.
//!
//! ```text
//! $ cargo run --release --example 09_generate_text
//! 400 steps of training: loss 4.0 -> 0.…
//! letters  rows  bytes alive
//!     100     1  1306948
//!    1000     1  the same
//!    5000     1  the same
//!   10000     1  the same
//!   10100     2  36868 more
//!   10500     2  the same
//!   10600     3  36868 more
//!   11000     3  the same
//!   11100     4  36868 more
//!   11500     4  the same
//! the last row ends: …
//! ```

use std::cmp::Ordering;

use ndgc::nn::kv_cache::RotatingKvCache;
use ndgc::nn::ops::{sdpa, softmax_last_dim};
use ndgc::nn::rotary_emb::rope;
use ndgc::nn::{AdamW, Embedding, Linear, Module, Optimizer, ParamsAdamW, RmsNorm, VarBuilder, VarMap};
use ndgc::nn::{embedding, linear_no_bias, loss, rms_norm};
use ndgc::{D, DType, Device, Result, Tensor, no_grad};

const RHYME: &str = "the north wind doth blow, and we shall have snow, and what will the robin do then, poor thing? \
    he will sit in a barn, and keep himself warm, and hide his head under his wing, poor thing! ";
/// Letters that the model sees at once.
const WINDOW: usize = 48;
const WIDTH: usize = 48;
const HEADS: usize = 4;
const LAYERS: usize = 2;
const STEPS: usize = 400;
const ROWS: usize = 8;

/// Attention and a perceptron, each with a way around it.
struct Block {
    before_attention: RmsNorm,
    qkv: Linear,
    out: Linear,
    before_mlp: RmsNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(vb: VarBuilder) -> Result<Self> {
        Ok(Block {
            before_attention: rms_norm(WIDTH, 1e-5, vb.pp("before_attention"))?,
            qkv: linear_no_bias(WIDTH, 3 * WIDTH, vb.pp("qkv"))?,
            out: linear_no_bias(WIDTH, WIDTH, vb.pp("out"))?,
            before_mlp: rms_norm(WIDTH, 1e-5, vb.pp("before_mlp"))?,
            up: linear_no_bias(WIDTH, 4 * WIDTH, vb.pp("up"))?,
            down: linear_no_bias(4 * WIDTH, WIDTH, vb.pp("down"))?,
        })
    }

    /// `[rows, letters, WIDTH]` to the same. Positions are told by turns (`cos`, `sin`); `cache` has those before.
    fn forward(
        &self,
        x: &Tensor,
        (cos, sin): (&Tensor, &Tensor),
        cache: Option<&mut RotatingKvCache>,
    ) -> Result<Tensor> {
        let (rows, letters, _) = x.dims3()?;
        let parts = self.qkv.forward(&self.before_attention.forward(x)?)?.chunk(3, D::Minus1)?;
        let heads = |part: &Tensor| part.reshape((rows, letters, HEADS, WIDTH / HEADS))?.transpose(1, 2)?.contiguous();
        let q = rope(&heads(&parts[0])?, cos, sin)?;
        let k = rope(&heads(&parts[1])?, cos, sin)?;
        let (k, v) = match cache {
            Some(cache) => cache.append(&k, &heads(&parts[2])?)?,
            None => (k, heads(&parts[2])?),
        };
        // While it learns, all letters at once, each of which sees those before it; else the one that is new.
        let scale = 1. / ((WIDTH / HEADS) as f32).sqrt();
        let seen = sdpa(&q, &k, &v, None, letters > 1, scale, 1.)?;
        let x = (x + self.out.forward(&seen.transpose(1, 2)?.reshape((rows, letters, WIDTH))?)?)?;
        let inner = self.up.forward(&self.before_mlp.forward(&x)?)?.silu()?;
        x + self.down.forward(&inner)?
    }
}

struct Model {
    letters: Embedding,
    blocks: Vec<Block>,
    last: RmsNorm,
    head: Linear,
    /// For each position of a round of the cache.
    cos: Tensor,
    sin: Tensor,
}

impl Model {
    fn new(letters: usize, positions: usize, vb: VarBuilder) -> Result<Self> {
        let half = WIDTH / HEADS / 2;
        let speeds: Vec<f32> = (0..half).map(|i| 100f32.powf(-(i as f32) / half as f32)).collect();
        let times = Tensor::arange(0u32, positions as u32, vb.device())?.to_dtype(DType::F32)?.unsqueeze(1)?;
        let angles = times.broadcast_mul(&Tensor::from_vec(speeds, (1, half), vb.device())?)?;
        Ok(Model {
            letters: embedding(letters, WIDTH, vb.pp("letters"))?,
            blocks: (0..LAYERS).map(|i| Block::new(vb.pp(format!("block{i}")))).collect::<Result<_>>()?,
            last: rms_norm(WIDTH, 1e-5, vb.pp("last"))?,
            head: linear_no_bias(WIDTH, letters, vb.pp("head"))?,
            cos: angles.cos()?,
            sin: angles.sin()?,
        })
    }

    /// Numbers of letters, `[rows, letters]`, to scores of what comes next, `[rows, letters, alphabet]`.
    fn forward(&self, x: &Tensor, at: usize, caches: Option<&mut [RotatingKvCache]>) -> Result<Tensor> {
        let count = x.dim(1)?;
        let turns = (self.cos.narrow(0, at, count)?, self.sin.narrow(0, at, count)?);
        let mut x = self.letters.forward(x)?;
        let mut caches = caches.map(|caches| caches.iter_mut());
        for block in &self.blocks {
            x = block.forward(&x, (&turns.0, &turns.1), caches.as_mut().and_then(Iterator::next))?;
        }
        self.head.forward(&self.last.forward(&x)?)
    }
}

/// Draws one letter for each row from its scores.
fn draw(scores: &Tensor, temperature: f64) -> Result<Tensor> {
    let last = scores.narrow(1, scores.dim(1)? - 1, 1)?.squeeze(1)?;
    softmax_last_dim(&(last / temperature)?)?.multinomial(1, true)?.to_dtype(DType::U32)
}

/// With one more row, as the first one is.
fn with_first_row_again(x: &Tensor) -> Result<Tensor> {
    Tensor::cat(&[x, &x.narrow(0, 0, 1)?], 0)
}

fn main() -> Result<()> {
    let device = Device::Cpu;
    device.set_seed(7)?;
    let mut alphabet: Vec<char> = RHYME.chars().collect();
    alphabet.sort_unstable();
    alphabet.dedup();
    let numbers = RHYME.chars().map(|letter| alphabet.iter().position(|known| *known == letter).unwrap_or(0) as u32);
    let text: Vec<u32> = numbers.collect();

    let variables = VarMap::new();
    let model = Model::new(alphabet.len(), 12_000, VarBuilder::from_varmap(&variables, DType::F32, &device))?;
    let mut optimizer = AdamW::new(variables.all_vars(), ParamsAdamW { lr: 3e-3, ..Default::default() })?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let starts = (0..ROWS).map(|row| (step * 31 + row * 23) % text.len());
        let rows: Vec<u32> =
            starts.flat_map(|start| text.iter().cycle().skip(start).take(WINDOW + 1)).copied().collect();
        let rows = Tensor::from_vec(rows, (ROWS, WINDOW + 1), &device)?;
        // It reads some letters wrong, so that it learns to find back.
        let read = rows.narrow(1, 0, WINDOW)?;
        let wrong = Tensor::rand(0f32, alphabet.len() as f32, read.shape(), &device)?.to_dtype(DType::U32)?;
        let is_wrong = Tensor::rand(0f32, 1f32, read.shape(), &device)?.lt(0.1)?;
        let read = is_wrong.where_cond(&wrong, &read)?;
        let scores = model.forward(&read, 0, None)?;
        let next = rows.narrow(1, 1, WINDOW)?.flatten_all()?;
        let loss = loss::cross_entropy(&scores.flatten_to(1)?, &next)?;
        optimizer.backward_step(&loss)?;
        losses.push(loss.to_scalar::<f32>()?);
    }
    println!("{STEPS} steps of training: loss {:.1} -> {:.2}", losses[0], losses[STEPS - 1]);

    // From here on a letter at a time. Nothing is kept but the caches, the letters drawn last, and the text.
    println!("letters  rows  bytes alive");
    let mut caches = vec![RotatingKvCache::new(2, WINDOW); LAYERS];
    let mut letters = Tensor::new([[text[0]]], &device)?;
    let mut written = String::new();
    let mut known = 0;
    for at in 0..=11_500 {
        if [10_032, 10_560, 11_088].contains(&at) {
            // One more row, which begins as the first one is and goes on by its own draws; the round of the cache is
            // complete.
            letters = with_first_row_again(&letters)?;
            for cache in &mut caches {
                let (Some(k), Some(v)) = (cache.k()?, cache.v()?) else { continue };
                *cache = RotatingKvCache::new(2, WINDOW);
                cache.append(&with_first_row_again(&k)?, &with_first_row_again(&v)?)?;
            }
        }
        letters = no_grad(|| draw(&model.forward(&letters, at, Some(&mut caches))?, 0.3))?;
        let drawn = letters.flatten_all()?.to_vec1::<u32>()?;
        written.push(alphabet[drawn[drawn.len() - 1] as usize]);
        if [100, 1000, 5000, 10_000, 10_100, 10_500, 10_600, 11_000, 11_100, 11_500].contains(&at) {
            let alive = device.memory().active;
            let told = match (known, alive.cmp(&known)) {
                (0, _) => alive.to_string(),
                (_, Ordering::Equal) => "the same".to_owned(),
                (_, Ordering::Greater) => format!("{} more", alive - known),
                (_, Ordering::Less) => format!("{} fewer", known - alive),
            };
            println!("{at:7}  {:4}  {told}", drawn.len());
            known = alive;
        }
    }
    println!("the last row ends: …{}…", &written[written.len() - 90..]);
    Ok(())
}
