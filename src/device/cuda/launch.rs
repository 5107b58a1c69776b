//! A kernel of the runtime as a launch: which function, which parameters, how many blocks.
//!
//! Each kernel is one launch. Views without elements launch nothing, except where the result of nothing is something:
//! the sum over an empty axis.

use crate::base::{dtype::DType, shape::Axes};
use crate::device::{
    axiswise::Axiswise,
    cuda::{
        kernels::{Entry, computing_bytes, dtype_number, element},
        params::{
            Draw, Each, Fold, Grid, Norm, Pick, Product, Ref, Rows, Scan, Slide, Step, address, operand, strides,
        },
        raw::Address,
    },
    kernel::{BitOp, Kernel, Map, OwnedView, Rectifier, StepRule, bias},
    window::{ResizeOp, Spacing, Window, Windowed},
};

/// Threads of a block, in every kernel.
pub(super) const THREADS: u64 = 256;
/// Blocks of a grid, at most.
pub(super) const GRID: u64 = i32::MAX as u64;
/// Elements that a thread of an elementwise kernel takes, if there are many.
const EACH: u64 = 4;
/// Rows and columns of a tile of the product.
const TILE: u64 = 64;

/// Rows and columns of a tile of a copy.
const TILED: u64 = 32;

/// What a launch may use beside its operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchResources {
    /// Blocks that keep the device busy.
    pub(super) blocks: u64,
    pub(super) scratch: Address,
    pub(super) scratch_bytes: u64,
    /// Numbers of 32 bits that are 0 between launches.
    pub(super) tickets: Address,
    pub(super) ticket_count: u64,
    /// Where a bad index is written.
    pub(super) fault: Address,
    /// The number of replays of the graph that is being captured, or 0.
    pub(super) replay: Address,
    /// Whether sums of scattered elements keep their order.
    pub(super) ordered: bool,
}

/// The number of an operation on bits: turning a truth value is one behind those of `BitOp`.
fn bit_number(op: BitOp, dtype: DType) -> u32 {
    if op == BitOp::Not && dtype == DType::Bool { 6 } else { op as u32 }
}

/// Parameters of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arguments {
    Each(Each),
    Fold(Fold),
    Rows(Rows),
    Pick(Pick),
    Draw(Draw),
    Step(Step),
    Product(Product),
    Slide(Slide),
    Scan(Scan),
    Norm(Norm),
}

/// A launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    pub(super) entry: Entry,
    pub(super) dtype: DType,
    pub(super) blocks: u64,
    pub(super) arguments: Arguments,
}

/// Bytes of scratch that a kernel needs at least.
pub(super) fn scratch_needed(kernel: &Kernel) -> u64 {
    match kernel {
        Kernel::CrossEntropy { logits, .. } => {
            logits.layout().dims().first().map_or(0, |&rows| (rows * computing_bytes(logits.dtype())) as u64)
        }
        _ => 0,
    }
}

/// The launch that does what a kernel says; `None` if there is nothing to do.
pub(super) fn plan(kernel: &Kernel, resources: &LaunchResources) -> Option<Launch> {
    let launch = launch_of(kernel, resources)?;
    Some(Launch { dtype: element(launch.dtype), ..launch })
}

