//! An LSTM that learns sentences of different lengths letter by letter, and writes some of its own.
//!
//! What you learn: sentences are padded to the longest of their batch, and masks say which letters count, so that
//! padding changes neither scores nor gradients; batches come from a function; `rnn_time_step` goes on where the last
//! call stopped, so that writing a letter costs a step, not a sentence. Every batch has another length, and memory is
//! no more than after the first epoch, and while it writes than at its begin.
//!
//! ```text
//! $ cargo run --release --example 16_text_lstm
//! 28 sentences of 25 to 42 letters, 23 different ones
//! epoch   1: … a letter, … bytes
//! epoch  20: … a letter, no more
//! epoch  80: … a letter, no more
//! epoch 160: 0.… a letter, no more
//! padded or not, a sentence has the same score: true
//! …
//! …
//! …
//! …
//! after 1000 letters: … bytes
//! after 5000 letters: no more
//! after 20000 letters: no more
//! ```

use ndgc::train::{
    DataSet, Embedding, FnDataIterator, GradientNormalization, InputType, Loss, Lstm, Network, NetworkConfig,
    OutputLayer, Updater,
};
use ndgc::{Device, Generator, Result, Tensor, gc};

const SENTENCES: &str = "\
    the cook puts the pot on the fire
    the cook salts the soup at night
    the cat sleeps under the warm stove
    the cat waits for a mouse in the barn
    the dog guards the gate of the yard
    the dog barks at the postman in the rain
    the farmer sows the field in spring
    the farmer cuts the wheat in august
    the baker lights the oven before dawn
    the baker sells warm bread to the children
    the smith bends the iron in the fire
    the smith shoes the horse of the farmer
    the miller grinds the wheat of the farmer
    the miller sleeps while the wheel turns
    the weaver sits at the loom all day
    the weaver sells cloth to the tailor
    the tailor cuts a coat for the smith
    the tailor mends the shirt of the sailor
    the sailor ties the boat to the pier
    the sailor sings in the rain at night
    the fisher pulls the net from the sea
    the fisher sells herring to the cook
    the shepherd counts the sheep at dusk
    the shepherd sleeps under the old oak
    the children run to the river in summer
    the children feed bread to the ducks
    the moon rises over the old mill
    the rain falls on the sea";

const BATCH: usize = 4;
const EPOCHS: usize = 160;

/// Letters and their numbers; 0 begins and ends each sentence.
struct Letters(Vec<char>);

impl Letters {
    fn of(text: &str) -> Self {
        let mut all: Vec<char> = text.chars().filter(|letter| *letter != '\n').collect();
        all.sort_unstable();
        all.dedup();
        all.insert(0, '\n');
        Letters(all)
    }

    /// A sentence as numbers, from its begin to its end.
    fn numbers(&self, sentence: &str) -> Vec<u32> {
        let number = |letter| self.0.iter().position(|known| *known == letter).unwrap_or(0) as u32;
        format!("\n{sentence}\n").chars().map(number).collect()
    }
}

