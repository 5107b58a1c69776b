//! Sums of products named by letters.
//!
//! Operands are taken in from the left, two at a time. Of each pair a letter is one of four: in both and needed later
//! (a batch axis), in both and not needed (summed, by the matrix product), or in one of them alone. An axis that only
//! one operand has and nothing needs is summed before.

use crate::base::{call::Call, error::Result, order::sort_by};
use crate::memory::proxy::Proxy;
use crate::ops::call::compose::{argument, composite, shape_of};

/// An array with a letter for each axis.
struct Lettered {
    array: Proxy,
    letters: Vec<char>,
}

const OP: &str = "einsum";
/// Stands for `...` while an equation is read.
const DOTS: char = '\u{2026}';

/// The letters of each operand and of the result.
fn parse(equation: &str, operands: usize) -> Result<(Vec<Vec<char>>, Vec<char>)> {
    let text: String = equation.replace("...", "\u{2026}").chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (text.as_str(), None),
    };
    let inputs: Vec<Vec<char>> = left.split(',').map(|part| part.chars().collect()).collect();
    let all: Vec<char> = inputs.concat();
    let output: Vec<char> = match right {
        Some(right) => right.chars().collect(),
        None => {
            let mut once: Vec<char> =
                all.iter().copied().filter(|c| all.iter().filter(|a| *a == c).count() == 1).collect();
            sort_by(&mut once, Ord::cmp);
            once.retain(|&c| c != DOTS);
            let dots = all.contains(&DOTS).then_some(DOTS);
            dots.into_iter().chain(once).collect()
        }
    };
    let refuse = |expected| argument(OP, "equation", equation, expected);
    if inputs.len() != operands {
        return refuse("a list with one group of letters for each operand");
    }
    if !all.iter().chain(&output).all(|&c| c.is_ascii_alphabetic() || c == DOTS) {
        return refuse("made of letters, commas, `...` and one arrow");
    }
    if inputs.iter().any(|letters| letters.iter().filter(|&&c| c == DOTS).count() > 1) {
        return refuse("with `...` once in a group");
    }
    if !output.iter().all(|c| all.contains(c)) {
        return refuse("with no letter in the result that no operand has");
    }
    if output.iter().enumerate().any(|(i, c)| output[..i].contains(c)) {
        return refuse("with no letter twice in the result");
    }
    Ok((inputs, output))
}

impl Lettered {
    /// An operand with each letter once: axes of one letter become their diagonal.
    fn new(array: &Proxy, letters: &[char]) -> Result<Self> {
        let mut named = Lettered { array: array.clone(), letters: letters.to_vec() };
        loop {
            let shape = *named.array.shape();
            if shape.rank() != named.letters.len() {
                return argument(OP, "equation", letters.iter().collect::<String>(), "one letter for each axis");
            }
            let Some((a, b)) = twice(&named.letters) else { return Ok(named) };
            if shape.dims()[a] != shape.dims()[b] {
                return crate::ops::call::compose::wrong_shape(OP, array, "one size for each letter");
            }
            named.array = named.array.ext_diagonal(0, a, b)?;
            let letter = named.letters.remove(b);
            named.letters.remove(a);
            named.letters.push(letter);
        }
    }

    /// Sums over the axes that nothing needs.
    fn keep(mut self, needed: impl Fn(char) -> bool) -> Result<Self> {
        let gone: Vec<usize> = (0..self.letters.len()).filter(|&i| !needed(self.letters[i])).collect();
        if !gone.is_empty() {
            self.array = self.array.sum(&gone[..])?;
            self.letters.retain(|&c| needed(c));
        }
        Ok(self)
    }

    fn size(&self, letter: char) -> Result<usize> {
        match self.letters.iter().position(|&c| c == letter) {
            Some(axis) => self.array.dim(axis),
            None => Ok(1),
        }
    }

    /// The axes that have these letters, in their order.
    fn places(&self, letters: &[char]) -> Vec<usize> {
        let mut places = Vec::with_capacity(letters.len());
        for letter in letters {
            if let Some(place) = self.letters.iter().position(|own| own == letter) {
                places.push(place);
            }
        }
        places
    }

    /// The axes in the order of groups of letters, each group as one axis.
    fn grouped(&self, groups: [&[char]; 3]) -> Result<Proxy> {
        let order = self.places(&groups.concat());
        let mut sizes = [1usize; 3];
        for (size, group) in sizes.iter_mut().zip(groups) {
            for &letter in group {
                *size *= self.size(letter)?;
            }
        }
        self.array.permute(order)?.reshape(sizes)
    }
}