fn launch_of(kernel: &Kernel, resources: &LaunchResources) -> Option<Launch> {
    match kernel {
        Kernel::Fill { dst, value } => {
            let truth = f64::from(u8::from(*value != 0.0));
            let value = if dst.dtype() == DType::Bool { truth } else { *value };
            each(Entry::Fill, dst.dtype(), 0, dst, [None; 3], [value, 0.0], resources)
        }
        Kernel::Arange { dst, start, step } => {
            each(Entry::Arange, dst.dtype(), 0, dst, [None; 3], [*start, *step], resources)
        }
        Kernel::Map { map, src, dst } => mapped(*map, src, dst, resources),
        Kernel::MapAssign { map, dst } => mapped(*map, dst, dst, resources),
        Kernel::Binary { op, lhs, rhs, dst } => two(Entry::Binary, dst.dtype(), *op as u32, [lhs, rhs], dst, resources),
        Kernel::BinaryAssign { op, dst, rhs } => {
            two(Entry::Binary, dst.dtype(), *op as u32, [dst, rhs], dst, resources)
        }
        Kernel::Compare { op, lhs, rhs, dst } => {
            two(Entry::Compare, lhs.dtype(), *op as u32, [lhs, rhs], dst, resources)
        }
        Kernel::Where { cond, yes, no, dst } => {
            let sources = [Some(cond), Some(yes), Some(no)];
            each(Entry::Choose, dst.dtype(), dtype_number(element(cond.dtype())), dst, sources, [0.0; 2], resources)
        }
        Kernel::UnaryGrad { op, saved, grad, dst } => {
            let entry = if op.is_called() { Entry::CalledGrad } else { Entry::UnaryGrad };
            two(entry, dst.dtype(), *op as u32, [saved, grad], dst, resources)
        }
        Kernel::RectifierGrad { rectifier, saved, grad, dst } => {
            let (op, numbers) = rectifier_numbers(*rectifier);
            each(Entry::RectifierGrad, dst.dtype(), op, dst, [Some(saved), Some(grad), None], numbers, resources)
        }
        Kernel::Reduce { op, src, axes, dst } => fold(Entry::Reduce, *op as u32, src, *axes, dst, resources),
        Kernel::ArgReduce { largest, src, axis, dst } => {
            let axes = Axes::one(*axis);
            fold(Entry::ArgReduce, u32::from(*largest), src, axes, dst, resources)
        }
        Kernel::Softmax { .. }
        | Kernel::SoftmaxGrad { .. }
        | Kernel::CrossEntropy { .. }
        | Kernel::CrossEntropyGrad { .. } => softmax(kernel, resources),
        Kernel::Matmul { lhs, rhs, dst } => product(lhs, rhs, dst),
        Kernel::Bits { op, lhs, rhs, dst } => {
            two(Entry::Bits, dst.dtype(), bit_number(*op, dst.dtype()), [lhs, rhs], dst, resources)
        }
        Kernel::Windowed(kernel) => windowed(kernel, resources),
        Kernel::Axiswise(kernel) => axiswise(kernel, resources),
        Kernel::IndexSelect { .. } | Kernel::IndexAdd { .. } | Kernel::Gather { .. } | Kernel::ScatterAdd { .. } => {
            pick(kernel, resources)
        }
        Kernel::Uniform { dst, seed, first, low, high } => {
            draw(Entry::Uniform, dst, *seed, *first, [*low, *high], resources)
        }
        Kernel::Normal { dst, seed, first, mean, std } => {
            draw(Entry::Normal, dst, *seed, *first, [*mean, *std], resources)
        }
        Kernel::OptimizerStep { .. } => optimiser(kernel, resources),
    }
}

fn mapped(map: Map, src: &OwnedView, dst: &OwnedView, resources: &LaunchResources) -> Option<Launch> {
    let dtype = if let Map::Cast = map { src.dtype() } else { dst.dtype() };
    let (entry, op, numbers) = match map {
        Map::Unary(op) => (if op.is_called() { Entry::Called } else { Entry::Unary }, op as u32, [0.0; 2]),
        Map::Affine { mul, add } => (Entry::Affine, 0, [mul, add]),
        Map::Powf(exponent) => (Entry::Powf, 0, [exponent, 0.0]),
        Map::Divide { number, first } => (Entry::Divide, 0, [number, f64::from(first)]),
        Map::Clamp { min, max } => (Entry::Clamp, 0, [min, max]),
        Map::Rectifier(rectifier) => {
            let (op, numbers) = rectifier_numbers(rectifier);
            (Entry::Rectifier, op, numbers)
        }
        Map::Copy => (Entry::Copy, 0, [0.0; 2]),
        Map::Cast => (Entry::Cast, dtype_number(dst.dtype()), [0.0; 2]),
    };
    let launch = each(entry, dtype, op, dst, [Some(src), None, None], numbers, resources)?;
    Some(if let Map::Copy = map { by_tiles(launch, resources) } else { launch })
}

