//! A process of its own for each contender of a workload, so that each has the heap it would have alone.
//!
//! glibc gives memory back to the kernel past a threshold that earlier large frees raise, and what lies at
//! the top of the heap decides whether it can: in one process the frees of one library change the page
//! faults of another. The processes of a round live side by side, and one works at a time.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::counting;
use crate::options::Clock;
use crate::rivals;
use crate::work::Work;

/// First argument of a process that is to be a worker; the contender and the workload follow.
pub const FLAG: &str = "--worker";

/// What some iterations cost, in all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub wall: Duration,
    /// CPU time, user and kernel, all threads of the process.
    pub cpu: Duration,
    /// Page faults that needed no disk.
    pub n_faults: u64,
    /// Requests to the heap.
    pub n_requests: u64,
}

impl Cost {
    pub fn time(&self, clock: Clock) -> Duration {
        match clock {
            Clock::Wall => self.wall,
            Clock::Cpu => self.cpu,
        }
    }
}

/// The near end of a worker process, which ends when this is dropped.
pub struct Worker {
    child: Child,
    /// `None` only while the worker ends: closing it is the sign to end.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    /// What this contender computes; see [`rivals::Case`].
    pub sample: Vec<f32>,
}

impl Worker {
    /// Starts a worker, limited to that many threads, and waits until its workload is ready.
    pub fn start(rival: &str, work: Work, n_threads: usize) -> io::Result<Worker> {
        let n_threads = n_threads.to_string();
        let mut child = Command::new(std::env::current_exe()?)
            .args([FLAG, rival, &work.name()])
            // For candle and gemm, for ndarray's matrix product, for ndgc; burn is built without threads.
            .envs(["RAYON_NUM_THREADS", "NDGC_THREADS"].map(|name| (name, n_threads.as_str())))
            .env("MATMUL_NUM_THREADS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let requests = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut worker = Worker { child, requests, replies, sample: Vec::new() };
        worker.sample = worker.reply()?;
        Ok(worker)
    }

    pub fn run(&mut self, n_iterations: u64) -> io::Result<Cost> {
        let requests = self.requests.as_mut().expect("open until the worker is dropped");
        writeln!(requests, "{n_iterations}")?;
        let numbers: Vec<u64> = self.reply()?;
        let [wall, cpu, n_faults, n_requests] = numbers[..] else { return Err(io::ErrorKind::InvalidData.into()) };
        Ok(Cost { wall: Duration::from_nanos(wall), cpu: Duration::from_nanos(cpu), n_faults, n_requests })
    }

    /// One line of numbers from the worker.
    fn reply<T: std::str::FromStr>(&mut self) -> io::Result<Vec<T>> {
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a worker ended early"));
        }
        let numbers: Result<_, T::Err> = line.split_whitespace().map(str::parse).collect();
        numbers.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, line))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.requests = None;
        // An error here would only say that the process has ended already.
        let _ = self.child.wait();
    }
}

/// The far end: prepares the workload, then runs as many iterations as each line of the input asks for.
///
/// Its own buffers come before anything of the contender and nothing large comes after: a block of ours
/// above the contender's would keep glibc from trimming the heap, which is part of what is measured.
pub fn serve(rival: &str, work: &str) -> Result<(), String> {
    let rival = rivals::all().into_iter().find(|known| known.name == rival).ok_or("unknown contender")?;
    let work = Work::named(work).ok_or("unknown workload")?;
    let (mut requests, mut replies) = (io::stdin().lock(), io::stdout().lock());
    let mut line = String::with_capacity(64);
    let mut case = (rival.prepare)(work);
    let mut serve = || -> io::Result<()> {
        send(&mut replies, std::mem::take(&mut case.sample))?;
        while requests.read_line(&mut line)? > 0 {
            let n_iterations = line.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
            line.clear();
            let cost = measured(|| (case.run)(n_iterations));
            send(
                &mut replies,
                [cost.wall.as_nanos(), cost.cpu.as_nanos(), cost.n_faults.into(), cost.n_requests.into()],
            )?;
        }
        Ok(())
    };
    serve().map_err(|error| error.to_string())
}

fn send<T: Display>(replies: &mut impl Write, numbers: impl IntoIterator<Item = T>) -> io::Result<()> {
    for number in numbers {
        write!(replies, "{number} ")?;
    }
    writeln!(replies)
}

fn measured(run: impl FnOnce()) -> Cost {
    let before = usage();
    let start = Instant::now();
    run();
    let wall = start.elapsed();
    let after = usage();
    Cost {
        wall,
        cpu: after.cpu - before.cpu,
        n_faults: after.n_faults - before.n_faults,
        n_requests: after.n_requests - before.n_requests,
    }
}

/// Totals of this process so far.
struct Usage {
    cpu: Duration,
    n_faults: u64,
    n_requests: u64,
}

fn usage() -> Usage {
    let mut raw = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `raw` is large enough for the struct that the call fills in.
    let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, raw.as_mut_ptr()) };
    assert_eq!(status, 0, "getrusage(RUSAGE_SELF) fails only for a bad pointer");
    // SAFETY: the call succeeded, so it filled the struct.
    let raw = unsafe { raw.assume_init() };
    let duration = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Usage {
        cpu: duration(raw.ru_utime) + duration(raw.ru_stime),
        n_faults: raw.ru_minflt as u64,
        n_requests: counting::requests(),
    }
}