/// Sentences padded to `length` letters at least: each letter's task is the next one.
fn padded(sentences: &[Vec<u32>], length: usize) -> Result<DataSet> {
    let longest = sentences.iter().map(|sentence| sentence.len() - 1).max().unwrap_or(0).max(length);
    let (mut letters, mut next, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for sentence in sentences {
        for t in 0..longest {
            let is_there = t + 1 < sentence.len();
            letters.push(if is_there { sentence[t] } else { 0 });
            next.push(if is_there { sentence[t + 1] } else { 0 });
            counts.push(f32::from(u8::from(is_there)));
        }
    }
    let shape = (sentences.len(), longest);
    let mask = Tensor::from_vec(counts, shape, &Device::Cpu)?;
    let [letters, next] = [letters, next].map(|numbers| Tensor::from_vec(numbers, shape, &Device::Cpu));
    DataSet::with_masks(letters?, next?, Some(mask.clone()), Some(mask))
}

/// Writes until a sentence ends, letter by letter; likely ones more often than the network thinks.
fn write(net: &Network, letters: &Letters, random: &mut Generator) -> Result<String> {
    net.rnn_clear_previous_state();
    let (mut sentence, mut last) = (String::new(), 0u32);
    while sentence.len() < 60 {
        let chances = net.rnn_time_step(&Tensor::new([[last]], &Device::Cpu)?)?.to_vec::<f32>()?;
        let chances: Vec<f32> = chances.iter().map(|chance| chance * chance).collect();
        let drawn = random.uniform(0., f64::from(chances.iter().sum::<f32>()), 1, ndgc::DType::F32, &Device::Cpu)?;
        let mut left = drawn.to_vec::<f32>()?[0];
        let place = chances.iter().position(|chance| {
            left -= chance;
            left < 0.
        });
        match place.unwrap_or(0) {
            0 => break,
            place => sentence.push(letters.0[place]),
        }
        last = place.unwrap_or(0) as u32;
    }
    Ok(sentence)
}

/// Bytes of the host that arrays and workspaces have.
fn bytes() -> u64 {
    gc::collect(); // what was dropped last waits for the next call
    Device::Cpu.memory().active
}

/// That there are no more bytes than before, or how many there are: a plan that fits better takes less.
fn beside(before: u64) -> String {
    if bytes() <= before { "no more".to_owned() } else { format!("{} bytes", bytes()) }
}

fn main() -> Result<()> {
    let letters = Letters::of(SENTENCES);
    let sentences: Vec<Vec<u32>> = SENTENCES.lines().map(|line| letters.numbers(line.trim())).collect();
    let lengths = || sentences.iter().map(|sentence| sentence.len() - 2);
    let (shortest, longest) = (lengths().min().unwrap_or(0), lengths().max().unwrap_or(0));
    println!(
        "{} sentences of {shortest} to {longest} letters, {} different ones",
        sentences.len(),
        letters.0.len() - 1
    );

    let mut net = NetworkConfig::builder()
        .seed(5)
        .updater(Updater::adam(5e-3))
        .gradient_normalization(GradientNormalization::ClipElementWiseAbsoluteValue, 1.)
        .input_type(InputType::recurrent(1))
        .layer(Embedding::sequence(letters.0.len(), 16))
        .layer(Lstm::new(96))
        .layer(OutputLayer::new(letters.0.len(), Loss::SparseMcxent))
        .build()?;
    let all = padded(&sentences, 0)?;
    let count: f64 = sentences.iter().map(|sentence| sentence.len() as f64 - 1.).sum();
    let mut after_first = 0;
    for epoch in 1..=EPOCHS {
        // Each epoch in another order, so that other lengths meet in a batch.
        let order = Generator::new(epoch as u64).permutation(sentences.len())?;
        let batches = FnDataIterator::new(|number| {
            let rows = order.chunks(BATCH).nth(number);
            rows.map(|rows| padded(&rows.iter().map(|&row| sentences[row].clone()).collect::<Vec<_>>(), 0)).transpose()
        });
        net.fit(batches)?;
        if [1, 20, 80, EPOCHS].contains(&epoch) {
            let score = net.score_batch(&all, false)? * sentences.len() as f64 / count;
            let memory = if epoch == 1 { format!("{} bytes", bytes()) } else { beside(after_first) };
            println!("epoch {epoch:3}: {score:.2} a letter, {memory}");
        }
        if epoch == 1 {
            after_first = bytes();
        }
    }

    let one = &sentences[..1];
    let [short, long] = [padded(one, 0)?, padded(one, 100)?].map(|batch| net.score_batch(&batch, false));
    println!("padded or not, a sentence has the same score: {}", (short? - long?).abs() < 1e-5);

    let mut random = Generator::new(1);
    for _ in 0..4 {
        println!("{}", write(&net, &letters, &mut random)?);
    }
    // Workspaces that nobody fills any more become smaller in between.
    let (mut written, mut after_first) = (0, 0);
    for count in [1000, 5000, 20_000] {
        while written < count {
            written += write(&net, &letters, &mut random)?.len() + 1;
        }
        let memory = if after_first == 0 { format!("{} bytes", bytes()) } else { beside(after_first) };
        println!("after {count} letters: {memory}");
        after_first = bytes();
    }
    Ok(())
}
