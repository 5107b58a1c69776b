//! Who owns which array, and who pays for which bytes: what managers' budgets add up to, whatever they admit.

/// A manager of the program.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) parent: Option<usize>,
    /// Whether it has a budget of its own.
    pub(super) has_budget: bool,
    pub(super) is_open: bool,
}

/// Bytes that arrays share.
#[derive(Clone, Debug)]
pub(super) struct Bytes {
    pub(super) size: u64,
    /// The manager whose budget they are charged to.
    pub(super) payer: Option<usize>,
    /// Open arrays that have them.
    pub(super) arrays: usize,
}

/// An open array. Whose it is: a manager's, or its handles'.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub(super) home: Option<usize>,
    pub(super) lenders: Vec<Option<usize>>,
    pub(super) bytes: usize,
}

/// All of it; numbers are not used again.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    pub(super) places: Vec<Place>,
    pub(super) bytes: Vec<Bytes>,
    pub(super) arrays: Vec<Option<Array>>,
}

impl Ledger {
    pub(super) fn place(&mut self, parent: Option<usize>, has_budget: bool) -> usize {
        self.places.push(Place { parent, has_budget, is_open: true });
        self.places.len() - 1
    }

    fn each_above(&self, at: Option<usize>, mut f: impl FnMut(usize)) {
        let mut next = at;
        while let Some(at) = next {
            if self.places[at].has_budget {
                f(at);
            }
            next = self.places[at].parent;
        }
    }

    /// The managers whose budgets an array of this one is within, the nearest first.
    pub(super) fn above(&self, at: Option<usize>) -> Vec<usize> {
        let mut found = Vec::new();
        self.each_above(at, |node| found.push(node));
        found
    }

    /// Those of them that notice what comes in from within `from`.
    pub(super) fn levels(&self, from: Option<usize>, to: Option<usize>) -> Vec<usize> {
        let known = self.above(from);
        self.above(to).into_iter().take_while(|node| !known.contains(node)).collect()
    }

    /// Whose budget pays for what is made there.
    pub(super) fn payer_of(&self, at: Option<usize>) -> Option<usize> {
        self.above(at).first().copied()
    }

    pub(super) fn is_open(&self, at: Option<usize>) -> bool {
        at.is_none_or(|at| self.places[at].is_open)
    }

    fn push(&mut self, home: Option<usize>, bytes: usize) -> usize {
        self.bytes[bytes].arrays += 1;
        self.arrays.push(Some(Array { home, lenders: Vec::new(), bytes }));
        self.arrays.len() - 1
    }

    /// A new array with bytes of its own.
    pub(super) fn made(&mut self, home: Option<usize>, size: u64) -> usize {
        self.bytes.push(Bytes { size, payer: self.payer_of(home), arrays: 0 });
        self.push(home, self.bytes.len() - 1)
    }

    /// A view of an open array, which belongs where that does. Bytes that nobody pays for it brings along.
    pub(super) fn viewed(&mut self, array: usize) -> usize {
        let Array { home, bytes, .. } = self.open(array).clone();
        let payer = self.payer_of(home);
        let paid = &mut self.bytes[bytes].payer;
        *paid = paid.or(payer);
        self.push(home, bytes)
    }

    /// An open array's bytes in one that its handles own: nobody pays for them any more.
    pub(super) fn detached(&mut self, array: usize) -> usize {
        let bytes = self.open(array).bytes;
        self.bytes[bytes].payer = None;
        self.push(None, bytes)
    }

    pub(super) fn open(&self, array: usize) -> &Array {
        self.arrays[array].as_ref().expect("an open array")
    }

    /// An open array has moved, and with it its bytes.
    pub(super) fn moved(&mut self, array: usize, to: Option<usize>) {
        let payer = self.payer_of(to);
        let found = self.arrays[array].as_mut().expect("an open array");
        found.home = to;
        self.bytes[found.bytes].payer = payer;
    }

    pub(super) fn ended(&mut self, array: usize) {
        if let Some(Array { bytes, .. }) = self.arrays[array].take() {
            self.bytes[bytes].arrays -= 1;
        }
    }

    /// The open managers of a subtree, in the order in which they are emptied when it is closed.
    pub(super) fn subtree(&self, top: usize) -> Vec<usize> {
        let (mut found, mut todo) = (Vec::new(), vec![top]);
        while let Some(at) = todo.pop() {
            found.push(at);
            let children = |&child: &usize| self.places[child].parent == Some(at) && self.places[child].is_open;
            todo.extend((0..self.places.len()).filter(children));
        }
        found.reverse();
        found
    }

    /// The open arrays of a manager.
    pub(super) fn arrays_of(&self, home: usize) -> Vec<usize> {
        let is_there = |array: &Option<Array>| array.as_ref().is_some_and(|array| array.home == Some(home));
        (0..self.arrays.len()).filter(|&at| is_there(&self.arrays[at])).collect()
    }

    /// Bytes and arrays within each manager, for those that have a budget.
    pub(super) fn sums(&self) -> Vec<[u64; 2]> {
        let mut sums = vec![[0; 2]; self.places.len()];
        for bytes in self.bytes.iter().filter(|bytes| bytes.arrays > 0) {
            self.each_above(bytes.payer, |node| sums[node][0] += bytes.size);
        }
        for array in self.arrays.iter().flatten() {
            self.each_above(array.home, |node| sums[node][1] += 1);
        }
        sums
    }
}
