//! All mutants of a file in one text: each is a branch on a number that the process is started with, so that all
//! of them are compiled once.
//!
//! It only ever inserts text. A mutant of an expression carries the expression with no mutant inside, so the text
//! grows with the depth of an expression and no faster. Not made are mutants of what is computed by the compiler
//! (constants, `const fn`), of macros' arguments, of a type that hides another one, and of tests.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use proc_macro2::Span;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, Meta, Pat, Signature, Token, UnOp};

use super::values::{self, text};

/// The module that is appended to the mutated crate.
pub(super) const SWITCH: &str = include_str!("switch.rs");
const SWITCH_NAME: &str = "mutant_switch";

/// [`SWITCH`] as the text to append to the crate's root.
pub(super) fn switch_module() -> String {
    let code: Vec<&str> = SWITCH.lines().filter(|line| !line.starts_with("//!")).collect();
    format!(
        "\n#[doc(hidden)]\n#[allow(warnings, clippy::all)]\npub mod {SWITCH_NAME} {{\n{}\n}}\n",
        code.join("\n")
    )
}

/// A source file with the sites of its mutants.
#[derive(Debug)]
pub(super) struct MutatedSource {
    pub(super) text: String,
    /// The files of the modules that it declares, tests excepted: from the crate's `src` on, without an ending.
    pub(super) modules: Vec<PathBuf>,
    sites: Vec<Site>,
    /// Of each mutant: line and column of what is changed, then what is changed to what.
    pub(super) names: Vec<String>,
}