/// A rectifier as its kernels have it.
fn rectifier_numbers(rectifier: Rectifier) -> (u32, [f64; 2]) {
    (u32::from(rectifier.curved), [rectifier.scale, rectifier.below])
}

fn blocks(items: u64, for_each: u64, resources: &LaunchResources) -> u64 {
    items.div_ceil(for_each).clamp(1, resources.blocks)
}

fn two(
    entry: Entry,
    dtype: DType,
    op: u32,
    [a, b]: [&OwnedView; 2],
    dst: &OwnedView,
    resources: &LaunchResources,
) -> Option<Launch> {
    each(entry, dtype, op, dst, [Some(a), Some(b), None], [0.0; 2], resources)
}

fn each(
    entry: Entry,
    dtype: DType,
    op: u32,
    dst: &OwnedView,
    sources: [Option<&OwnedView>; 3],
    [x, y]: [f64; 2],
    resources: &LaunchResources,
) -> Option<Launch> {
    let count = dst.layout().shape().elem_count() as u64;
    if count == 0 {
        return None;
    }
    // An operand that is not there lies like the destination.
    let [a, b, c] = sources.map(|source| operand(source.unwrap_or(dst)));
    let dst_ref = operand(dst);
    let all = [&dst_ref.strides[..], &a.strides, &b.strides, &c.strides];
    let grid = Grid::new(dst.layout().dims(), all);
    let refs = |own: Ref, i: usize| Ref { strides: grid.strides[i], ..own };
    let rank = if grid.is_flat() { 0 } else { grid.rank as u32 };
    let (dst, a, b, c) = (refs(dst_ref, 0), refs(a, 1), refs(b, 2), refs(c, 3));
    let arguments = Arguments::Each(Each { count, rank, op, dims: grid.dims, dst, a, b, c, x, y });
    let for_each = if count > THREADS * EACH * resources.blocks { THREADS * EACH } else { THREADS };
    Some(Launch { entry, dtype, blocks: blocks(count, for_each, resources), arguments })
}

/// A copy by tiles, if that keeps reads and writes together where one by element would tear one of them apart.
fn by_tiles(launch: Launch, resources: &LaunchResources) -> Launch {
    let Arguments::Each(mut each) = launch.arguments else { return launch };
    let is_torn = |last: &usize| each.dst.strides[*last] == 1 && each.a.strides[*last] != 1;
    let Some(last) = (each.rank as usize).checked_sub(1).filter(is_torn) else { return launch };
    let is_wide = |axis: usize| each.dims[axis] >= TILED;
    let Some(axis) = (0..last).find(|&axis| each.a.strides[axis] == 1 && is_wide(axis) && is_wide(last)) else {
        return launch;
    };
    // The order of the axes before the last is nothing to a copy.
    for values in [&mut each.dst.strides, &mut each.a.strides] {
        values.swap(axis, last - 1);
    }
    each.dims.swap(axis, last - 1);
    let [rows, cols] = [each.dims[last - 1], each.dims[last]];
    let tiles = each.count / (rows * cols) * rows.div_ceil(TILED) * cols.div_ceil(TILED);
    Launch { entry: Entry::Transpose, blocks: blocks(tiles, 1, resources), arguments: Arguments::Each(each), ..launch }
}

/// The axes of a source that are in a set, or are not, as few as possible.
fn side(src: &OwnedView, axes: Axes, folded: bool) -> Grid<1> {
    let (mut dims, mut steps) = (Vec::with_capacity(6), Vec::with_capacity(6));
    for (axis, (&dim, &stride)) in src.layout().dims().iter().zip(src.layout().strides()).enumerate() {
        if axes.has(axis) == folded {
            dims.push(dim);
            steps.push(stride as i64);
        }
    }
    Grid::new(&dims, [&steps])
}

