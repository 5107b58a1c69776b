//! Which sentences are alike: a BERT from a mapped safetensors file, a tokenizer from its JSON, and means under masks.
//!
//! What you learn: weights under the names of published models, read through a `VarBuilder` from a file that is mapped
//! and not copied; the crate `tokenizers` gives numbers and masks of sentences padded to the longest; a
//! workspace takes every array of a request, so that memory is the same to the byte, whatever the lengths.
//!
//! The files are made here, with word vectors that know of three subjects. A folder with `config.json`,
//! `tokenizer.json` and `model.safetensors` of a published model is taken in their place if it is named.
//!
//! ```text
//! $ cargo run --release -p ndgc-examples --example 17_sentence_embeddings
//! [CLS] the cat ##s sleep on the farm [SEP]
//!                                        1     2     3     4     5     6
//! 1 The cats sleep on the farm.       1.00  0.8…  0.…  0.…  0.…  0.…
//! 2 A dog barks at the cow.           0.8…  1.00  0.…  0.…  0.…  0.…
//! 3 The cook salts the hot soup.      0.…  0.…  1.00  0.9…  0.…  0.…
//! 4 Bread bakes in the oven.          0.…  0.…  0.9…  1.00  0.…  0.…
//! 5 The boat sails over the sea.      0.…  0.…  0.…  0.…  1.00  0.8…
//! 6 Waves break on the harbour wall.  0.…  0.…  0.…  0.…  0.8…  1.00
//! nearest to 1 is 2, to 3 is 4, to 5 is 6
//! padded or not, a sentence has the same embedding: true
//! 2000 requests of 1 to 6 sentences: … bytes after the first 100, and the same at the end
//! requests for memory after the first 100: 0
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};

use ndgc::nn::{self, LayerNorm, Linear, Module, VarBuilder};
use ndgc::{D, DType, Device, Generator, SpillPolicy, Tensor, Workspace, WorkspaceConfig, gc, no_grad, safetensors};
use serde_json::{Value, json};
use tokenizers::{PaddingParams, Tokenizer};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// One sentence pair for each subject.
const SENTENCES: [&str; 6] = [
    "The cats sleep on the farm.",
    "A dog barks at the cow.",
    "The cook salts the hot soup.",
    "Bread bakes in the oven.",
    "The boat sails over the sea.",
    "Waves break on the harbour wall.",
];

/// Attention and a perceptron, each with a way around it.
struct Block {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    after_attention: LayerNorm,
    up: Linear,
    down: Linear,
    after_mlp: LayerNorm,
}

/// What BERT computes, without its head.
struct Bert {
    words: nn::Embedding,
    positions: nn::Embedding,
    kinds: Tensor,
    start: LayerNorm,
    blocks: Vec<Block>,
    heads: usize,
}

impl Bert {
    fn new(config: &Value, vb: VarBuilder) -> Result<Self> {
        let size = |name: &str| config[name].as_u64().map(|n| n as usize).ok_or_else(|| format!("config: no {name}"));
        let (hidden, wide, heads) = (size("hidden_size")?, size("intermediate_size")?, size("num_attention_heads")?);
        let eps = config["layer_norm_eps"].as_f64().unwrap_or(1e-12);
        let norm = |vb: VarBuilder| nn::layer_norm(hidden, eps, vb.pp("LayerNorm"));
        let block = |vb: VarBuilder| -> Result<Block> {
            let (of_self, out) = (vb.pp("attention.self"), vb.pp("attention.output"));
            let square = |name: &str| nn::linear(hidden, hidden, of_self.pp(name));
            Ok(Block {
                query: square("query")?,
                key: square("key")?,
                value: square("value")?,
                out: nn::linear(hidden, hidden, out.pp("dense"))?,
                after_attention: norm(out)?,
                up: nn::linear(hidden, wide, vb.pp("intermediate.dense"))?,
                down: nn::linear(wide, hidden, vb.pp("output.dense"))?,
                after_mlp: norm(vb.pp("output"))?,
            })
        };
        let first = vb.pp("embeddings");
        let layers = 0..size("num_hidden_layers")?;
        Ok(Bert {
            words: nn::embedding(size("vocab_size")?, hidden, first.pp("word_embeddings"))?,
            positions: nn::embedding(size("max_position_embeddings")?, hidden, first.pp("position_embeddings"))?,
            kinds: first.get((size("type_vocab_size")?, hidden), "token_type_embeddings.weight")?,
            start: norm(first)?,
            blocks: layers.map(|i| block(vb.pp(format!("encoder.layer.{i}")))).collect::<Result<_>>()?,
            heads,
        })
    }

