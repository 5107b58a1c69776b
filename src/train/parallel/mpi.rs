//! What joins processes, by MPI from the system.
//!
//! The crate's handles of communicators stay with their thread, and that of all processes can be had at any time: so
//! none is kept. Its calls say nothing of errors, since MPI ends all processes for one.

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::thread;

use ::mpi::Threading;
use ::mpi::collective::{CommunicatorCollectives, Root, SystemOperation};
use ::mpi::environment::{Universe, initialize_with_threading};
use ::mpi::topology::{Communicator as _, SimpleCommunicator};
use ::mpi::traits::Equivalence;
use ndgc::{DType, Error, Result, Tensor};

use super::super::place::called_here;
use super::communicator::{AT_END, Communicator, DIFFERENT, ENDED, OP, cannot_go_on, fingerprint};

/// Elements that one call of MPI is given, at most, unless there are more ranks. Its counts are C's `int`s, and a
/// library takes room for what it is given.
const PIECE: usize = 1 << 24;

/// MPI in this process, from [`Mpi::start`] until this and its communicator are dropped.
///
/// Say what went wrong before this is dropped: `mpirun` ends the other processes as soon as one has ended with an exit
/// code other than 0.
///
/// ```
/// # use ndgc::train::{Communicator, Mpi};
/// # use ndgc::{Device, Tensor};
/// let mut mpi = Mpi::start()?; // by itself, as here, a process is the one rank that there is
/// let mut group = mpi.communicator()?;
/// let own = Tensor::full(1f32, 4, &Device::Cpu)?;
/// group.all_reduce(&[own.clone()], 0.5)?;
/// assert_eq!(own.to_vec1::<f32>()?, [0.5 * mpi.size() as f32; 4]);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct Mpi {
    universe: Arc<Universe>,
    rank: usize,
    size: usize,
}

impl Mpi {
    /// Starts MPI, which can be done once in a process.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was started before, or can be used by one thread alone.
    #[track_caller]
    pub fn start() -> Result<Self> {
        called_here(Self::started())
    }

    fn started() -> Result<Self> {
        let refused = |why: String| Error::invalid("Mpi::start", why);
        let started = initialize_with_threading(Threading::Serialized);
        let (universe, threading) = started
            .ok_or_else(|| refused("MPI was started before in this process; start it once, and keep it".into()))?;
        if threading < Threading::Serialized {
            return Err(refused(format!(
                "this MPI is for one thread alone ({threading:?}), and workers have threads of their own; take one \
                 that is built with threads"
            )));
        }
        let world = SimpleCommunicator::world();
        let count = |number: i32| usize::try_from(number).map_err(|_| refused("MPI counts below 0".into()));
        let (rank, size) = (count(world.rank())?, count(world.size())?);
        Ok(Mpi { universe: Arc::new(universe), rank, size })
    }

    /// Which of the processes this is: `0..size`.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Joins all processes, each of which calls this: one communicator at a time.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the one before is still there.
    #[track_caller]
    pub fn communicator(&mut self) -> Result<MpiCommunicator> {
        if Arc::strong_count(&self.universe) > 1 {
            let why = "there is a communicator of this process; drop it, and the wrapper that has it";
            return called_here(Err(Error::invalid("Mpi::communicator", why)));
        }
        let universe = Arc::clone(&self.universe);
        let (singles, doubles) = (ReduceBuffer::default(), ReduceBuffer::default());
        Ok(MpiCommunicator { _universe: universe, rank: self.rank, size: self.size, ended: None, singles, doubles })
    }
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mpi(rank {} of {})", self.rank, self.size)
    }
}

/// The [`Communicator`] of processes that `mpirun` started: one worker in each.
///
/// Numbers travel by way of the host, whatever device and layout an array has. f32 and f64 are added as such; f16 and
/// bf16 as f32, rounded once; the factor is applied before. Each element is added up by one rank, in the order of the
/// ranks, and copied to the others, so that all have the same bits, with every MPI. The room for the numbers on their
/// way, twice their bytes or less, stays from one call to the next.
///
/// A rank that fails ([`Communicator::abort`]), panics or drops this before the others says so where the others next
/// ask for a sum, or drop theirs; there they end with an error that names it. Until then it waits: so does `drop`, for
/// all ranks. A process that is killed says nothing: `mpirun` ends the others and names it.
///
/// ```no_run
/// # use ndgc::train::{Mpi, Network, ParallelWrapper, TrainingMode};
/// # fn train(net: Network) -> ndgc::Result<()> {
/// let mut mpi = Mpi::start()?;
/// let wrapper = ParallelWrapper::builder(net)
///     .training_mode(TrainingMode::SharedGradients)
///     .communicator(Box::new(mpi.communicator()?))
///     .build()?;
/// # drop(wrapper);
/// # Ok(())
/// # }
/// ```
pub struct MpiCommunicator {
    /// MPI goes when the last one does.
    _universe: Arc<Universe>,
    rank: usize,
    size: usize,
    /// Why no sum follows, known to all ranks.
    ended: Option<String>,
    singles: ReduceBuffer<f32>,
    doubles: ReduceBuffer<f64>,
}

