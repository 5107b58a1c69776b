//! A network behind HTTP: many callers, one model, and a better model put in its place while they ask.
//!
//! What you learn: requests that wait are answered together (`ParallelInference`), with limits in rows and in time; what
//! is wrong with one request is that caller's error alone; `update_model` replaces the model between two batches, so
//! that nobody waits and no answer is of both; and idle workers cost nothing. The server is made of what the standard
//! library has: take a crate for HTTP where strangers can ask.
//!
//! ```text
//! $ cargo run --release --example 12_serve_a_model
//! serving on 127.0.0.1:…
//! POST /predict "0.9,0.8" -> 200 "0.…,0.…"
//! POST /predict "0.9" -> 400 "…"
//! 16 callers, 3200 requests in … ms; workers answered [… …]
//! before training 0.… right, after it, without a pause, 0.… right
//! ```

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ndgc::train::{
    Activation, ArrayDataSetIterator, DataSet, Dense, InferenceMode, InputType, Loss, Network, NetworkConfig,
    OutputLayer, ParallelInference, Updater,
};
use ndgc::{Device, Error, Result, Tensor};

const CALLERS: usize = 16;
const REQUESTS: usize = 200;
/// No head and no body is longer.
const HEAD_MAX: u64 = 1 << 14;
const BODY_MAX: usize = 1 << 20;

fn network() -> Result<Network> {
    NetworkConfig::builder()
        .seed(2)
        .updater(Updater::adam(0.02))
        .input_type(InputType::feed_forward(2))
        .layer(Dense::new(16).activation(Activation::Tanh))
        .layer(OutputLayer::new(2, Loss::Mcxent))
        .build()
}

/// Points of the square from -1 to 1, and whether both numbers have one sign.
fn points(n: usize) -> Result<DataSet> {
    let x = Tensor::rand(-1f32, 1., (n, 2), &Device::Cpu)?;
    let one_sign = |x: &Vec<f32>| if x[0] * x[1] > 0. { [0f32, 1.] } else { [1., 0.] };
    let y: Vec<f32> = x.to_vec2::<f32>()?.iter().flat_map(one_sign).collect();
    DataSet::new(x, Tensor::from_vec(y, (n, 2), &Device::Cpu)?)
}

/// Lines of numbers as rows, the model's answer as lines of numbers.
fn predict(model: &ParallelInference, body: &str) -> Result<String> {
    let mut numbers: Vec<f32> = Vec::new();
    for number in body.split([',', '\n']).filter(|number| !number.trim().is_empty()) {
        numbers.push(number.trim().parse().map_err(|_| Error::msg(format!("`{number}` is no number")))?);
    }
    let rows = body.lines().filter(|line| !line.trim().is_empty()).count().max(1);
    let columns = numbers.len() / rows;
    let answer = model.output(&Tensor::from_vec(numbers, (rows, columns), &Device::Cpu)?)?;
    let line = |row: Vec<f32>| row.iter().map(|x| format!("{x:.4}")).collect::<Vec<_>>().join(",");
    Ok(answer.to_vec2::<f32>()?.into_iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// Answers the requests of one connection, until it ends.
fn serve(stream: TcpStream, model: &ParallelInference) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let (mut head, mut length) = (String::new(), 0);
        let mut lines = reader.by_ref().take(HEAD_MAX);
        if lines.read_line(&mut head)? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            match line.trim_end().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().unwrap_or(0);
                }
                Some(_) => {}
                None => break,
            }
        }
        if lines.limit() == 0 || length > BODY_MAX {
            return write!(stream, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n");
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let (status, text) = match head.starts_with("POST /predict ") {
            true => predict(model, &String::from_utf8_lossy(&body))
                .map_or_else(|e| ("400 Bad Request", e.to_string()), |text| ("200 OK", text)),
            false => ("404 Not Found", "POST rows to /predict".to_owned()),
        };
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{text}", text.len())?;
    }
}

/// A connection of a caller's.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Client(BufReader::new(stream)))
    }

    /// Status and text of the answer.
    fn ask(&mut self, body: &str) -> io::Result<(u16, String)> {
        write!(self.0.get_mut(), "POST /predict HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        let (mut lines, mut line) = (Vec::new(), String::new());
        while self.0.read_line(&mut line)? > 2 {
            lines.push(std::mem::take(&mut line));
        }
        let status = lines[0].split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let length = lines.iter().find_map(|line| line.strip_prefix("Content-Length: ")?.trim().parse().ok());
        let mut text = vec![0; length.unwrap_or(0)];
        self.0.read_exact(&mut text)?;
        Ok((status, String::from_utf8_lossy(&text).into_owned()))
    }
}

/// The share of right answers to points of its own.
fn caller(address: SocketAddr, requests: usize) -> Result<f64> {
    let mut client = Client::new(address)?;
    let all = points(requests)?;
    let (rows, labels) = (all.features.to_vec2::<f32>()?, all.labels.to_vec2::<f32>()?);
    let mut right = 0;
    for (row, label) in rows.iter().zip(labels) {
        let (status, text) = client.ask(&format!("{},{}", row[0], row[1]))?;
        let answer: Vec<f32> = text.split(',').filter_map(|number| number.parse().ok()).collect();
        assert_eq!((status, answer.len()), (200, 2), "{text}");
        right += usize::from((answer[1] > answer[0]) == (label[1] > label[0]));
    }
    Ok(right as f64 / requests as f64)
}

/// All callers at once.
fn callers(address: SocketAddr) -> Result<f64> {
    let all: Vec<_> = (0..CALLERS).map(|_| thread::spawn(move || caller(address, REQUESTS))).collect();
    let shares = all.into_iter().map(|one| one.join().expect("a caller panics at a wrong answer only"));
    Ok(shares.collect::<Result<Vec<f64>>>()?.iter().sum::<f64>() / CALLERS as f64)
}

fn main() -> Result<()> {
    let mut net = network()?;
    let model = ParallelInference::builder(net.replica()?)
        .inference_mode(InferenceMode::Batched)
        .workers(2)
        .batch_limit(64) // rows
        .queue_limit(256) // requests; further callers wait
        .max_latency(Duration::ZERO) // what waits when a worker is free is a batch
        .build()?;
    let model = Arc::new(model);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    println!("serving on {address}");
    let serving = Arc::clone(&model);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let model = Arc::clone(&serving);
            // A connection that breaks is its caller's affair.
            thread::spawn(move || serve(stream, &model));
        }
    });

    let mut client = Client::new(address)?;
    for body in ["0.9,0.8", "0.9"] {
        let (status, text) = client.ask(body)?;
        println!("POST /predict {body:?} -> {status} {text:?}");
    }
    let begin = Instant::now();
    let before = callers(address)?;
    let millis = begin.elapsed().as_millis();
    println!(
        "{CALLERS} callers, {} requests in {millis} ms; workers answered {:?}",
        CALLERS * REQUESTS,
        model.served()
    );

    // Callers go on asking while the network learns, and get the better one's answers from its update on.
    let asking = thread::spawn(move || callers(address));
    net.fit_epochs(ArrayDataSetIterator::new(points(2000)?, 50)?.shuffled(1)?, 20)?;
    model.update_model(net);
    asking.join().expect("callers that panic end it")?;
    let after = callers(address)?;
    println!("before training {before:.2} right, after it, without a pause, {after:.2} right");
    assert!(after > 0.9, "it learned");
    model.shutdown();
    Ok(())
}