fn fold(
    entry: Entry,
    op: u32,
    src: &OwnedView,
    axes: Axes,
    dst: &OwnedView,
    resources: &LaunchResources,
) -> Option<Launch> {
    let count = dst.layout().shape().elem_count() as u64;
    if count == 0 {
        return None;
    }
    let len = src.layout().shape().elem_count() as u64 / count;
    let (kept, folded) = (side(src, axes, false), side(src, axes, true));
    let step = |grid: &Grid<1>| grid.rank.checked_sub(1).map_or(i64::MAX, |last| grid.strides[0][last].abs());
    let lanes_first = step(&folded) <= step(&kept);
    // Neighbouring threads should read neighbouring elements: lanes of one output, or one output each.
    let most = if lanes_first { THREADS } else { THREADS / count.next_power_of_two().min(32) };
    // Where there are outputs for all, a warp is enough for each: more threads would wait for each other at each join.
    let busy = match entry {
        Entry::Reduce => (resources.blocks * THREADS).div_ceil(count).next_power_of_two().max(32),
        _ => THREADS,
    };
    // More outputs than a grid has blocks: several for each.
    let fitting = (THREADS / count.div_ceil(GRID).next_power_of_two()).max(1);
    let lanes = (len / 2).max(1).next_power_of_two().min(most).min(busy).min(fitting);
    let groups = count.div_ceil(THREADS / lanes);
    let parts = parts(entry, src.dtype(), count, len, groups, lanes, resources);
    let arguments = Arguments::Fold(Fold {
        count,
        len,
        op,
        lanes: lanes as u32,
        lanes_first: u32::from(lanes_first),
        parts: parts as u32,
        kept_rank: kept.rank as u32,
        folded_rank: folded.rank as u32,
        kept_dims: kept.dims,
        kept_strides: kept.strides[0],
        folded_dims: folded.dims,
        folded_strides: folded.strides[0],
        src: address(src),
        dst: address(dst),
        scratch: resources.scratch,
        tickets: resources.tickets,
    });
    Some(Launch { entry, dtype: src.dtype(), blocks: groups * parts, arguments })
}

/// Blocks that share an output: more than one if the outputs alone leave the device idle and there is work for more.
fn parts(
    entry: Entry,
    dtype: DType,
    count: u64,
    len: u64,
    groups: u64,
    lanes: u64,
    resources: &LaunchResources,
) -> u64 {
    let bytes = computing_bytes(dtype) as u64 + if entry == Entry::ArgReduce { 8 } else { 0 };
    let fits = resources.scratch_bytes.saturating_sub(8) / (count * bytes).max(1);
    if groups > resources.ticket_count || fits == 0 {
        return 1;
    }
    (resources.blocks / groups).min(len / (lanes * 16)).clamp(1, 1024).min(fits)
}

fn labelled(labels: &OwnedView, resources: &LaunchResources) -> Rows {
    Rows {
        op: CROSS_ENTROPY,
        label_type: dtype_number(labels.dtype()),
        labels: address(labels),
        label_stride: strides(labels.layout())[0],
        scratch: resources.scratch,
        ticket: resources.tickets,
        fault: resources.fault,
        ..Rows::default()
    }
}

fn softmax(kernel: &Kernel, resources: &LaunchResources) -> Option<Launch> {
    match kernel {
        Kernel::Softmax { src, dst, log } => {
            let rows = Rows { op: u32::from(*log), a: operand(src), ..Rows::default() };
            matrix(Entry::Softmax, rows, dst, resources)
        }
        Kernel::SoftmaxGrad { out, grad, dst, log } => {
            let rows = Rows { op: u32::from(*log), a: operand(out), b: operand(grad), ..Rows::default() };
            matrix(Entry::SoftmaxGrad, rows, dst, resources)
        }
        Kernel::CrossEntropy { logits, labels, probs, loss } => {
            let rows = Rows { a: operand(logits), loss: address(loss), ..labelled(labels, resources) };
            matrix(Entry::CrossEntropy, rows, probs, resources)
        }
        Kernel::CrossEntropyGrad { probs, labels, grad, dst } => {
            let rows = Rows { a: operand(probs), b: operand(grad), ..labelled(labels, resources) };
            matrix(Entry::CrossEntropyGrad, rows, dst, resources)
        }
        _ => None,
    }
}

