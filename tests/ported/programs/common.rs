// Numbers that need no generator: weights and data of every program come from here.

/// Pseudo-random numbers in `[-1, 1)`, the same wherever they are computed.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// An array of such numbers times a scale.
fn array(dims: &[usize], seed: u32, scale: f32) -> Result<Tensor> {
    let count = dims.iter().product();
    let values: Vec<f32> = numbers(count, seed).into_iter().map(|x| x * scale).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)
}

/// Sets every variable to such numbers, in the order of their names.
fn fill(variables: &VarMap) -> Result<()> {
    let data = variables.data().lock().unwrap();
    let mut names: Vec<&String> = data.keys().collect();
    names.sort();
    for (seed, name) in names.into_iter().enumerate() {
        let var = &data[name];
        let fan = var.dims().iter().skip(1).product::<usize>().max(1);
        let values = array(var.dims(), seed as u32 + 1, 1.0 / (fan as f32).sqrt())?;
        let values = if name.contains("running_var") { values.sqr()?.affine(1.0, 0.5)? } else { values };
        var.set(&values)?;
    }
    Ok(())
}

/// The variables in the order of their names, for an optimiser.
fn ordered(variables: &VarMap) -> Vec<Var> {
    let data = variables.data().lock().unwrap();
    let mut all: Vec<(&String, &Var)> = data.iter().collect();
    all.sort_by_key(|(name, _)| *name);
    all.into_iter().map(|(_, var)| var.clone()).collect()
}