/// Gives the axes behind `...` letters of their own, counted from the right; axes of size 1 that repeat lose theirs.
fn spread(operands: &[&Proxy], inputs: &mut [Vec<char>], output: &mut Vec<char>) -> Result<Vec<Proxy>> {
    let behind = |count: usize| (0..count).rev().filter_map(|i| char::from_u32(1 + i as u32));
    let put = |letters: &mut Vec<char>, count: usize| {
        if let Some(at) = letters.iter().position(|&c| c == DOTS) {
            letters.splice(at..=at, behind(count));
        }
    };
    let mut most = 0;
    for (operand, letters) in operands.iter().zip(&mut *inputs).filter(|(_, letters)| letters.contains(&DOTS)) {
        let count = (operand.rank() + 1).saturating_sub(letters.len());
        put(letters, count);
        most = most.max(count);
    }
    put(output, most);
    let mut arrays: Vec<Proxy> = operands.iter().map(|&operand| operand.clone()).collect();
    for letter in behind(most) {
        let size = |array: &Proxy, letters: &[char]| {
            let dims = array.dims();
            let axis = letters.iter().position(|&c| c == letter).filter(|_| dims.len() == letters.len());
            axis.map(|axis| (axis, dims[axis]))
        };
        let repeats = arrays.iter().zip(&*inputs).any(|(a, letters)| size(a, letters).is_some_and(|(_, n)| n != 1));
        for (array, letters) in arrays.iter_mut().zip(&mut *inputs).filter(|_| repeats) {
            if let Some((axis, 1)) = size(array, letters) {
                *array = array.squeeze(axis)?;
                letters.remove(axis);
            }
        }
    }
    Ok(arrays)
}

/// A letter as errors name it: the axes behind `...` have none that the caller knows.
fn letter_name(letter: char) -> String {
    match letter.is_ascii_alphabetic() {
        true => format!("`{letter}`"),
        false => format!("axis -{} of `...`", u32::from(letter)),
    }
}

/// The first two axes with one letter.
fn twice(letters: &[char]) -> Option<(usize, usize)> {
    for (b, letter) in letters.iter().enumerate() {
        if let Some(a) = letters[..b].iter().position(|other| other == letter) {
            return Some((a, b));
        }
    }
    None
}

/// The sum of products of two operands over the letters that nothing needs.
fn pair(a: Lettered, b: Lettered, needed: impl Fn(char) -> bool) -> Result<Lettered> {
    let a = a.keep(|c| needed(c) || b.letters.contains(&c))?;
    let b = b.keep(|c| needed(c) || a.letters.contains(&c))?;
    for &letter in a.letters.iter().filter(|c| b.letters.contains(c)) {
        let (of_a, of_b) = (a.size(letter)?, b.size(letter)?);
        if of_a != of_b {
            let value = format!("{of_a} and {of_b} for {}", letter_name(letter));
            return argument(OP, "size of an axis", value, "the same wherever it stands");
        }
    }
    let of = |letters: &[char], both: bool, kept: bool, other: &[char]| -> Vec<char> {
        letters.iter().copied().filter(|&c| other.contains(&c) == both && needed(c) == kept).collect()
    };
    let (batch, summed) = (of(&a.letters, true, true, &b.letters), of(&a.letters, true, false, &b.letters));
    let (rows, columns) = (of(&a.letters, false, true, &b.letters), of(&b.letters, false, true, &a.letters));
    let letters = [&batch[..], &rows, &columns].concat();
    let mut dims = Vec::with_capacity(letters.len());
    for &letter in &letters {
        dims.push(if a.letters.contains(&letter) { a.size(letter)? } else { b.size(letter)? });
    }
    shape_of(OP, &dims, a.array.dtype().size_in_bytes())?;
    let array = a.grouped([&batch, &rows, &summed])?.matmul(&b.grouped([&batch, &summed, &columns])?)?;
    Ok(Lettered { array: array.reshape(dims)?, letters })
}

/// # Linear algebra: sums over letters
impl Proxy {
    /// The sum of products that an equation names, one letter for each axis: `"bij,bjk->bik"` is a matrix product,
    /// `"ii->i"` a diagonal, `"ij->ji"` a transpose; `...` stands for axes without letters, which repeat as in
    /// [`Proxy::broadcast_add`] and come first in a result that is not given. Without `->` the result has the letters
    /// that stand once, in alphabetical order. Numbers of any dtype, with gradients; the result belongs to the owner of
    /// the first operand.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for an equation that does not fit the operands, for sizes of one
    /// letter that differ, and for no operands; [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
    /// [`Error::RankTooLarge`](crate::Error::RankTooLarge), [`Error::SizeOverflow`](crate::Error::SizeOverflow); as
    /// [`Proxy::matmul`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor};
    /// let a = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// assert_eq!(Tensor::einsum("ij,kj->ik", &[&a, &a])?.to_vec2::<f32>()?, [[5., 11.], [11., 25.]]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn einsum<T: AsRef<Proxy>>(equation: &str, operands: &[T]) -> Result<Proxy> {
        let call = Call::here(OP);
        let Some(first) = operands.first().map(AsRef::as_ref) else {
            return argument(call, "operands", "[]", "not empty");
        };
        let (mut inputs, mut output) = call.named(parse(equation, operands.len()))?;
        let mut sum = move || {
            let operands: Vec<&Proxy> = operands.iter().map(AsRef::as_ref).collect();
            let operands = spread(&operands, &mut inputs, &mut output)?;
            let mut so_far = Lettered::new(&operands[0], &inputs[0])?;
            for (i, operand) in operands.iter().enumerate().skip(1) {
                let later = inputs[i + 1..].concat();
                let needed = |c: char| output.contains(&c) || later.contains(&c);
                so_far = pair(so_far, Lettered::new(operand, &inputs[i])?, needed)?;
            }
            let so_far = so_far.keep(|c| output.contains(&c))?;
            so_far.array.permute(so_far.places(&output))
        };
        composite(call, first, &mut sum)
    }
}