fn matrix(entry: Entry, params: Rows, dst: &OwnedView, resources: &LaunchResources) -> Option<Launch> {
    let &[rows, cols] = dst.layout().dims() else { return None };
    // The mean loss of no rows is a value too.
    if cols == 0 || (rows == 0 && entry != Entry::CrossEntropy) {
        return None;
    }
    let (rows, cols) = (rows as u64, cols as u64);
    // Threads that share a row, as the kernels have it.
    let lanes = match cols {
        ..=32 => 8,
        33..=1024 => 32,
        _ => THREADS,
    };
    let blocks = blocks(rows, THREADS / lanes, resources);
    let arguments = Arguments::Rows(Rows { rows, cols, dst: operand(dst), ..params });
    Some(Launch { entry, dtype: dst.dtype(), blocks, arguments })
}

fn product(lhs: &OwnedView, rhs: &OwnedView, dst: &OwnedView) -> Option<Launch> {
    let dims = dst.layout().dims();
    let rank = dims.len().checked_sub(2)?;
    let (m, n) = (dims[rank] as u64, dims[rank + 1] as u64);
    let k = lhs.layout().dims()[rank + 1] as u64;
    let batch: u64 = dims[..rank].iter().map(|&dim| dim as u64).product();
    if m * n * batch == 0 {
        return None;
    }
    let (a, b) = (operand(lhs), operand(rhs));
    let grid = Grid::new(&dims[..rank], [&a.strides[..rank], &b.strides[..rank]]);
    let arguments = Arguments::Product(Product {
        m,
        n,
        k,
        batch,
        rank: grid.rank as u32,
        pad: 0,
        dims: grid.dims,
        a: Ref { strides: grid.strides[0], ..a },
        b: Ref { strides: grid.strides[1], ..b },
        a_row: a.strides[rank],
        a_col: a.strides[rank + 1],
        b_row: b.strides[rank],
        b_col: b.strides[rank + 1],
        dst: address(dst),
    });
    let blocks = batch * m.div_ceil(TILE) * n.div_ceil(TILE);
    Some(Launch { entry: Entry::Matmul, dtype: dst.dtype(), blocks, arguments })
}

/// The operations that a fault may name; `Fault::op` is an index.
pub(super) const PICKS: [&str; 5] = ["index_select", "index_add", "gather", "scatter_add", "cross_entropy"];

const CROSS_ENTROPY: u32 = 4;

fn pick(kernel: &Kernel, resources: &LaunchResources) -> Option<Launch> {
    let (op, entry, dst, src, ids, axis) = match kernel {
        Kernel::IndexSelect { src, ids, axis, dst } => (0, Entry::Gather, dst, src, ids, *axis),
        Kernel::IndexAdd { dst, ids, src, axis } => (1, Entry::ScatterAdd, dst, src, ids, *axis),
        Kernel::Gather { src, ids, axis, dst } => (2, Entry::Gather, dst, src, ids, *axis),
        Kernel::ScatterAdd { dst, ids, src, axis } => (3, Entry::ScatterAdd, dst, src, ids, *axis),
        _ => return None,
    };
    let gathers = entry == Entry::Gather;
    let (walked, indexed) = if gathers { (dst, src) } else { (src, dst) };
    let count = walked.layout().shape().elem_count() as u64;
    if count == 0 {
        return None;
    }
    let mut dims = [1; 6];
    for (to, &from) in dims.iter_mut().zip(walked.layout().dims()) {
        *to = from as u64;
    }
    let mut ids_ref = operand(ids);
    if op < 2 {
        // A list of indices: the same along every other axis.
        let step = ids_ref.strides[0];
        ids_ref.strides = [0; 6];
        ids_ref.strides[axis] = step;
    }
    let arguments = Arguments::Pick(Pick {
        count,
        rank: walked.layout().dims().len() as u32,
        axis: axis as u32,
        id_type: dtype_number(ids.dtype()),
        ordered: u32::from(resources.ordered),
        dims,
        dst: operand(dst),
        src: operand(src),
        ids: ids_ref,
        limit: indexed.layout().dims()[axis] as u64,
        fault: resources.fault,
        op,
        pad: 0,
    });
    let items = if !gathers && resources.ordered { count / dims[axis] } else { count };
    Some(Launch { entry, dtype: dst.dtype(), blocks: blocks(items, THREADS, resources), arguments })
}

