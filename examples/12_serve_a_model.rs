//! A network behind HTTP: many callers, one model, and a better model put in its place while they ask.
//!
//! What you learn: requests that wait are answered together (`ParallelInference`), with limits in rows and in time; what
//! is wrong with one request is that caller's error alone; `update_model` replaces the model between two batches, so
//! that nobody waits and no answer is of both; and idle workers cost nothing.
//!
//! ```text
//! $ cargo run --release --example 12_serve_a_model
//! serving on 127.0.0.1:…
//! POST /predict "0.9,0.8" -> 200 "0.…,0.…"
//! POST /predict "0.9" -> 400 "…"
//! 16 callers, 3200 requests in … ms; workers answered [… …]
//! before training 0.… right, after it, without a pause, … right
//! ```

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ndgc::train::{
    Activation, ArrayDataSetIterator, DataSet, Dense, InferenceMode, InputType, Loss, Network, NetworkConfig,
    OutputLayer, ParallelInference, Updater,
};
use ndgc::{Device, Error, Result, Tensor};
use tiny_http::{Method, Response, Server};

const CALLERS: usize = 16;
const REQUESTS: usize = 200;
/// What is longer is refused.
const BODY_MAX: u64 = 1 << 20;

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

/// Answers requests, one after the other: several threads do so, and what they ask at one time is a batch.
fn serve(server: &Server, model: &ParallelInference) {
    for mut request in server.incoming_requests() {
        let mut body = String::new();
        let (status, text) = match (request.method(), request.url()) {
            (Method::Post, "/predict") => match request.as_reader().take(BODY_MAX + 1).read_to_string(&mut body) {
                Ok(read) if read as u64 > BODY_MAX => (413, format!("at most {BODY_MAX} bytes")),
                Ok(_) => predict(model, &body).map_or_else(|error| (400, error.to_string()), |text| (200, text)),
                Err(error) => (400, error.to_string()),
            },
            _ => (404, "POST rows to /predict".to_owned()),
        };
        // A connection that breaks is its caller's affair.
        let _ = request.respond(Response::from_string(text).with_status_code(status));
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
        write!(
            self.0.get_mut(),
            "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let (mut lines, mut line) = (Vec::new(), String::new());
        while self.0.read_line(&mut line)? > 2 {
            lines.push(std::mem::take(&mut line));
        }
        // Without a line the server is gone.
        let status = lines.first().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
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
    let server = Server::http("127.0.0.1:0").map_err(|error| Error::msg(error.to_string()))?;
    let server = Arc::new(server);
    let address = server.server_addr().to_ip().expect("it listens at an address");
    println!("serving on {address}");
    for _ in 0..CALLERS {
        let (server, model) = (Arc::clone(&server), Arc::clone(&model));
        thread::spawn(move || serve(&server, &model));
    }

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

    // Callers go on asking while the network learns, and get the better one's answers from its update on. What it learns
    // from is drawn before, so that it is the same in each run.
    let batches = ArrayDataSetIterator::new(points(2000)?, 50)?.shuffled(1)?;
    let asking = thread::spawn(move || callers(address));
    net.fit_epochs(batches, 20)?;
    model.update_model(net);
    asking.join().expect("callers that panic end it")?;
    let after = callers(address)?;
    println!("before training {before:.2} right, after it, without a pause, {after:.2} right");
    assert!(after > 0.9, "it learned");
    model.shutdown();
    Ok(())
}
