//! The baselines of the benchmarks, and the loops that time all contenders alike.
#![allow(dead_code)] // each benchmark uses a part

use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use ndgc::{DType, Device, Proxy, Tensor};
use uuid::Uuid;

/// The metadata of an array, as large as ndgc's.
#[derive(Clone, Debug)]
pub(crate) struct Meta {
    dims: [usize; 6],
    strides: [isize; 6],
    offset: usize,
    storage: Arc<Vec<f32>>,
}

impl Meta {
    fn new() -> Self {
        Meta { dims: [1; 6], strides: [1; 6], offset: 0, storage: Arc::new(vec![0f32; 4]) }
    }

    /// Another array over the same bytes: what a result costs beyond its bytes.
    fn beside(&self) -> Self {
        Meta { storage: Arc::clone(&self.storage), ..*self }
    }
}

/// A: a handle that is an `Arc` of the array.
#[derive(Clone, Debug)]
pub(crate) struct ArcArray(Arc<Meta>);

impl ArcArray {
    /// An array of four zeros.
    pub(crate) fn new() -> Self {
        ArcArray(Arc::new(Meta::new()))
    }

    /// A new array over the bytes of the first of two.
    fn beside_two(&self, other: &ArcArray) -> Self {
        black_box(self.0.dims[0] + other.0.offset);
        ArcArray(Arc::new(self.0.beside()))
    }
}

impl Default for ArcArray {
    fn default() -> Self {
        Self::new()
    }
}

/// D: DJL's design. A map from random uuids to arrays; handles send their uuid when they die; each call drains.
#[derive(Debug)]
pub(crate) struct Djl {
    map: Arc<DashMap<Uuid, Arc<Meta>>>,
    dead: Sender<Uuid>,
    queue: Mutex<Receiver<Uuid>>,
}

/// A handle of D.
#[derive(Debug)]
pub(crate) struct DjlProxy {
    key: Uuid,
    dead: Sender<Uuid>,
}

impl Drop for DjlProxy {
    fn drop(&mut self) {
        let _ = self.dead.send(self.key);
    }
}

impl Djl {
    /// An empty registry.
    pub(crate) fn new() -> Self {
        let (dead, queue) = channel();
        Djl { map: Arc::new(DashMap::new()), dead, queue: Mutex::new(queue) }
    }

    fn drain(&self) {
        if let Ok(queue) = self.queue.try_lock() {
            while let Ok(key) = queue.try_recv() {
                self.map.remove(&key);
            }
        }
    }

    /// A new array.
    pub(crate) fn create(&self) -> DjlProxy {
        self.insert(Meta::new())
    }

    /// A new array over the bytes of the first of two.
    pub(crate) fn beside_two(&self, a: &DjlProxy, b: &DjlProxy) -> DjlProxy {
        self.drain();
        let first = self.map.get(&a.key).map(|meta| Arc::clone(&meta));
        self.drain();
        black_box(self.map.get(&b.key).map_or(0, |meta| meta.offset));
        self.insert(first.map_or_else(Meta::new, |meta| meta.beside()))
    }

    fn insert(&self, meta: Meta) -> DjlProxy {
        let mut random = [0u8; 16];
        // Random bytes from the system, as a version-4 uuid takes them.
        // SAFETY: the buffer is 16 bytes of ours.
        #[allow(unsafe_code)]
        unsafe {
            libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0);
        }
        let key = Uuid::new_v8(random);
        self.map.insert(key, Arc::new(meta));
        DjlProxy { key, dead: self.dead.clone() }
    }

    /// Finds an array, after draining.
    pub(crate) fn resolve(&self, proxy: &DjlProxy) -> usize {
        self.drain();
        self.map.get(&proxy.key).map_or(0, |meta| meta.dims[0] + meta.offset)
    }
}

impl Default for Djl {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads the metadata of one array through its handle: pins it, looks, lets go.
#[inline]
pub(crate) fn resolve(array: &Proxy) -> usize {
    ndgc::bench::resolve(array)
}

/// Reads the metadata of two.
#[inline]
pub(crate) fn resolve_two(a: &Proxy, b: &Proxy) -> usize {
    ndgc::bench::resolve_two(a, b)
}

/// Runs `n` iterations on each of several threads, and returns the longest time: each iteration is one call of what
/// `make` returned.
pub(crate) fn on_threads<F: FnMut() + Send>(threads: usize, n: u64, make: impl Fn() -> F) -> Duration {
    let barrier = Barrier::new(threads);
    let barrier = &barrier;
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|_| {
                let mut run = make();
                scope.spawn(move || {
                    run();
                    barrier.wait();
                    let begun = Instant::now();
                    for _ in 0..n {
                        run();
                    }
                    begun.elapsed()
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("a bench thread")).max().unwrap_or_default()
    })
}

/// Resolves two arrays of a ring, makes a result, puts it in the place of an older one, which drops.
pub(crate) fn ndgc_cycle(live: usize) -> impl FnMut() + Send {
    let mut ring: Vec<Proxy> = (0..live).map(|_| Tensor::zeros(4, DType::F32, &Device::Cpu).expect("memory")).collect();
    let mut at = 0;
    move || {
        at = (at * 21 + 7_919) % live;
        let other = (at + 1) % live;
        let made = ndgc::bench::make_from_two(&ring[at], &ring[other]);
        let place = (at + 2) % live;
        ring[place] = made;
    }
}

/// The same of A.
pub(crate) fn arc_cycle(live: usize) -> impl FnMut() + Send {
    let mut ring: Vec<ArcArray> = (0..live).map(|_| ArcArray::new()).collect();
    let mut at = 0;
    move || {
        at = (at * 21 + 7_919) % live;
        let other = (at + 1) % live;
        let made = ring[at].beside_two(&ring[other]);
        let place = (at + 2) % live;
        ring[place] = made;
    }
}

/// The same of D.
pub(crate) fn djl_cycle(djl: &Djl, live: usize) -> impl FnMut() + Send + use<'_> {
    let mut ring: Vec<DjlProxy> = (0..live).map(|_| djl.create()).collect();
    let mut at = 0;
    move || {
        at = (at * 21 + 7_919) % live;
        let other = (at + 1) % live;
        let made = djl.beside_two(&ring[at], &ring[other]);
        let place = (at + 2) % live;
        ring[place] = made;
    }
}