    /// Numbers of words and what counts of them, both `[n, words]`, to `[n, words, hidden]`.
    fn forward(&self, ids: &Tensor, mask: &Tensor) -> ndgc::Result<Tensor> {
        let (n, words) = ids.dims2()?;
        let places = Tensor::arange(0u32, words as u32, ids.device())?;
        let x = self.words.forward(ids)?.broadcast_add(&self.positions.forward(&places)?)?;
        let mut x = self.start.forward(&x.broadcast_add(&self.kinds.get(0)?)?)?;
        // Added to the scores: nothing for words that count, and far below for padding.
        let far = mask.affine(1e9, -1e9)?.reshape((n, 1, 1, words))?;
        for block in &self.blocks {
            let heads = |y: Tensor| y.reshape((n, words, self.heads, ()))?.transpose(1, 2)?.contiguous();
            let [q, k, v] = [&block.query, &block.key, &block.value].map(|part| part.forward(&x).and_then(heads));
            let q = q?;
            let scale = 1. / (q.dim(D::Minus1)? as f64).sqrt();
            let seen = q.sdpa(&k?, &v?, Some(&far), false, scale, 1.)?.transpose(1, 2)?.flatten_from(2)?;
            x = block.after_attention.forward(&block.out.forward(&seen)?.add(&x)?)?;
            x = block.after_mlp.forward(&block.down.forward(&block.up.forward(&x)?.gelu_erf()?)?.add(&x)?)?;
        }
        Ok(x)
    }
}

/// A model with its tokenizer.
struct Embedder {
    bert: Bert,
    tokenizer: Tokenizer,
    config: WorkspaceConfig,
}

impl Embedder {
    fn open(folder: &Path) -> Result<Self> {
        let config = serde_json::from_str(&std::fs::read_to_string(folder.join("config.json"))?)?;
        let weights = [folder.join("model.safetensors")];
        #[allow(unsafe_code)] // the file's bytes are used where they are mapped
        // SAFETY: Nobody changes the file while this program runs.
        let vb = unsafe { VarBuilder::from_mmaped_safetensors(&weights, DType::F32, &Device::Cpu)? };
        let mut tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
        tokenizer.with_padding(Some(PaddingParams::default())); // to the longest of a request
        // The block grows to the largest request, and stays.
        let spill = WorkspaceConfig::builder().policy_spill(SpillPolicy::Reallocate).shrink_after(None);
        Ok(Embedder { bert: Bert::new(&config, vb)?, tokenizer, config: spill.build()? })
    }

    /// A row of length 1 for each sentence. All arrays of the request lie in a cycle of a workspace.
    fn embed(&self, sentences: &[&str]) -> Result<Vec<Vec<f32>>> {
        let all = self.tokenizer.encode_batch(sentences.to_vec(), true)?;
        let words = all.first().map_or(0, |one| one.get_ids().len());
        let ids: Vec<u32> = all.iter().flat_map(|one| one.get_ids()).copied().collect();
        let counts: Vec<f32> = all.iter().flat_map(|one| one.get_attention_mask()).map(|&m| m as f32).collect();
        let rows = Workspace::cycle("REQUEST", &self.config, || {
            no_grad(|| {
                let ids = Tensor::from_vec(ids, (all.len(), words), &Device::Cpu)?;
                let mask = Tensor::from_vec(counts, (all.len(), words), &Device::Cpu)?;
                let sum = self.bert.forward(&ids, &mask)?.broadcast_mul(&mask.unsqueeze(2)?)?.sum(1)?;
                let mean = sum.broadcast_div(&mask.sum_keepdim(1)?)?;
                mean.broadcast_div(&mean.sqr()?.sum_keepdim(1)?.sqrt()?)?.to_vec2::<f32>()
            })
        })?;
        Ok(rows)
    }
}

/// How alike two embeddings are: 1 for the same direction.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// The words of the made files by subject; the first list are those of none, and how others end.
const WORDS: [&[&str]; 4] = [
    &[
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", ".", "a", "the", "on", "at", "in", "over", "and", "##s", "##t", "hot",
        "wall", "break", "sleep",
    ],
    &["cat", "dog", "bark", "cow", "farm"],
    &["cook", "salt", "soup", "bread", "bake", "oven"],
    &["boat", "sail", "sea", "wave", "harbour"],
];
const HIDDEN: usize = 64;
const LAYERS: usize = 2;

