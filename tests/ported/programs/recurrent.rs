// An LSTM and a GRU over sequences, with a dense layer on the last state, trained with AdamW.

fn program() -> Result<Vec<f32>> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let lstm = nn::lstm(6, 10, Default::default(), vb.pp("lstm"))?;
    let gru = nn::gru(10, 7, Default::default(), vb.pp("gru"))?;
    let head = nn::seq().add(nn::linear(7, 8, vb.pp("a"))?).add(Activation::Silu).add_fn(|xs| xs.tanh());
    let head = head.add(nn::linear(8, 1, vb.pp("b"))?);
    fill(&variables)?;
    let mut adam = AdamW::new_lr(ordered(&variables), 0.01)?;
    let mut out = Vec::new();
    for step in 0..6 {
        let input = array(&[4, 9, 6], 500 + step, 1.0)?;
        // What is to be learnt: the sum of the first feature.
        let target = input.i((.., .., 0))?.sum(1)?;
        let states = lstm.seq(&input)?;
        let states = gru.seq(&lstm.states_to_tensor(&states)?)?;
        let last = states.last().context("a state for each step")?;
        let got = head.forward(last.h())?.squeeze(1)?;
        let loss = nn::loss::huber(&got, &target, 1.0)?;
        adam.backward_step(&loss)?;
        out.push(loss.to_scalar::<f32>()?);
        out.extend(got.to_vec1::<f32>()?);
    }
    Ok(out)
}
