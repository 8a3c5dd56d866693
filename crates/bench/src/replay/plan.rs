//! The state that every name must have before, during and after the trace.
//!
//! As requests on one name are made in the order of the file, each answer is known beforehand.

use super::parse::{NameIndex, Operation, Request, Trace};

/// A request with the answer it must get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Put so many bytes.
    Put(u64),
    /// Find so many bytes, or nothing.
    Get(Option<u64>),
    /// Delete; also what is not there.
    Delete,
}

/// A trace's expectations.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Objects that the trace expects at its beginning, with their bytes.
    pub(crate) before: Vec<(NameIndex, u64)>,
    /// A step for each request.
    pub(crate) steps: Vec<Step>,
    /// For each name the bytes it has after the trace, if it then exists.
    pub(crate) after: Vec<Option<u64>>,
}

impl Plan {
    pub(crate) fn new(trace: &Trace) -> Self {
        let mut plan =
            Self { before: Vec::new(), steps: Vec::new(), after: vec![None; trace.names.len()] };
        let mut met = vec![false; trace.names.len()];
        for &Request { operation, name, bytes } in &trace.requests {
            if !met[name] && operation != Operation::Put {
                plan.before.push((name, bytes));
                plan.after[name] = Some(bytes);
            }
            met[name] = true;
            plan.steps.push(match operation {
                Operation::Put => {
                    plan.after[name] = Some(bytes);
                    Step::Put(bytes)
                }
                Operation::Get => Step::Get(plan.after[name]),
                Operation::Delete => {
                    plan.after[name] = None;
                    Step::Delete
                }
            });
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        Plan::new(&Trace::read(text.as_bytes()).unwrap())
    }

    #[test]
    fn what_is_read_or_deleted_without_a_put_exists_before() {
        let plan = plan("1 GET a 5\n1 DELETE b 6\n1 PUT c 7\n2 GET a 5\n2 DELETE c 7\n3 PUT b 8\n");
        assert_eq!(plan.before, [(0, 5), (1, 6)]);
        assert_eq!(plan.after, [Some(5), Some(8), None]);
    }

    #[test]
    fn a_get_finds_what_the_steps_before_it_left() {
        let plan = plan("1 PUT a 5\n2 GET a 9\n3 PUT a 6\n4 GET a 6\n5 DELETE a 6\n6 GET a 6\n");
        assert!(plan.before.is_empty());
        assert_eq!(
            plan.steps,
            [
                Step::Put(5),
                Step::Get(Some(5)),
                Step::Put(6),
                Step::Get(Some(6)),
                Step::Delete,
                Step::Get(None)
            ]
        );
    }
}