/// A piece of the text, with its possible changes.
#[derive(Debug)]
struct Site {
    range: Range<usize>,
    kind: SiteKind,
    /// Number of the mutant in its file, and the text that it needs.
    choices: Vec<(usize, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SiteKind {
    /// The range is empty: after the brace that opens a function.
    Entry,
    /// The range is empty: after the pattern of an arm.
    Arm,
    /// The texts are `true` and `false`.
    Guard,
    Expression,
}

/// A text with mutants, and where each one is.
#[derive(Debug)]
pub(super) struct Schema {
    pub(super) text: String,
    /// Where the text has what one mutant alone needs, and where it has a site of several.
    pieces: Vec<(Range<usize>, Vec<usize>)>,
}

impl MutatedSource {
    /// Reads `text`, the file `path` of a crate's `src`.
    pub(super) fn parse(path: &Path, text: String) -> syn::Result<Self> {
        let file = syn::parse_file(&text)?;
        let stem = path.with_extension("");
        let is_root = ["lib", "main", "mod"].iter().any(|name| stem.ends_with(name));
        let folder = if is_root { path.parent().map(Path::to_owned).unwrap_or_default() } else { stem };
        let mut finder = Finder {
            text: &text,
            sites: Vec::new(),
            names: Vec::new(),
            scope: Vec::new(),
            folder,
            modules: Vec::new(),
        };
        finder.visit_file(&file);
        let Finder { sites, names, modules, .. } = finder;
        Ok(Self { text, modules, sites, names })
    }

    /// The text with each mutant that `keep` says, by its number in the file; in the text each has the number
    /// `first` higher.
    pub(super) fn schema(&self, first: usize, keep: impl Fn(usize) -> bool) -> Schema {
        let is = |mutant: usize| format!("crate::{SWITCH_NAME}::is({})", first + mutant);
        let mut insertions: Vec<(usize, InsertionOrder, Insertion)> = Vec::new();
        for (index, site) in self.sites.iter().enumerate() {
            let choices: Vec<_> = site.choices.iter().filter(|(mutant, _)| keep(*mutant)).collect();
            if choices.is_empty() {
                continue;
            }
            let mut before = Vec::new();
            let mut after = "";
            match site.kind {
                SiteKind::Entry => {
                    for (mutant, value) in choices {
                        let value = if value == "()" { "" } else { value };
                        before.push((Some(*mutant), format!(" if {} {{ return {value}; }}", is(*mutant))));
                    }
                }
                SiteKind::Arm => {
                    for (mutant, _) in choices {
                        before.push((Some(*mutant), format!(" if !{}", is(*mutant))));
                    }
                }
                SiteKind::Guard => {
                    let [yes, no] = ["true", "false"].map(|value| {
                        choices
                            .iter()
                            .find(|(_, text)| text == value)
                            .map_or_else(|| "false".to_owned(), |(mutant, _)| is(*mutant))
                    });
                    before.push((None, format!("!{no} && ({yes} || (")));
                    after = "))";
                }
                SiteKind::Expression => {
                    before.push((None, "(".to_owned()));
                    for (mutant, text) in choices {
                        before.push((None, format!("if {} {{ ", is(*mutant))));
                        before.push((Some(*mutant), text.clone()));
                        before.push((None, " } else ".to_owned()));
                    }
                    before.push((None, "{ ".to_owned()));
                    after = " })";
                }
            }
            // What closes comes before what opens; the inner one closes first, the outer one opens first.
            let rank = u8::from(site.kind == SiteKind::Expression);
            let Range { start, end } = site.range;
            if start == end {
                insertions.push((start, (1, Reverse(0), 0), Insertion::Opening(index, before)));
            } else {
                insertions.push((start, (2, Reverse(end), rank), Insertion::Opening(index, before)));
                insertions.push((end, (0, Reverse(start), 1 - rank), Insertion::Closing(index, after)));
            }
        }
        insertions.sort_by_key(|(position, order, _)| (*position, *order));
        self.assemble(insertions.into_iter().map(|(position, _, insertion)| (position, insertion)))
    }

    fn assemble(&self, insertions: impl Iterator<Item = (usize, Insertion)>) -> Schema {
        let mut text = String::new();
        let mut pieces = Vec::new();
        let mut opened = vec![0; self.sites.len()];
        let mut copied = 0;
        for (position, insertion) in insertions {
            text.push_str(&self.text[copied..position]);
            copied = position;
            match insertion {
                Insertion::Opening(site, parts) => {
                    opened[site] = text.len();
                    for (mutant, part) in parts {
                        let start = text.len();
                        text.push_str(&part);
                        if let Some(mutant) = mutant {
                            pieces.push((start..text.len(), vec![mutant]));
                        }
                    }
                }
                Insertion::Closing(site, part) => {
                    text.push_str(part);
                    let mutants = self.sites[site].choices.iter().map(|(mutant, _)| *mutant).collect();
                    pieces.push((opened[site]..text.len(), mutants));
                }
            }
        }
        text.push_str(&self.text[copied..]);
        Schema { text, pieces }
    }
}

/// Order of insertions at one position: the lesser comes first.
type InsertionOrder = (u8, Reverse<usize>, u8);

#[derive(Debug)]
enum Insertion {
    Opening(usize, Vec<(Option<usize>, String)>),
    Closing(usize, &'static str),
}

impl Schema {
    /// The mutants, by their numbers in the file, that a compiler's error may come from which names these places:
    /// those in whose text one is, or else those that are within one.
    pub(super) fn blamed(&self, places: &[Range<usize>]) -> BTreeSet<usize> {
        let is_in =
            |inner: &Range<usize>, outer: &Range<usize>| outer.start <= inner.start && inner.end <= outer.end;
        let around = places.iter().filter_map(|place| {
            let pieces = self.pieces.iter().filter(|(piece, _)| is_in(place, piece));
            // A mutant's own text is the smaller one of two, and the surer one.
            pieces.min_by_key(|(piece, mutants)| (piece.len(), mutants.len()))
        });
        if let Some((_, mutants)) = around.min_by_key(|(piece, mutants)| (mutants.len(), piece.len())) {
            return mutants.iter().copied().collect();
        }
        let within = |place| self.pieces.iter().filter(move |(piece, _)| is_in(piece, place));
        places.iter().flat_map(within).flat_map(|(_, mutants)| mutants).copied().collect()
    }
}

/// Walks a file and remembers what can be changed.
struct Finder<'a> {
    text: &'a str,
    sites: Vec<Site>,
    names: Vec<String>,
    /// Modules, types and functions around.
    scope: Vec<String>,
    /// Where the files of the modules are that are declared here.
    folder: PathBuf,
    modules: Vec<PathBuf>,
}

impl Finder<'_> {
    fn text(&self, span: Span) -> String {
        text(span, self.text)
    }

    /// A mutant that changes what is at `span`.
    fn name(&mut self, span: Span, change: &str, is_function: bool) -> usize {
        let at = span.start();
        let scope = self.scope.join("::");
        let place = if is_function || scope.is_empty() { String::new() } else { format!(" in {scope}") };
        self.names.push(format!("{}:{}: {change}{place}", at.line, at.column + 1));
        self.names.len() - 1
    }

    /// Mutants of `expression`, each of which replaces what is at `changed` in it.
    fn expression(
        &mut self,
        expression: Span,
        changed: Range<usize>,
        span: Span,
        changes: Vec<(String, &str)>,
    ) {
        let range = expression.byte_range();
        let choices = changes
            .into_iter()
            .map(|(name, replacement)| {
                let [before, after] =
                    [range.start..changed.start, changed.end..range.end].map(|part| &self.text[part]);
                let text = format!("{before}{replacement}{after}");
                (self.name(span, &name, false), text)
            })
            .collect();
        self.sites.push(Site { range, kind: SiteKind::Expression, choices });
    }

    fn function(
        &mut self,
        attributes: &[Attribute],
        signature: &Signature,
        block: &Block,
        walk: impl FnOnce(&mut Self),
    ) {
        if is_left_out(attributes)
            || signature.constness.is_some()
            || signature.unsafety.is_some()
            || block.stmts.is_empty()
        {
            return;
        }
        self.scope.push(signature.ident.to_string());
        if signature.ident != "new" {
            let scope = self.scope.join("::");
            let output = match &signature.output {
                syn::ReturnType::Default => String::new(),
                syn::ReturnType::Type(_, ty) => format!(" -> {}", self.text(ty.span())),
            };
            let span = block.stmts[0].span();
            let mut choices = Vec::new();
            for value in values::of_return(&signature.output, self.text) {
                let body: String = self.text(block.span());
                if body != format!("{{ {value} }}") {
                    choices.push((
                        self.name(span, &format!("replace {scope}{output} with {value}"), true),
                        value,
                    ));
                }
            }
            let start = block.brace_token.span.open().byte_range().end;
            self.sites.push(Site { range: start..start, kind: SiteKind::Entry, choices });
        }
        walk(self);
        self.scope.pop();
    }

    fn within(&mut self, name: String, walk: impl FnOnce(&mut Self)) {
        self.scope.push(name);
        walk(self);
        self.scope.pop();
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block, |finder| visit::visit_item_fn(finder, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block, |finder| visit::visit_impl_item_fn(finder, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block, |finder| visit::visit_trait_item_fn(finder, item));
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if is_left_out(&item.attrs) {
            return;
        }
        let ty = self.text(item.self_ty.span());
        let name = match &item.trait_ {
            None => ty,
            Some((_, path, _)) => {
                let name = path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
                // Nothing reads the one, and any other default is as good as the other.
                if name == "Debug" || name == "Default" {
                    return;
                }
                format!("<impl {} for {ty}>", self.text(path.span()))
            }
        };
        self.within(name, |finder| visit::visit_item_impl(finder, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if !is_left_out(&item.attrs) {
            self.within(item.ident.to_string(), |finder| visit::visit_item_trait(finder, item));
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_left_out(&item.attrs) {
            return;
        }
        let name = item.ident.to_string();
        self.folder.push(&name);
        if item.content.is_none() {
            self.modules.push(self.folder.clone());
        }
        self.within(name, |finder| visit::visit_item_mod(finder, item));
        self.folder.pop();
    }

    // What the compiler computes.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_variant(&mut self, _: &'ast syn::Variant) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_expr_repeat(&mut self, item: &'ast syn::ExprRepeat) {
        self.visit_expr(&item.expr);
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        let attributes = match statement {
            syn::Stmt::Local(local) => local.attrs.as_slice(),
            _ => &[],
        };
        if !is_left_out(attributes) {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_expr_block(&mut self, item: &'ast syn::ExprBlock) {
        if !is_left_out(&item.attrs) {
            visit::visit_expr_block(self, item);
        }
    }

    fn visit_expr_binary(&mut self, item: &'ast syn::ExprBinary) {
        if !(has_let(&item.left) || has_let(&item.right)) {
            let operator = self.text(item.op.span());
            let changes = operators(&item.op);
            let changes =
                changes.iter().map(|other| (format!("replace {operator} with {other}"), *other)).collect();
            self.expression(item.span(), item.op.span().byte_range(), item.op.span(), changes);
        }
        visit::visit_expr_binary(self, item);
    }

    fn visit_expr_unary(&mut self, item: &'ast syn::ExprUnary) {
        if matches!(item.op, UnOp::Not(_) | UnOp::Neg(_)) {
            let operator = self.text(item.op.span());
            let change = vec![(format!("delete {operator}"), "")];
            self.expression(item.span(), item.op.span().byte_range(), item.op.span(), change);
        }
        visit::visit_expr_unary(self, item);
    }

    fn visit_expr_match(&mut self, item: &'ast syn::ExprMatch) {
        let has_rest = item.arms.iter().any(|arm| matches!(arm.pat, Pat::Wild(_)) && arm.guard.is_none());
        for arm in &item.arms {
            if is_left_out(&arm.attrs) {
                continue;
            }
            match &arm.guard {
                Some((_, guard)) if !has_let(guard) => {
                    let guard_text = self.text(guard.span());
                    let choices = ["true", "false"].map(|value| {
                        let change = format!("replace match guard {guard_text} with {value}");
                        (self.name(guard.span(), &change, false), value.to_owned())
                    });
                    self.sites.push(Site {
                        range: guard.span().byte_range(),
                        kind: SiteKind::Guard,
                        choices: choices.into(),
                    });
                }
                None if has_rest && !matches!(arm.pat, Pat::Wild(_)) => {
                    let change = format!("delete match arm {}", self.text(arm.pat.span()));
                    let choices = vec![(self.name(arm.pat.span(), &change, false), String::new())];
                    let end = arm.pat.span().byte_range().end;
                    self.sites.push(Site { range: end..end, kind: SiteKind::Arm, choices });
                }
                _ => {}
            }
        }
        visit::visit_expr_match(self, item);
    }

    fn visit_expr_struct(&mut self, item: &'ast syn::ExprStruct) {
        if item.rest.is_some() {
            let range = item.span().byte_range();
            let mut choices = Vec::new();
            for field in item.fields.pairs() {
                let start = field.value().span().byte_range().start;
                let end = field.punct().map_or(field.value().span(), |comma| comma.span()).byte_range().end;
                let text = format!("{}{}", &self.text[range.start..start], &self.text[end..range.end]);
                let change = format!("delete field {}", self.text(field.value().member.span()));
                choices.push((self.name(field.value().span(), &change, false), text));
            }
            self.sites.push(Site { range, kind: SiteKind::Expression, choices });
        }
        visit::visit_expr_struct(self, item);
    }
}

/// What may stand in an operator's place. Of two numbers without a sign `==` says often what `<=` would.
fn operators(operator: &BinOp) -> &'static [&'static str] {
    match operator {
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Lt(_) => &["==", ">", "<="],
        BinOp::Gt(_) => &["==", "<", ">="],
        BinOp::Le(_) => &[">", "<"],
        BinOp::Ge(_) => &["<", ">"],
        BinOp::Add(_) => &["-", "*"],
        BinOp::Sub(_) | BinOp::Mul(_) => &["+", "/"],
        BinOp::Div(_) => &["%", "*"],
        BinOp::Rem(_) => &["/", "+"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::BitAnd(_) => &["|", "^"],
        BinOp::BitOr(_) => &["&", "^"],
        BinOp::BitXor(_) => &["|", "&"],
        BinOp::AddAssign(_) => &["-=", "*="],
        BinOp::SubAssign(_) | BinOp::MulAssign(_) => &["+=", "/="],
        BinOp::DivAssign(_) => &["%=", "*="],
        BinOp::RemAssign(_) => &["/=", "+="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) => &["&="],
        BinOp::BitXorAssign(_) => &["|=", "&="],
        _ => &[],
    }
}

/// A chain with a `let` is no expression that a block could have.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Tests, and what is not compiled for tests on this system.
fn is_left_out(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = attribute.path().segments.last().is_some_and(|segment| segment.ident == "test");
        is_test
            || (attribute.path().is_ident("cfg")
                && attribute.parse_args::<Meta>().is_ok_and(|meta| !holds(&meta)))
    })
}

/// Whether a condition of `cfg` holds for the code of a native program on this system.
fn holds(condition: &Meta) -> bool {
    let inner = |list: &syn::MetaList| {
        list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default()
    };
    match condition {
        Meta::Path(path) if path.is_ident("unix") => cfg!(unix),
        Meta::Path(path) => !["test", "fuzzing", "windows"].iter().any(|name| path.is_ident(name)),
        Meta::List(list) if list.path.is_ident("not") => !inner(list).iter().all(holds),
        Meta::List(list) if list.path.is_ident("any") => inner(list).iter().any(holds),
        Meta::List(list) => inner(list).iter().all(holds),
        Meta::NameValue(pair) => !matches!(
            &pair.value,
            Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(value), .. }) if ["wasm", "wasm32", "cuda"].contains(&value.value().as_str())
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> MutatedSource {
        MutatedSource::parse(Path::new("lib.rs"), text.to_owned()).unwrap()
    }

    #[test]
    fn each_place_is_a_branch_and_what_is_around_stays() {
        let source = source("fn f(a: u8, b: u8) -> bool { // why\n a < b && !g(a) }");
        let names = [
            "2:2: replace f -> bool with true",
            "2:2: replace f -> bool with false",
            "2:8: replace && with || in f",
            "2:4: replace < with == in f",
            "2:4: replace < with > in f",
            "2:4: replace < with <= in f",
            "2:11: delete ! in f",
        ];
        assert_eq!(source.names, names);
        let only = |wanted: &[usize]| source.schema(10, |mutant| wanted.contains(&mutant)).text;
        assert_eq!(only(&[]), source.text);
        assert_eq!(
            only(&[0, 2]),
            "fn f(a: u8, b: u8) -> bool { if crate::mutant_switch::is(10) { return true; } // why\n \
             (if crate::mutant_switch::is(12) { a < b || !g(a) } else { a < b && !g(a) }) }"
        );
        // The outer one opens first where both begin, and closes last where both end.
        let all = source.schema(0, |_| true).text;
        let body = all.split("why\n").nth(1).unwrap();
        assert!(body.trim_start().starts_with("(if crate::mutant_switch::is(2)"), "{all}");
        assert!(body.contains("} else { (if crate::mutant_switch::is(3)"), "{all}");
        assert!(body.ends_with("!g(a) }) }) }"), "{all}");
        syn::parse_file(&all).unwrap();
    }

    #[test]
    fn arms_and_guards_are_branches_too() {
        let source = source("fn f(a: u8) { match a { 0 | 1 => x(), n if n == 3 && p(n) => y(), _ => z() } }");
        let names: Vec<&str> =
            source.names.iter().filter_map(|name| name.split_once(": ")).map(|name| name.1).collect();
        assert_eq!(
            names,
            [
                "replace f with ()",
                "delete match arm 0 | 1 in f",
                "replace match guard n == 3 && p(n) with true in f",
                "replace match guard n == 3 && p(n) with false in f",
                "replace && with || in f",
                "replace == with != in f",
            ]
        );
        let guarded = source.schema(0, |mutant| [1, 2, 3].contains(&mutant)).text;
        let wanted = "0 | 1 if !crate::mutant_switch::is(1) => x(), \
                      n if !crate::mutant_switch::is(3) && (crate::mutant_switch::is(2) || (n == 3 && p(n))) => y()";
        assert!(guarded.contains(wanted), "{guarded}");
        syn::parse_file(&source.schema(0, |_| true).text).unwrap();
    }

    #[test]
    fn nothing_is_made_of_what_does_not_run() {
        let quiet = "
            const A: usize = 1 + 2;
            const fn b() -> usize { A + 1 }
            type C = [u8; 1 + 2];
            #[cfg(test)] mod tests { fn d() { a + b; } }
            #[cfg(all(unix, not(target_arch = \"wasm32\"), fuzzing))] fn e() { a + b; }
            impl fmt::Debug for F { fn fmt(&self) { a + b; } }
            #[tokio::test] async fn g() { a + b; }
            mod files; #[cfg(test)] mod others;
        ";
        let source = MutatedSource::parse(Path::new("a/b.rs"), quiet.to_owned()).unwrap();
        assert_eq!(source.names, [""; 0]);
        assert_eq!(source.modules, [Path::new("a/b/files")]);
        // `if let` chains stay as they are, what they compare does not.
        let source = self::source("fn f() { if let Some(a) = g() && a < 3 { h() } }");
        assert_eq!(source.names.len(), 4);
        syn::parse_file(&source.schema(0, |_| true).text).unwrap();
    }

    #[test]
    fn an_error_is_blamed_on_the_mutant_whose_text_it_is_in() {
        let source = source("fn f() -> u8 { a + b * c }");
        let schema = source.schema(0, |_| true);
        let at = |text: &str| schema.text.find(text).map(|start| start..start + text.len()).unwrap();
        let blamed = |text: &str| schema.blamed(&[at(text)]).into_iter().collect::<Vec<_>>();
        let names = [
            "replace f -> u8 with 0",
            "replace f -> u8 with 1",
            "replace + with -",
            "replace + with *",
            "replace * with +",
        ];
        for (mutant, name) in names.iter().enumerate() {
            assert!(source.names[mutant].contains(name), "{:?}", source.names);
        }
        assert_eq!(blamed("return 1;"), [1]);
        assert_eq!(blamed("- b"), [2]);
        // What is no mutant's own text is of all that are there.
        assert_eq!(blamed("b * c })"), [4, 5]);
        assert_eq!(schema.blamed(&[at(&schema.text)]).len(), source.names.len());
        assert_eq!(schema.blamed(&[at("fn f")]).len(), 0);
    }
}