/// A thread for each element of `dst`, with the sizes of `image`.
fn slide(
    entry: Entry,
    params: Slide,
    image: &OwnedView,
    window: &Window,
    dst: &OwnedView,
    resources: &LaunchResources,
) -> Option<Launch> {
    let count = dst.layout().shape().elem_count() as u64;
    let &[_, channels, d, h, w] = image.layout().dims() else { return None };
    if count == 0 {
        return None;
    }
    let to_u64 = |sizes: [usize; 3]| sizes.map(|size| size as u64);
    // From a single place nothing steps on: kernels need not count with a step that may be any number.
    let stride = std::array::from_fn(|axis| if window.out[axis] == 1 { 1 } else { window.stride[axis] as u64 });
    let arguments = Arguments::Slide(Slide {
        count,
        channels: channels as u64,
        ins: to_u64([d, h, w]),
        outs: to_u64(window.out),
        size: to_u64(window.size),
        stride,
        padding: to_u64(window.padding),
        dilation: to_u64(window.dilation),
        dst: address(dst),
        ..params
    });
    Some(Launch { entry, dtype: dst.dtype(), blocks: blocks(count, THREADS, resources), arguments })
}

fn windowed(kernel: &Windowed, resources: &LaunchResources) -> Option<Launch> {
    let from = |src: &OwnedView| Slide { src: operand(src), ..Slide::default() };
    match kernel {
        Windowed::Unfold { image, columns, window } => {
            slide(Entry::Unfold, from(image), image, window, columns, resources)
        }
        Windowed::Fold { columns, image, window } => slide(Entry::Fold, from(columns), image, window, image, resources),
        Windowed::Pool { op, image, dst, ids, window, adaptive } => {
            let ids = ids.as_ref().map_or(0, address);
            let params = Slide { ids, op: *op as u32, adaptive: u32::from(*adaptive), ..from(image) };
            slide(Entry::Pool, params, image, window, dst, resources)
        }
        Windowed::PoolGrad { grad, ids, image, window, adaptive } => {
            let ids = ids.as_ref().map_or(0, address);
            let params = Slide { ids, adaptive: u32::from(*adaptive), ..from(grad) };
            slide(Entry::PoolGrad, params, image, window, image, resources)
        }
        Windowed::Resize { op, image, dst, spacing } => {
            resized(Entry::Resize, *op, image, [image, dst], dst, spacing, resources)
        }
        Windowed::ResizeGrad { op, grad, image, spacing } => {
            resized(Entry::ResizeGrad, *op, grad, [image, grad], image, spacing, resources)
        }
        // Made of others: see `conv.rs`.
        Windowed::Conv { .. } => None,
    }
}

/// `[B, C, H, W]` of two sizes: that of the image, and the other one.
fn resized(
    entry: Entry,
    op: ResizeOp,
    src: &OwnedView,
    [image, out]: [&OwnedView; 2],
    dst: &OwnedView,
    spacing: &Spacing,
    resources: &LaunchResources,
) -> Option<Launch> {
    let unsqueezed = |view: &OwnedView| OwnedView::new(view.span(), view.dtype(), view.layout().unsqueeze(2));
    let params = Slide { src: operand(&unsqueezed(src)), op: op as u32, scale: spacing.scale, ..Slide::default() };
    let outs = out.layout().dims();
    let window = Window { out: [1, outs[2], outs[3]], size: [1; 3], stride: [1; 3], padding: [0; 3], dilation: [1; 3] };
    slide(entry, Slide { shift: spacing.shift, ..params }, &unsqueezed(image), &window, dst, resources)
}