/// A small model: word vectors of a subject lie near one another, all else is drawn.
fn make(folder: &Path) -> Result<()> {
    let mut random = Generator::new(11);
    let mut draw = |size: &[usize], spread: f64| random.normal(0., spread, size, DType::F32, &Device::Cpu);
    let subjects = draw(&[WORDS.len(), HIDDEN], 1.)?;
    let mut vectors = Vec::new();
    for (subject, words) in WORDS.iter().enumerate() {
        // Words of no subject say little.
        let size = if subject == 0 { 0. } else { 1. };
        for _ in *words {
            vectors.push(draw(&[HIDDEN], 0.3)?.add(&subjects.get(subject)?.affine(size, 0.)?)?);
        }
    }
    let count = vectors.len();
    let mut all = HashMap::from([("embeddings.word_embeddings.weight".to_owned(), Tensor::stack(&vectors, 0)?)]);
    let mut put = |name: String, array: Tensor| all.insert(name, array);
    put("embeddings.position_embeddings.weight".to_owned(), draw(&[32, HIDDEN], 0.05)?);
    put("embeddings.token_type_embeddings.weight".to_owned(), draw(&[2, HIDDEN], 0.05)?);
    let norms = (0..LAYERS).flat_map(|i| ["attention.output", "output"].map(|at| format!("encoder.layer.{i}.{at}")));
    for at in norms.chain(["embeddings".to_owned()]) {
        put(format!("{at}.LayerNorm.weight"), Tensor::ones(HIDDEN, DType::F32, &Device::Cpu)?);
        put(format!("{at}.LayerNorm.bias"), Tensor::zeros(HIDDEN, DType::F32, &Device::Cpu)?);
    }
    for i in 0..LAYERS {
        for (at, size) in [
            ("attention.self.query", [HIDDEN, HIDDEN]),
            ("attention.self.key", [HIDDEN, HIDDEN]),
            ("attention.self.value", [HIDDEN, HIDDEN]),
            ("attention.output.dense", [HIDDEN, HIDDEN]),
            ("intermediate.dense", [2 * HIDDEN, HIDDEN]),
            ("output.dense", [HIDDEN, 2 * HIDDEN]),
        ] {
            put(format!("encoder.layer.{i}.{at}.weight"), draw(&size, 0.05)?);
            put(format!("encoder.layer.{i}.{at}.bias"), draw(&size[..1], 0.02)?);
        }
    }
    safetensors::save(&all, folder.join("model.safetensors"))?;
    let config = json!({
        "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_attention_heads": 4, "num_hidden_layers": LAYERS,
        "vocab_size": count, "max_position_embeddings": 32, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    std::fs::write(folder.join("tokenizer.json"), tokenizer().to_string())?;
    Ok(())
}

/// WordPiece in the form in which models have it published.
fn tokenizer() -> Value {
    let words = WORDS.concat();
    let vocab: serde_json::Map<String, Value> =
        words.iter().enumerate().map(|(i, word)| (word.to_string(), json!(i))).collect();
    let added = |i: usize| {
        json!({ "id": i, "content": words[i], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    };
    let special = |i: usize| json!({ "id": words[i], "ids": [i], "tokens": [words[i]] });
    let around = |at: &str, id: &str| json!({ at: { "id": id, "type_id": 0 } });
    let single = [around("SpecialToken", "[CLS]"), around("Sequence", "A"), around("SpecialToken", "[SEP]")];
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [added(0), added(1), added(2), added(3)],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": single,
            "special_tokens": { "[CLS]": special(2), "[SEP]": special(3) },
        },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    })
}

/// Bytes of the host that arrays and workspaces have, and requests to the system for them so far.
fn memory() -> (u64, u64) {
    gc::collect(); // what was dropped last waits for the next call
    (Device::Cpu.memory().active, Workspace::find("REQUEST").map_or(0, |space| space.stats().system_allocations))
}

fn main() -> Result<()> {
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let made = std::env::temp_dir().join(format!("ndgc-embeddings-{}", std::process::id()));
    if given.is_none() {
        std::fs::create_dir_all(&made)?;
        make(&made)?;
    }
    let embedder = Embedder::open(given.as_deref().unwrap_or(&made))?;
    println!("{}", embedder.tokenizer.encode(SENTENCES[0].trim_end_matches('.'), true)?.get_tokens().join(" "));

    let rows = embedder.embed(&SENTENCES)?;
    println!("{:34}{}", "", (1..=rows.len()).map(|i| format!("{i:>6}")).collect::<String>());
    for (i, row) in rows.iter().enumerate() {
        let line: String = rows.iter().map(|other| format!("{:>6.2}", cosine(row, other))).collect();
        println!("{} {:32}{line}", i + 1, SENTENCES[i]);
    }
    let nearest = |i: usize| {
        let others = (0..rows.len()).filter(|&j| j != i);
        others.max_by(|&a, &b| cosine(&rows[i], &rows[a]).total_cmp(&cosine(&rows[i], &rows[b]))).unwrap_or(i) + 1
    };
    println!("nearest to 1 is {}, to 3 is {}, to 5 is {}", nearest(0), nearest(2), nearest(4));

    let alone = embedder.embed(&SENTENCES[1..2])?;
    println!("padded or not, a sentence has the same embedding: {}", cosine(&alone[0], &rows[1]) > 0.99999);

    let mut early = (0, 0);
    for request in 0..2000 {
        let (from, count) = (request % 6, 1 + request / 7 % 6);
        embedder.embed(&SENTENCES[from.min(6 - count)..][..count])?;
        if request == 100 {
            early = memory();
        }
    }
    let late = memory();
    let is_flat = if late.0 == early.0 { "the same" } else { "others" };
    println!("2000 requests of 1 to 6 sentences: {} bytes after the first 100, and {is_flat} at the end", early.0);
    println!("requests for memory after the first 100: {}", late.1 - early.1);
    drop(embedder);
    if given.is_none() {
        std::fs::remove_dir_all(&made)?;
    }
    Ok(())
}
