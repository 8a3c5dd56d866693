//! Kinds of requests, as object stores price them: what is counted, and what a thousand of each costs.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::PackError;

/// The kind of a request to the backend, by which its price is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestClass {
    /// Writes an object; begins or ends one that is written in parts.
    Put,
    /// Writes a part.
    Part,
    /// Reads bytes.
    Get,
    /// Asks for the size.
    Head,
    /// Asks for a page of names.
    List,
    /// Removes an object, or gives one in parts up.
    Delete,
}

impl RequestClass {
    /// All classes, in the order of a bill.
    pub const ALL: [Self; 6] =
        [Self::Put, Self::Part, Self::Get, Self::Head, Self::List, Self::Delete];

    /// Its name on a bill, in metrics and in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Part => "part",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
        }
    }

    /// Returns true if somebody waits for bytes.
    pub(crate) fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::Head)
    }
}

/// Something for each kind of request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerClass<T> {
    /// Of [`RequestClass::Put`].
    pub put: T,
    /// Of [`RequestClass::Part`].
    pub part: T,
    /// Of [`RequestClass::Get`].
    pub get: T,
    /// Of [`RequestClass::Head`].
    pub head: T,
    /// Of [`RequestClass::List`].
    pub list: T,
    /// Of [`RequestClass::Delete`].
    pub delete: T,
}

impl<T> PerClass<T> {
    /// The value of a class.
    pub fn of(&self, class: RequestClass) -> &T {
        match class {
            RequestClass::Put => &self.put,
            RequestClass::Part => &self.part,
            RequestClass::Get => &self.get,
            RequestClass::Head => &self.head,
            RequestClass::List => &self.list,
            RequestClass::Delete => &self.delete,
        }
    }
}

/// Counts of requests.
pub type Requests = PerClass<u64>;

impl PerClass<AtomicU64> {
    pub(crate) fn count(&self, class: RequestClass, much: u64) {
        self.of(class).fetch_add(much, Ordering::Relaxed);
    }

    /// The counts so far.
    #[must_use]
    pub fn load(&self) -> Requests {
        let of = |class| self.of(class).load(Ordering::Relaxed);
        Requests {
            put: of(RequestClass::Put),
            part: of(RequestClass::Part),
            get: of(RequestClass::Get),
            head: of(RequestClass::Head),
            list: of(RequestClass::List),
            delete: of(RequestClass::Delete),
        }
    }
}

impl Requests {
    /// Requests of all classes together.
    #[must_use]
    pub fn total(&self) -> u64 {
        RequestClass::ALL.iter().map(|class| self.of(*class)).sum()
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            put: self.put + other.put,
            part: self.part + other.part,
            get: self.get + other.get,
            head: self.head + other.head,
            list: self.list + other.list,
            delete: self.delete + other.delete,
        }
    }
}

/// Prices of requests. Only of requests: storage and traffic are not in them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// The currency of the amounts.
    pub currency: String,
    /// For a thousand requests of a kind.
    pub per_thousand: PerClass<f64>,
}

impl Default for Prices {
    /// An example, not a promise: what Amazon asked for S3 Standard in us-east-1 in 2025.
    fn default() -> Self {
        let (write, read) = (0.005, 0.0004);
        let per_thousand =
            PerClass { put: write, part: write, get: read, head: read, list: write, delete: 0.0 };
        Self { currency: "USD".to_owned(), per_thousand }
    }
}

impl Prices {
    /// The price of one request.
    #[must_use]
    pub fn of(&self, class: RequestClass) -> f64 {
        self.per_thousand.of(class) / 1000.0
    }

    /// The price of all these requests.
    #[must_use]
    pub fn cost(&self, requests: &Requests) -> f64 {
        RequestClass::ALL.iter().map(|class| *requests.of(*class) as f64 * self.of(*class)).sum()
    }

    /// Refuses prices that no store can have.
    pub(crate) fn check(&self) -> Result<(), PackError> {
        for class in RequestClass::ALL {
            let price = *self.per_thousand.of(class);
            if !price.is_finite() || price < 0.0 {
                return Err(PackError::Config {
                    what: "a price of the table [prices]",
                    found: format!("{} = {price}", class.name()),
                    remedy: "0 or more, for a thousand requests".to_owned(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_is_the_sum_of_its_kinds() {
        let requests =
            Requests { put: 2000, part: 1000, get: 10_000, head: 0, list: 1000, delete: 5000 };
        let cost = Prices::default().cost(&requests);
        assert!((cost - (0.010 + 0.005 + 0.004 + 0.005)).abs() < 1e-9, "{cost}");
        assert_eq!(requests.total(), 19_000);
    }

    #[test]
    fn prices_below_nothing_are_refused_by_name() {
        let mut prices = Prices::default();
        assert!(prices.check().is_ok());
        prices.per_thousand.list = -1.0;
        let refused = prices.check().unwrap_err().to_string();
        assert!(refused.contains("list = -1"), "{refused}");
        prices.per_thousand.list = f64::NAN;
        assert!(prices.check().is_err());
    }
}