fn axiswise(kernel: &Axiswise, resources: &LaunchResources) -> Option<Launch> {
    match kernel {
        Axiswise::Scan { op, src, dst, ids, axis, reverse } => {
            let ids = ids.as_ref().map_or(0, address);
            let params = Scan { op: *op as u32, reverse: u32::from(*reverse), ids, ..Scan::default() };
            scan(Entry::Scan, params, [src, src, dst], *axis, resources)
        }
        Axiswise::ProdGrad { src, grad, dst, axis } => {
            scan(Entry::ProdGrad, Scan::default(), [src, grad, dst], *axis, resources)
        }
        Axiswise::Norm { src, scale, shift, dst, eps, centred } => {
            let params = Norm { dst: address(dst), eps: *eps, centred: u32::from(*centred), ..Norm::default() };
            norm(Entry::Norm, params, [src, src], [scale, shift], resources)
        }
        Axiswise::NormGrad { src, grad, scale, dst, products, eps, centred } => {
            let (dst, products) = (address(dst), address(products));
            let params = Norm { dst, products, eps: *eps, centred: u32::from(*centred), ..Norm::default() };
            norm(Entry::NormGrad, params, [src, grad], [scale, &None], resources)
        }
    }
}

/// A block for each line along the axis.
fn scan(
    entry: Entry,
    params: Scan,
    views: [&OwnedView; 3],
    axis: usize,
    resources: &LaunchResources,
) -> Option<Launch> {
    let layout = views[2].layout();
    let (count, len) = (layout.shape().elem_count(), layout.dims()[axis]);
    if count == 0 {
        return None;
    }
    let whole = views.map(operand);
    let others =
        |own: &[i64]| -> Vec<i64> { (0..layout.dims().len()).filter(|&i| i != axis).map(|i| own[i]).collect() };
    let dims: Vec<usize> = (0..layout.dims().len()).filter(|&i| i != axis).map(|i| layout.dims()[i]).collect();
    let [a, b, c] = whole.map(|own| others(&own.strides));
    let grid = Grid::new(&dims, [&a, &b, &c]);
    let refs = |i: usize| Ref { ptr: whole[i].ptr, strides: grid.strides[i] };
    let arguments = Arguments::Scan(Scan {
        lines: (count / len) as u64,
        len: len as u64,
        rank: grid.rank as u32,
        dims: grid.dims,
        src: refs(0),
        grad: refs(1),
        dst: refs(2),
        steps: std::array::from_fn(|i| whole[i].strides[axis]),
        ..params
    });
    let items = if entry == Entry::Scan { 1 } else { THREADS };
    let blocks = blocks((count / len) as u64, items, resources);
    Some(Launch { entry, dtype: views[2].dtype(), blocks, arguments })
}

/// A block for each row.
fn norm(
    entry: Entry,
    params: Norm,
    [src, grad]: [&OwnedView; 2],
    lists: [&Option<OwnedView>; 2],
    resources: &LaunchResources,
) -> Option<Launch> {
    let &[rows, cols] = src.layout().dims() else { return None };
    if rows * cols == 0 {
        return None;
    }
    let [scale, shift] = lists.map(|list| list.as_ref().map_or(0, address));
    let [scale_step, shift_step] = lists.map(|list| list.as_ref().map_or(0, |list| strides(list.layout())[0]));
    let (rows, cols) = (rows as u64, cols as u64);
    let (src_ref, grad) = (operand(src), operand(grad));
    let arguments =
        Arguments::Norm(Norm { rows, cols, src: src_ref, grad, scale, shift, scale_step, shift_step, ..params });
    Some(Launch { entry, dtype: src.dtype(), blocks: blocks(rows, 1, resources), arguments })
}

fn draw(
    entry: Entry,
    dst: &OwnedView,
    seed: u64,
    first: u64,
    [low, high]: [f64; 2],
    resources: &LaunchResources,
) -> Option<Launch> {
    let count = dst.layout().shape().elem_count() as u64;
    if count == 0 {
        return None;
    }
    let arguments =
        Arguments::Draw(Draw { count, dst: address(dst), seed, first, low, high, replay: resources.replay });
    Some(Launch { entry, dtype: dst.dtype(), blocks: blocks(count, THREADS * EACH, resources), arguments })
}

