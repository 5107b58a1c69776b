//! A function of rows behind HTTP, with the server of `examples/12_serve_a_model.rs`: a thread for each connection, which
//! callers keep.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// An answer to a row.
pub(crate) type Predict = dyn Fn(Vec<f32>) -> Vec<f32> + Send + Sync;

/// A server that goes on until the program ends, and connections to it that nobody uses.
pub(crate) struct Http {
    address: SocketAddr,
    free: Mutex<Vec<BufReader<TcpStream>>>,
}

impl Http {
    pub(crate) fn start(predict: Arc<Predict>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (predict, mut stream) = (Arc::clone(&predict), connection(stream));
                thread::spawn(move || {
                    while let Ok(row) = receive(&mut stream) {
                        send(&mut stream, "HTTP/1.1 200 OK", &predict(row)).expect("a caller");
                    }
                });
            }
        });
        Http { address, free: Mutex::default() }
    }

    /// Asks on a connection that is there, or on a new one.
    pub(crate) fn ask(&self, row: &[f32]) -> Vec<f32> {
        let free = self.free.lock().expect("no panic").pop();
        let mut stream = free.unwrap_or_else(|| connection(TcpStream::connect(self.address)));
        send(&mut stream, "POST /predict HTTP/1.1", row).expect("a server");
        let answer = receive(&mut stream).expect("an answer");
        self.free.lock().expect("no panic").push(stream);
        answer
    }
}

fn connection(stream: io::Result<TcpStream>) -> BufReader<TcpStream> {
    let stream = stream.expect("a connection");
    stream.set_nodelay(true).expect("an option");
    BufReader::new(stream)
}

/// A request or an answer: its first line, and numbers as bytes.
fn send(stream: &mut BufReader<TcpStream>, first: &str, numbers: &[f32]) -> io::Result<()> {
    let mut message = format!("{first}\r\nContent-Length: {}\r\n\r\n", 4 * numbers.len()).into_bytes();
    message.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    stream.get_mut().write_all(&message)
}

/// The numbers of a request or an answer.
fn receive(stream: &mut BufReader<TcpStream>) -> io::Result<Vec<f32>> {
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end().split_once(": ") {
            Some(("Content-Length", value)) => length = value.parse().map_err(io::Error::other)?,
            _ if line == "\r\n" => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect())
}
