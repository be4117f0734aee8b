//! Replacement return values for mutants of a function: the smallest values of its type, and others that
//! a test should distinguish from the right ones.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{GenericArgument, Path, PathArguments, ReturnType, Type};

/// Most values of one type, of which a tuple or a map can have many.
const VALUES_MAX: usize = 6;

/// Expressions of the type that `output` names, whose text is in `source`. None for a type that hides another one:
/// both branches of a function have to return the same.
pub(super) fn of_return(output: &ReturnType, source: &str) -> Vec<String> {
    match output {
        ReturnType::Default => vec!["()".to_owned()],
        ReturnType::Type(_, ty) => of_type(ty, source),
    }
}

fn of_type(ty: &Type, source: &str) -> Vec<String> {
    let mut values = match ty {
        Type::Paren(inner) => of_type(&inner.elem, source),
        Type::Path(path) => of_path(&path.path, source),
        Type::Array(array) => {
            wrapped("[", of_type(&array.elem, source), &format!("; {}]", text(array.len.span(), source)))
        }
        Type::Reference(reference) => match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => strings(&["\"\"", "\"xyzzy\""]),
            Type::Slice(slice) => of_slice(&slice.elem, source),
            Type::TraitObject(_) => Vec::new(),
            other => wrapped("Box::leak(Box::new(", of_type(other, source), "))"),
        },
        Type::Tuple(tuple) => {
            let mut products = vec![String::new()];
            for element in &tuple.elems {
                let values = of_type(element, source);
                products = products
                    .iter()
                    .flat_map(|begun| values.iter().map(move |value| format!("{begun}{value}, ")))
                    .take(VALUES_MAX)
                    .collect();
            }
            wrapped("(", products, ")")
        }
        Type::ImplTrait(_) | Type::Never(_) | Type::TraitObject(_) => Vec::new(),
        _ => strings(&["Default::default()"]),
    };
    values.truncate(VALUES_MAX);
    values
}

fn of_slice(element: &Type, source: &str) -> Vec<String> {
    let mut values = strings(&["Vec::leak(Vec::new())"]);
    values.extend(wrapped("Vec::leak(vec![", of_type(element, source), "])"));
    values
}

fn of_path(path: &Path, source: &str) -> Vec<String> {
    let Some(last) = path.segments.last() else { return Vec::new() };
    let arguments: Vec<&Type> = match &last.arguments {
        PathArguments::AngleBracketed(arguments) => arguments.args.iter().filter_map(as_type).collect(),
        _ => Vec::new(),
    };
    let name = last.ident.to_string();
    match (name.as_str(), arguments.as_slice()) {
        ("bool", []) => strings(&["true", "false"]),
        ("String", []) => strings(&["String::new()", "\"xyzzy\".into()"]),
        ("u8" | "u16" | "u32" | "u64" | "u128" | "usize", []) => strings(&["0", "1"]),
        ("i8" | "i16" | "i32" | "i64" | "i128" | "isize", []) => strings(&["0", "1", "-1"]),
        ("f32" | "f64", []) => strings(&["0.0", "1.0", "-1.0"]),
        ("Result", []) => strings(&["Ok(Default::default())"]),
        ("Result", [value, ..]) => wrapped("Ok(", of_type(value, source), ")"),
        ("Option", [value]) => {
            let mut values = strings(&["None"]);
            values.extend(wrapped("Some(", of_type(value, source), ")"));
            values
        }
        ("Vec", [element]) => {
            let mut values = strings(&["vec![]"]);
            values.extend(wrapped("vec![", of_type(element, source), "]"));
            values
        }
        ("BTreeSet" | "HashSet" | "VecDeque" | "BinaryHeap", [element]) => {
            let mut values = strings(&["Default::default()"]);
            values.extend(wrapped("FromIterator::from_iter([", of_type(element, source), "])"));
            values
        }
        ("BTreeMap" | "HashMap", [key, value]) => {
            let mut values = strings(&["Default::default()"]);
            for key in of_type(key, source) {
                values.extend(wrapped(
                    &format!("FromIterator::from_iter([({key}, "),
                    of_type(value, source),
                    ")])",
                ));
            }
            values
        }
        ("Box" | "Cell" | "RefCell" | "Arc" | "Rc" | "Mutex", [value]) => {
            wrapped(&format!("{name}::new("), of_type(value, source), ")")
        }
        _ => strings(&["Default::default()"]),
    }
}

fn as_type(argument: &GenericArgument) -> Option<&Type> {
    match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    }
}

fn strings(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}

fn wrapped(before: &str, values: Vec<String>, after: &str) -> Vec<String> {
    values.into_iter().map(|value| format!("{before}{value}{after}")).collect()
}

/// What `source` has at `span`, on one line.
pub(super) fn text(span: Span, source: &str) -> String {
    let text = source.get(span.byte_range()).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(signature: &str) -> Vec<String> {
        let source = format!("{signature} {{}}");
        of_return(&syn::parse_str::<syn::ItemFn>(&source).unwrap().sig.output, &source)
    }

    #[test]
    fn each_type_has_its_smallest_values() {
        assert_eq!(values("fn f()"), ["()"]);
        assert_eq!(
            values("fn f() -> io::Result<Option<bool>>"),
            ["Ok(None)", "Ok(Some(true))", "Ok(Some(false))"]
        );
        assert_eq!(values("fn f() -> (bool, i8)").len(), VALUES_MAX);
        assert_eq!(
            values("fn f() -> (u8, Moment)"),
            ["(0, Default::default(), )", "(1, Default::default(), )"]
        );
        assert_eq!(values("fn f() -> [u8; N + 1]"), ["[0; N + 1]", "[1; N + 1]"]);
        assert_eq!(values("fn f(&self) -> &'a [u8]")[0], "Vec::leak(Vec::new())");
        assert_eq!(values("fn f() -> impl Iterator<Item = u8>"), [""; 0]);
    }
}