fn optimiser(kernel: &Kernel, resources: &LaunchResources) -> Option<Launch> {
    let Kernel::OptimizerStep { param, grad, kept1, kept2, kept3, rule, rate, step } = kernel else { return None };
    let (entry, [a, b, eps, decay]) = match *rule {
        StepRule::Sgd { momentum, decay } => (Entry::Sgd, [momentum, 0.0, 0.0, decay]),
        StepRule::Nesterov { momentum } => (Entry::Nesterov, [momentum, 0.0, 0.0, 0.0]),
        StepRule::Adam { beta1, beta2, epsilon, decay } => (Entry::Adam, [beta1, beta2, epsilon, decay]),
        StepRule::AmsGrad { beta1, beta2, epsilon } => (Entry::AmsGrad, [beta1, beta2, epsilon, 0.0]),
        StepRule::Nadam { beta1, beta2, epsilon } => (Entry::Nadam, [beta1, beta2, epsilon, 0.0]),
        StepRule::AdaMax { beta1, beta2 } => (Entry::AdaMax, [beta1, beta2, 1e-32, 0.0]),
        StepRule::RmsProp { decay, epsilon } => (Entry::RmsProp, [decay, 1.0 - decay, epsilon, 0.0]),
        StepRule::AdaGrad { epsilon } => (Entry::RmsProp, [1.0, 1.0, epsilon, 0.0]),
        StepRule::AdaDelta { rho, epsilon } => (Entry::AdaDelta, [rho, 0.0, epsilon, 0.0]),
    };
    let count = param.layout().shape().elem_count() as u64;
    if count == 0 {
        return None;
    }
    let [m, v, h] = [kept1, kept2, kept3].map(|kept| kept.as_ref().map_or(0, address));
    let (replay, [fix1, fix2, next]) = if rule.counts() {
        (resources.replay, [bias(a, *step), bias(b, *step), bias(a, step.saturating_add(1))])
    } else {
        (0, [0.0; 3])
    };
    let [param_at, grad] = [param, grad].map(address);
    let (rate, step) = (*rate, *step);
    let step = Step { count, param: param_at, grad, m, v, h, rate, a, b, eps, decay, fix1, fix2, next, step, replay };
    let arguments = Arguments::Step(step);
    Some(Launch { entry, dtype: param.dtype(), blocks: blocks(count, THREADS, resources), arguments })
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::base::layout::Layout;
    use crate::device::span::Span;

    /// Elements that nobody looks at.
    fn view(dtype: DType, layout: Layout) -> OwnedView {
        let span = Span::new(NonNull::dangling(), layout.end() * dtype.size_in_bytes());
        OwnedView::new(span, dtype, layout)
    }

    #[test]
    fn more_outputs_than_a_grid_has_blocks_share_them() {
        let resources = LaunchResources {
            blocks: 1 << 10,
            scratch: 0,
            scratch_bytes: 1 << 20,
            tickets: 0,
            ticket_count: 1 << 10,
            fault: 0,
            replay: 0,
            ordered: false,
        };
        for count in [(1usize << 31) - 1, (1 << 31) + 5, (1 << 33) + 5] {
            // Windows of bytes, of which each has an output.
            let src = view(DType::U8, Layout::contiguous(count + 511).windows(0, count, 512, 1));
            let dst = view(DType::U32, Layout::contiguous(count));
            let kernel = Kernel::ArgReduce { largest: true, src, axis: 1, dst };
            let Some(Launch { blocks, arguments: Arguments::Fold(fold), .. }) = plan(&kernel, &resources) else {
                panic!("a launch");
            };
            let outputs = blocks / u64::from(fold.parts) * (THREADS / u64::from(fold.lanes));
            assert!(blocks <= GRID && outputs >= count as u64, "{count}: {blocks} blocks, {} lanes", fold.lanes);
        }
    }
}
