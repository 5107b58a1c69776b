//! Events and figures for a server's own tools: the optional features `tracing` and `metrics`.

mod figures {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
        with_local_recorder,
    };
    use ndgc::{DType, Device, SimConfig, Workspace, WorkspaceConfig, gc, memory};

    use crate::it::support::{alone, base, both};

    type Figures = Arc<Mutex<BTreeMap<String, (&'static str, f64)>>>;

    /// Writes down what it is given.
    #[derive(Default)]
    struct Notebook(Figures);

    struct Entry(Figures, String);

    impl CounterFn for Entry {
        fn increment(&self, _: u64) {
            panic!("{} is set as a whole", self.1);
        }

        fn absolute(&self, value: u64) {
            self.0.lock().unwrap().insert(self.1.clone(), ("counter", value as f64));
        }
    }

    impl GaugeFn for Entry {
        fn increment(&self, _: f64) {
            panic!("{} is set as a whole", self.1);
        }

        fn decrement(&self, _: f64) {
            panic!("{} is set as a whole", self.1);
        }

        fn set(&self, value: f64) {
            self.0.lock().unwrap().insert(self.1.clone(), ("gauge", value));
        }
    }

    impl Notebook {
        fn entry(&self, key: &Key) -> Arc<Entry> {
            let labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            Arc::new(Entry(Arc::clone(&self.0), format!("{} {}", key.name(), labels.join(","))))
        }
    }

    impl Recorder for Notebook {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.entry(key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.entry(key))
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            panic!("{key:?} is no histogram")
        }
    }

    /// Whether a figure is not of one device.
    fn is_of_process(name: &str) -> bool {
        ["arrays", "requests", "threads"].contains(&name.split('.').next().unwrap()) || name == "bytes.saved"
    }

    #[test]
    fn every_figure_is_a_counter_or_a_gauge_under_its_name() {
        both(|device| {
            gc::collect();
            let manager = base(device);
            let held = manager.zeros(1000, DType::U8).unwrap();
            let config = WorkspaceConfig::builder().initial_size(4096).build().unwrap();
            Workspace::cycle_on(device, "a.STEP", &config, || manager.zeros(10, DType::U8).map(drop)).unwrap();
            let (notebook, wanted) = (Notebook::default(), memory::stats(device));
            with_local_recorder(&notebook, || memory::publish_metrics(device));
            let found = notebook.0.lock().unwrap().clone();
            assert_eq!(found.len(), wanted.iter().count());
            for (name, value) in wanted.iter() {
                let (kind, published) = match name.strip_prefix("workspace.a.STEP.") {
                    Some(figure) => found[&format!("ndgc.workspace.{figure} device={device},workspace=a.STEP")],
                    None if is_of_process(name) => found[&format!("ndgc.{name} ")],
                    None => found[&format!("ndgc.{name} device={device}")],
                };
                assert_eq!(published, value as f64, "{name}");
                let end = name.rsplit('.').next().unwrap();
                let goes_on = ["created", "closed", "drained", "hits", "interrupts", "misses"];
                let is_counter = goes_on.contains(&end)
                    || ["refused", "retried", "spilled"].contains(&end)
                    || end.starts_with("total");
                assert_eq!(kind, if is_counter { "counter" } else { "gauge" }, "{name}");
            }
            drop(held);
            ndgc::destroy_all_workspaces_for_current_thread().unwrap();
        });
    }

    #[test]
    fn what_is_of_the_whole_process_is_published_once_whatever_the_devices() {
        alone(|| {
            let (notebook, sim) = (Notebook::default(), Device::sim(SimConfig::default()));
            with_local_recorder(&notebook, || [&Device::Cpu, &sim].into_iter().for_each(memory::publish_metrics));
            let found = notebook.0.lock().unwrap().clone();
            let of = |name: &str| found.keys().filter(|key| key.split(' ').next() == Some(name)).count();
            let figures = memory::stats(&Device::Cpu);
            for (name, _) in figures.iter().filter(|(name, _)| !name.starts_with("workspace.")) {
                assert_eq!(of(&format!("ndgc.{name}")), if is_of_process(name) { 1 } else { 2 }, "{name}");
            }
        });
    }
}

mod events {
    use std::fmt;
    use std::sync::{Arc, Mutex};

    use ndgc::{Budget, DType, Device, Tensor, gc, memory};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use crate::it::support::{alone, base, block};

    /// Writes down the events of ndgc, and panics after each if it is to.
    #[derive(Clone, Default)]
    struct Notebook {
        lines: Arc<Mutex<Vec<String>>>,
        panics: bool,
    }

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0 += &format!(" {field}={value:?}");
        }
    }

    impl Subscriber for Notebook {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "ndgc::memory"
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn event(&self, event: &Event<'_>) {
            let mut line = Line(event.metadata().level().to_string());
            event.record(&mut line);
            self.lines.lock().unwrap().push(line.0);
            assert!(!self.panics, "on purpose");
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// What a program does: drains, a close, a refusal, a trim.
    fn program() {
        let _on = gc::scoped(true);
        let manager = base(&Device::Cpu);
        manager.set_name("tenant");
        manager.set_budget(Budget::new().max_bytes(2000)).unwrap();
        (0..3).for_each(|_| drop(block(&manager)));
        assert_eq!(gc::collect(), 1, "each but the last by the next call");
        assert!(manager.zeros(2001, DType::U8).is_err());
        let left = block(&manager);
        manager.close().unwrap();
        assert!(!left.is_open() && manager.array_count() == 0, "closed as a whole");
        drop(left);
        memory::trim(&Device::Cpu, memory::Trim::Cache);
        drop(Tensor::zeros(1 << 20, DType::U8, &Device::Cpu).unwrap());
        assert_eq!(memory::trim(&Device::Cpu, memory::Trim::Cache), 1 << 20);
    }

    #[test]
    fn drains_trims_refusals_and_closes_are_events_whatever_the_subscriber_does() {
        alone(|| {
            memory::trim(&Device::Cpu, memory::Trim::Cache);
            for panics in [false, true] {
                let notebook = Notebook { panics, ..Notebook::default() };
                tracing::subscriber::with_default(notebook.clone(), program);
                let lines = notebook.lines.lock().unwrap();
                for wanted in [
                    "DEBUG message=drain arrays=1",
                    "WARN message=refusal bytes=2001 device=cpu",
                    "DEBUG message=close manager=tenant",
                    "DEBUG message=trim bytes=1048576 device=cpu",
                ] {
                    assert!(lines.iter().any(|line| line == wanted), "{wanted}: {lines:#?}");
                }
            }
        });
    }
}