/// What a rank says before each sum, and at its end.
enum Coming<'a> {
    /// With arrays of these sizes.
    Sum(u64),
    /// At the end of its batches.
    Ended,
    Left,
    Failed(&'a str),
}

impl MpiCommunicator {
    /// Tells the others how it stands here, and hears how it stands there. An error is one on all ranks, for good.
    fn meet(&mut self, own: &Coming<'_>) -> Result<()> {
        // The greatest word is heard: failures before leavings before ends, of those the lowest rank's.
        let (place, ranks) = ((self.size - self.rank) as u64, self.size as u64);
        let (word, sizes, text) = match own {
            Coming::Sum(sizes) => (0, *sizes, String::new()),
            Coming::Ended => (place, ENDED, AT_END.to_owned()),
            Coming::Left => (ranks + place, 0, "is gone before the others".to_owned()),
            Coming::Failed(why) => (2 * ranks + place, 0, format!("failed: {why}")),
        };
        let world = SimpleCommunicator::world();
        let [word, sizes, others] = greatest(&world, [word, sizes, !sizes]);
        let all_ended = [sizes, !others] == [ENDED; 2];
        let why = if word > 0 && !all_ended {
            let rank = self.size - 1 - (word - 1) as usize % self.size;
            format!("rank {rank} {}", broadcast_text(&world, rank, text))
        } else if sizes != !others {
            DIFFERENT.to_owned()
        } else {
            return Ok(());
        };
        let error = Err(self.cannot(&why));
        self.ended = Some(why);
        error
    }

    fn cannot(&self, why: &str) -> Error {
        cannot_go_on(self.rank, why)
    }

    /// Puts the numbers into the lanes, and makes all the room that their way takes.
    fn load(&mut self, arrays: &[Tensor]) -> Result<()> {
        self.singles.all.clear();
        self.doubles.all.clear();
        for array in arrays {
            let dtype = array.dtype();
            match dtype {
                DType::F32 => self.singles.load(&array.to_vec()?)?,
                DType::F16 | DType::BF16 => self.singles.load(&array.to_dtype(DType::F32)?.to_vec()?)?,
                DType::F64 => self.doubles.load(&array.to_vec()?)?,
                _ => {
                    let (op, supported) = ("MpiCommunicator::all_reduce", "f16, bf16, f32 and f64");
                    return Err(Error::unsupported_dtype(op, dtype, supported));
                }
            }
        }
        self.singles.pad(self.size)?;
        self.doubles.pad(self.size)
    }

    /// Writes what is in the lanes to the arrays.
    fn unload(&self, arrays: &[Tensor]) -> Result<()> {
        let (mut singles, mut doubles) = (&self.singles.all[..], &self.doubles.all[..]);
        arrays.iter().try_for_each(|array| {
            let (count, shape, device) = (array.elem_count(), array.dims(), array.device());
            let sum = match array.dtype() {
                DType::F64 => Tensor::from_slice(front(&mut doubles, count), shape, device)?,
                dtype => Tensor::from_slice(front(&mut singles, count), shape, device)?.to_dtype(dtype)?,
            };
            array.copy_(&sum)
        })
    }
}

impl fmt::Debug for MpiCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MpiCommunicator(rank {} of {})", self.rank, self.size)
    }
}

