use super::*;

fn sources(files: &[(&str, &str)]) -> Modules {
    let sources: Vec<Source> = files
        .iter()
        .map(|(file, text)| Source { path: (*file).to_owned(), text: (*text).to_owned() })
        .collect();
    let named: Vec<(&str, &Source)> = files.iter().map(|(file, _)| *file).zip(&sources).collect();
    Modules::read(&named)
}

/// The circles of each module, as words.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let levels = sources(files).levels();
    let words = |circle: BTreeSet<String>| circle.into_iter().collect::<Vec<_>>().join(" ");
    let found = levels.into_iter().flat_map(|(place, edges)| {
        circles(&edges)
            .into_iter()
            .map(move |circle| format!("{}: {}", place.join("/"), words(circle)))
    });
    found.collect()
}

#[test]
fn two_modules_that_import_one_another_are_a_circle() {
    let files =
        [("lib.rs", "mod a;\nmod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "use super::a;")];
    assert_eq!(found(&files), [": a b"]);
    let files =
        [("lib.rs", "mod a;\nmod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "use std::a;")];
    assert_eq!(found(&files), [""; 0]);
}

#[test]
fn circles_pass_through_others_and_through_what_a_module_contains() {
    let files = [
        ("a/mod.rs", "mod inner;"),
        ("a/inner.rs", "fn f() { crate::b::g() }"),
        ("b.rs", "use crate::{c::{self, C}, d as e};"),
        ("c.rs", "use super::a;"),
        ("d.rs", "use crate::a::inner;"),
        ("e.rs", "use crate::{a, b, c, d};"),
    ];
    assert_eq!(found(&files), [": a b c d"]);
}

#[test]
fn a_parent_may_use_its_children_and_they_it() {
    let files = [
        ("a.rs", "mod one;\nmod two;\nuse self::one::One;\npub struct A;\nfn f() { two::g() }"),
        ("a/one.rs", "use super::A;\nuse super::two::Two;"),
        ("a/two.rs", "use crate::a::A;"),
    ];
    assert_eq!(found(&files), [""; 0]);
}

#[test]
fn a_name_that_the_parent_has_from_a_module_is_that_modules() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\npub use a::{inner::A as Renamed, Other};"),
        ("a.rs", "mod inner;\nuse crate::b::B;"),
        ("a/inner.rs", "pub struct A;"),
        ("b.rs", "use crate::Renamed;"),
    ];
    assert_eq!(found(&files), [": a b"]);
}

#[test]
fn comments_texts_and_tests_use_nothing() {
    let files = [
        ("a.rs", "use crate::b::B;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\nuse crate::c::C;"),
        ("a/tests.rs", "use crate::c;"),
        (
            "b.rs",
            "// use crate::a;\nconst A: &str = \"crate::a::A\";\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\nuse crate::c;",
        ),
        ("c.rs", "#[cfg(all(test, unix))]\nfn f() { crate::a::g() }\n"),
    ];
    assert_eq!(found(&files), [""; 0]);
    let files = [("a.rs", "use crate::b;"), ("b.rs", "#[cfg(unix)]\nuse crate::a;")];
    assert_eq!(found(&files), [": a b"], "what some builds have counts");
}

#[test]
fn modules_in_a_file_are_modules() {
    let files = [(
        "lib.rs",
        "mod a { use super::b; }\nmod b {\n    fn f() { super::a::g() }\n}\nuse a::A;",
    )];
    assert_eq!(found(&files), [": a b"]);
}
