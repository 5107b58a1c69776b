//! What the tests share: small arrays, masked error texts, child processes. Every test runs inside [`alone`] or
//! [`both`].

use ndgc::{DType, Device, NdManager, Result, Tensor, gc};

use crate::common::text_of;
pub(crate) use crate::common::{alone, devices, each_case, in_child, is_child};

/// An operation on two arrays, with a name for messages.
pub(crate) type Operation = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>);

/// Runs `body` in both positions of the switch on every device; see [`each_case`].
pub(crate) fn both(body: impl Fn(&Device)) {
    each_case(&[false, true], body);
}

/// As [`both`], with one position of the switch.
pub(crate) fn switched(on: bool, body: impl Fn(&Device)) {
    each_case(&[on], body);
}

/// A base manager.
pub(crate) fn base(device: &Device) -> NdManager {
    NdManager::new_base_manager(device).unwrap()
}

/// `[1, 2, 3]` of a manager.
pub(crate) fn vector(manager: &NdManager) -> Tensor {
    manager.from_slice(&[1f32, 2., 3.], 3).unwrap()
}

/// `[[1, 2], [3, 4]]` of a manager.
pub(crate) fn matrix(manager: &NdManager) -> Tensor {
    manager.from_slice(&[1f32, 2., 3., 4.], (2, 2)).unwrap()
}

/// Zeros of one size for whoever asks only about lifetimes: 16 numbers, 64 bytes.
pub(crate) fn block(manager: &NdManager) -> Tensor {
    manager.zeros(16, DType::F32).unwrap()
}

/// All elements.
pub(crate) fn values(array: &Tensor) -> Vec<f32> {
    array.to_vec().unwrap()
}

/// Whether `array` is owned by `manager`.
pub(crate) fn owned_by(array: &Tensor, manager: &NdManager) -> bool {
    array.manager().unwrap().uuid() == manager.uuid()
}

/// Bytes of live storages on a device, after everything dead was reclaimed.
pub(crate) fn live_bytes(device: &Device) -> u64 {
    gc::collect();
    device.memory().active
}

/// An error's whole text but for the place of the call, masked as by [`mask`].
pub(crate) fn text<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "no error".to_owned(),
        Err(error) => mask(&text_of(&error)),
    }
}

/// A text with what changes from run to run replaced: sites of these tests by `HERE`, keys by `KEY`, uuids by
/// `UUID`, simulated devices by `SIM`, ages by `AGE`.
pub(crate) fn mask(text: &str) -> String {
    let (text, mut out) = (mask_ages(text), String::new());
    let is_end = |c: char| " ()`;,\n".contains(c);
    for part in text.split_inclusive(is_end) {
        let word = part.trim_end_matches(is_end).trim_end_matches(':');
        out.push_str(mask_of(word).unwrap_or(word));
        out.push_str(&part[word.len()..]);
    }
    out
}

fn mask_ages(text: &str) -> String {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let parts: Vec<&str> = text.split(" s old").collect();
    let (last, before) = parts.split_last().unwrap();
    let masked = before.iter().map(|part| format!("{}AGE s old", part.trim_end_matches(is_number)));
    masked.collect::<String>() + last
}

fn mask_of(word: &str) -> Option<&'static str> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let pair = |at: char| word.split_once(at).is_some_and(|(a, b)| digits(a) && digits(b));
    let is_uuid = word.len() == 36 && word.bytes().filter(|&b| b == b'-').count() == 4;
    [
        (word.starts_with("tests/it/"), "HERE"),
        (word.strip_prefix("sim:").is_some_and(digits), "SIM"),
        (pair('v'), "KEY"),
        (is_uuid, "UUID"),
    ]
    .into_iter()
    .find_map(|(is, mask)| is.then_some(mask))
}

/// Every order of `0..n`.
pub(crate) fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(n - 1);
    let grown = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, n - 1);
        order
    };
    shorter.iter().flat_map(|order| (0..n).map(move |at| grown(order, at))).collect()
}