impl Communicator for MpiCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    /// As [`Communicator::all_reduce`] has it; the arrays of all ranks have equal sizes, dtypes and factors, else all
    /// get an error.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for integers, truth values and f8e4m3, with which this rank has failed.
    fn all_reduce(&mut self, arrays: &[Tensor], scale: f64) -> Result<()> {
        if let Some(why) = &self.ended {
            return Err(self.cannot(why));
        }
        match self.load(arrays) {
            Ok(()) => self.meet(&Coming::Sum(fingerprint(arrays, scale)))?,
            Err(error) => {
                // The error is this one; that of the meeting tells of it.
                let _ = self.meet(&Coming::Failed(&error.to_string()));
                return Err(error);
            }
        }
        // All ranks get here, or none. Until the sums are there nothing fails: who did not take part would leave the
        // others waiting.
        self.singles.sum(self.size, |single| (f64::from(single) * scale) as f32);
        self.doubles.sum(self.size, |double| double * scale);
        self.unload(arrays)
    }

    fn end(&mut self) -> Result<()> {
        if let Some(why) = &self.ended {
            return Err(self.cannot(why));
        }
        self.meet(&Coming::Ended)
    }

    fn abort(&mut self, why: &str) {
        if self.ended.is_none() {
            // It is an error for this rank too, from now on.
            let _ = self.meet(&Coming::Failed(why));
        }
    }
}

impl Drop for MpiCommunicator {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let own = if thread::panicking() { Coming::Failed("it panicked") } else { Coming::Left };
            // Where all leave, nobody is left to be told.
            let _ = self.meet(&own);
        }
    }
}

/// Numbers of one type on their way, those of all arrays behind each other.
#[derive(Default)]
struct ReduceBuffer<T> {
    all: Vec<T>,
    /// What this rank adds up of a piece: its share of each rank's.
    shares: Vec<T>,
}

impl<T: Equivalence + AddAssign + Copy + Default> ReduceBuffer<T> {
    fn load(&mut self, numbers: &[T]) -> Result<()> {
        room(&mut self.all, numbers.len())?;
        self.all.extend_from_slice(numbers);
        Ok(())
    }

    /// As many elements for each rank, and room for what a rank adds up.
    fn pad(&mut self, ranks: usize) -> Result<()> {
        let (len, padded) = (self.all.len(), self.all.len().next_multiple_of(ranks));
        room(&mut self.all, padded - len)?;
        self.all.resize(padded, T::default());
        let shares = padded.min(piece(ranks));
        let more = shares.saturating_sub(self.shares.len());
        room(&mut self.shares, more)?;
        self.shares.resize(shares, T::default());
        Ok(())
    }

    /// The scaled sums over all ranks: each adds up a part, which is then copied to all.
    fn sum(&mut self, ranks: usize, scale: impl Fn(T) -> T) {
        let world = SimpleCommunicator::world();
        for piece in self.all.chunks_mut(piece(ranks)) {
            let shares = &mut self.shares[..piece.len()];
            world.all_to_all_into(&*piece, shares);
            let (sums, others) = shares.split_at_mut(piece.len() / ranks);
            for other in others.chunks(sums.len()) {
                sums.iter_mut().zip(other).for_each(|(sum, number)| *sum += *number);
            }
            sums.iter_mut().for_each(|sum| *sum = scale(*sum));
            world.all_gather_into(&*sums, piece);
        }
    }
}

/// Elements of one call of MPI: as many for each rank.
fn piece(ranks: usize) -> usize {
    (PIECE / ranks).max(1) * ranks
}

/// Room for as many elements more.
fn room<T>(numbers: &mut Vec<T>, more: usize) -> Result<()> {
    let failed = |_| format!("no room for {} more bytes on their way by MPI", more * size_of::<T>());
    numbers.try_reserve(more).map_err(failed).map_err(|why| Error::invalid(OP, why))
}

/// The first numbers, which the slice then begins behind.
fn front<'a, T>(numbers: &mut &'a [T], count: usize) -> &'a [T] {
    let (first, rest) = numbers.split_at(count);
    *numbers = rest;
    first
}

/// The greatest of all ranks' words in each place. What is sent and what is received have one type and length here and
/// below: the crate does not compare them, and MPI writes as much as is sent.
fn greatest<const N: usize>(world: &SimpleCommunicator, own: [u64; N]) -> [u64; N] {
    let mut all = [0; N];
    world.all_reduce_into(&own[..], &mut all[..], SystemOperation::max());
    all
}

/// What this rank says. The same call on all ranks.
fn broadcast_text(world: &SimpleCommunicator, rank: usize, own: String) -> String {
    let root = world.process_at_rank(rank as i32);
    let mut text = own.into_bytes();
    let mut len = text.len() as u64;
    root.broadcast_into(&mut len);
    text.resize(len as usize, 0);
    root.broadcast_into(&mut text[..]);
    String::from_utf8_lossy(&text).into_owned()
}
